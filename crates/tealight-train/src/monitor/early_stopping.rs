//! Early stopping: a run ends when its evaluations no longer improve (Prechelt 1998), or when they reach a target.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tealight_model::names;

use crate::checks::check;
use crate::error::{Error, Result};
use crate::settings::settings;

/// The setting of the metric.
pub(crate) const METRIC: &str = "training.early_stopping.metric";

settings! {
    /// `[training.early_stopping]`
    ///
    /// By default the evaluation loss must fall at least once in ten evaluations, by any amount. A change of at
    /// most `min_delta` does not count as an improvement, but the checkpoint may still be the best one.
    pub struct Config {
        /// The metric that must improve.
        pub metric: String = "loss".into(),
        /// Whether lower (`min`) or higher (`max`) values are better. If absent, the name of the metric decides: lower
        /// values of losses, errors and perplexities are better, higher ones of accuracies, F1, correlations and metrics of retrieval.
        pub direction: Option<Direction> = None,
        /// The run stops after this many evaluations in a row without improvement, at least 1.
        pub patience: u64 = 10,
        /// An improvement must exceed the previous one by more than this.
        pub min_delta: f64 = 0.,
        /// The run also stops when the metric is this good or better.
        pub target: Option<f64> = None,
        /// Evaluations in a row that must reach the target, at least 1.
        pub target_evaluations: u64 = 1,
    }
}

impl Config {
    /// Checks that the settings are in range and that the direction is known.
    pub fn validate(&self) -> Result<()> {
        let Self { patience, min_delta, target, target_evaluations, .. } = *self;
        let at_least_1 = "must be at least 1";
        check("training.early_stopping.patience", patience, |n| n > 0, at_least_1)?;
        let key = "training.early_stopping.target_evaluations";
        check(key, target_evaluations, |n| n > 0, at_least_1)?;
        if target.is_none() && target_evaluations != 1 {
            let target = "training.early_stopping.target";
            let message = format!(
                "`{key}` = {target_evaluations} counts evaluations at `{target}`, which is missing"
            );
            return Err(Error::config([key, target], message));
        }
        if let Some(target) = target {
            let key = "training.early_stopping.target";
            check(key, target, f64::is_finite, "must be finite")?;
        }
        let (is_valid, rule) =
            (|x: f64| x.is_finite() && x >= 0., "must be finite and not negative");
        check("training.early_stopping.min_delta", min_delta, is_valid, rule)?;
        self.direction().map(|_| ())
    }

    fn direction(&self) -> Result<Direction> {
        Direction::named("training.early_stopping", &self.metric, self.direction)
    }
}

/// Parts of the names of metrics of which lower values are better.
const FALLING: [&str; 9] =
    ["loss", "nll", "mse", "mae", "error", "perplexity", "bits", "entropy", "excess"];
/// Parts of the names of metrics of which higher values are better.
const RISING: [&str; 10] = [
    "accuracy",
    "exact_match",
    "f1",
    "correlation",
    "pearson",
    "spearman",
    "mrr",
    "ndcg",
    "recall@",
    "map@",
];

names! {
    /// Which values of a metric are better.
    pub enum Direction {
        /// Lower ones, as of a loss.
        "min" => Min,
        /// Higher ones, as of an accuracy.
        "max" => Max,
    }
}

impl Direction {
    /// Which values of the metric of this name are better; `None` if the name does not say so.
    pub fn of_metric(name: &str) -> Option<Self> {
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        match (has(&FALLING), has(&RISING)) {
            (true, false) => Some(Self::Min),
            (false, true) => Some(Self::Max),
            _ => None,
        }
    }

    /// The configured direction or, if absent, that of a known metric; `table` has the keys `metric` and `direction`.
    ///
    /// # Errors
    /// If the name does not say so.
    pub(crate) fn named(table: &str, metric: &str, configured: Option<Self>) -> Result<Self> {
        configured.or_else(|| Self::of_metric(metric)).ok_or_else(|| {
            let [key, of] = ["direction", "metric"].map(|key| format!("{table}.{key}"));
            let message = format!(
                "`{key}` is missing: the name of `{of}` = \"{metric}\" does not say whether it should fall (\"min\") or \
                 rise (\"max\")"
            );
            Error::config([&*key, &*of], message)
        })
    }

    /// The difference by which `value` is better than `other`; negative if it is worse.
    pub fn gain(self, value: f64, other: f64) -> f64 {
        match self {
            Self::Min => other - value,
            Self::Max => value - other,
        }
    }

    /// Whether `value` is better than `other` by more than `margin`. A value that is not finite never is.
    pub(crate) fn beats(self, value: f64, other: Option<f64>, margin: f64) -> bool {
        value.is_finite() && other.is_none_or(|other| self.gain(value, other) > margin)
    }
}

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Number of updates before it.
    pub step: u64,
    /// The value of the metric.
    pub value: f64,
}

/// The best evaluation by `checkpoint.metric`; part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestBy {
    /// The metric. A run may be resumed with another.
    pub metric: String,
    /// The evaluation.
    pub best: Best,
}

/// The state of early stopping; part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStoppingState {
    /// The best evaluation, without regard to `min_delta`.
    pub best: Option<Best>,
    /// The value of the last improvement by more than `min_delta`, which the next one is compared with.
    /// Absent in older checkpoints, which compared with `best`.
    #[serde(default)]
    pub reference: Option<f64>,
    /// Number of evaluations since that improvement.
    pub n_without_improvement: u64,
    /// Number of evaluations in a row that reached the target, up to the last one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_at_target: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The result of an evaluation for early stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationVerdict {
    /// The value is the best so far, without regard to `min_delta`; its checkpoint becomes `best`.
    pub is_best: bool,
    /// How many more evaluations may bring no improvement; at 0 the run stops.
    pub n_left: u64,
    /// The target is reached, and the run stops.
    pub is_at_target: bool,
}

impl EvaluationVerdict {
    /// Whether the run stops.
    pub fn stops(self) -> bool {
        self.n_left == 0 || self.is_at_target
    }
}

/// Early stopping by one metric of the evaluations.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    /// The metric, and how long it may fail to improve.
    pub config: Config,
    direction: Direction,
    /// The best evaluation; part of a checkpoint.
    pub state: EarlyStoppingState,
}

impl EarlyStopping {
    /// Starts from `EarlyStoppingState::default()`, or from the state of a checkpoint.
    pub fn new(config: &Config, mut state: EarlyStoppingState) -> Result<Self> {
        config.validate()?;
        state.reference = state.reference.or(state.best.map(|best| best.value));
        Ok(Self { config: config.clone(), direction: config.direction()?, state })
    }

    /// Records the metric's `value` after `step` updates.
    pub fn observe(&mut self, step: u64, value: f64) -> EvaluationVerdict {
        let Self { config, direction, state } = self;
        let is_best = direction.beats(value, state.best.map(|best| best.value), 0.);
        if is_best {
            state.best = Some(Best { step, value });
        }
        if direction.beats(value, state.reference, config.min_delta) {
            state.reference = Some(value);
            state.n_without_improvement = 0;
        } else {
            state.n_without_improvement += 1;
        }
        let is_good = |target| value.is_finite() && direction.gain(value, target) >= 0.;
        state.n_at_target =
            if config.target.is_some_and(is_good) { state.n_at_target + 1 } else { 0 };
        let n_left = config.patience.saturating_sub(state.n_without_improvement);
        EvaluationVerdict { is_best, n_left, is_at_target: self.is_at_target() }
    }

    fn is_at_target(&self) -> bool {
        self.config.target.is_some() && self.state.n_at_target >= self.config.target_evaluations
    }

    /// Whether the run has stopped. A run that stopped early does not continue when it is resumed.
    pub fn has_stopped(&self) -> bool {
        self.state.n_without_improvement >= self.config.patience || self.is_at_target()
    }
}

/// The error of a `metric`, the value of `key`, that evaluations do not have; `known` are the metrics that they have.
pub(crate) fn unknown_metric(key: &str, metric: &str, known: &BTreeMap<String, f64>) -> Error {
    let known: Vec<_> = known.keys().map(|name| format!("`{name}`")).collect();
    let message = format!("`{key}` = \"{metric}\": an evaluation gives {}", known.join(", "));
    Error::config([key], message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(direction: Direction, patience: u64, min_delta: f64) -> EarlyStopping {
        let config =
            Config { direction: Some(direction), patience, min_delta, ..Config::default() };
        EarlyStopping::new(&config, EarlyStoppingState::default()).unwrap()
    }

    #[test]
    fn stops_after_patience_evaluations_without_improvement() {
        let mut stopping = watch(Direction::Min, 2, 0.);
        let verdicts: Vec<(bool, u64)> = [3., 2., 2., 1.5, 1.6, 1.5]
            .into_iter()
            .zip(10..)
            .map(|(loss, step)| stopping.observe(step, loss))
            .map(|EvaluationVerdict { is_best, n_left, .. }| (is_best, n_left))
            .collect();
        let (best, patient) = ((true, 2), (false, 1));
        assert_eq!(verdicts, [best, best, patient, best, patient, (false, 0)]);
        assert!(stopping.has_stopped());
        assert_eq!(stopping.state.best, Some(Best { step: 13, value: 1.5 }));
    }

    #[test]
    fn min_delta_decides_on_patience_and_not_on_what_is_best() {
        let mut stopping = watch(Direction::Max, 5, 0.25);
        let mut observe = |step, value| {
            let EvaluationVerdict { is_best, n_left, .. } = stopping.observe(step, value);
            (is_best, n_left)
        };
        assert_eq!(observe(1, 0.5), (true, 5));
        assert_eq!(observe(2, 0.75), (true, 4));
        assert_eq!(observe(3, 0.625), (false, 3));
        // More than 0.25 over the first, not over the best.
        assert_eq!(observe(4, 0.8125), (true, 5));
        assert_eq!(observe(5, 0.875), (true, 4));
        let EarlyStoppingState { best, reference, .. } = stopping.state;
        assert_eq!((best, reference), (Some(Best { step: 5, value: 0.875 }), Some(0.8125)));
    }

    #[test]
    fn an_accuracy_should_rise_and_a_loss_fall_unless_the_direction_is_given() {
        let config = |text: &str| toml::from_str::<Config>(text).unwrap();
        let bests = |text: &str| {
            let mut stopping =
                EarlyStopping::new(&config(text), EarlyStoppingState::default()).unwrap();
            [0.5, 0.75, 0.25].map(|value| stopping.observe(1, value).is_best)
        };
        assert_eq!(bests("metric = 'accuracy'"), [true, true, false]);
        assert_eq!(bests("metric = 'nll'"), [true, false, true]);
        assert_eq!(bests(""), [true, false, true]);
        assert_eq!(bests("metric = 'loss'\ndirection = 'max'"), [true, true, false]);
        assert_eq!(bests("metric = 'macro_f1'"), [true, true, false]);
        assert_eq!(bests("metric = 'mse'"), [true, false, true]);
        let error = config("metric = 'glow'").validate().unwrap_err();
        let Error::Config(fault) = &error else { panic!("{error}") };
        assert_eq!(fault.keys[0], "training.early_stopping.direction");
        assert!(config("metric = 'f1'\ndirection = 'max'").validate().is_ok());
        assert!(!toml::to_string(&Config::default()).unwrap().contains("direction"));
    }

    #[test]
    fn what_is_not_finite_is_no_improvement() {
        let mut stopping = watch(Direction::Max, 3, 0.);
        for (value, n_left) in [(f64::NAN, 2), (f64::INFINITY, 1)] {
            let expected = EvaluationVerdict { is_best: false, n_left, is_at_target: false };
            assert_eq!(stopping.observe(1, value), expected);
        }
        assert_eq!(stopping.state.best, None);
    }

    #[test]
    fn a_state_without_a_reference_compares_with_the_best() {
        let text = r#"{"best":{"step":3,"value":0.5},"n_without_improvement":1}"#;
        let state = serde_json::from_str(text).unwrap();
        let config = Config { patience: 3, min_delta: 0.25, ..Config::default() };
        let mut stopping = EarlyStopping::new(&config, state).unwrap();
        let expected = EvaluationVerdict { is_best: true, n_left: 1, is_at_target: false };
        assert_eq!(stopping.observe(4, 0.375), expected);
    }

    #[test]
    fn a_state_that_went_through_json_continues_as_if_never_stopped() {
        let mut first = watch(Direction::Min, 2, 0.);
        first.observe(1, 0.1 + 0.2);
        first.observe(2, 0.5);
        let text = serde_json::to_string(&first.state).unwrap();
        let state: EarlyStoppingState = serde_json::from_str(&text).unwrap();
        assert_eq!(state, first.state);
        let config = Config { patience: 2, ..Config::default() };
        let mut second = EarlyStopping::new(&config, state).unwrap();
        assert!(second.observe(3, 0.4).stops());
    }

    #[test]
    fn a_run_stops_when_enough_evaluations_in_a_row_reach_the_target() {
        let config = |text: &str| toml::from_str::<Config>(text).unwrap();
        let two = config("metric = 'accuracy'\ntarget = 0.75\ntarget_evaluations = 2");
        let mut stopping = EarlyStopping::new(&two, EarlyStoppingState::default()).unwrap();
        let stops = [0.75, 0.5, 0.875, 0.75].map(|value| stopping.observe(1, value).stops());
        assert_eq!(stops, [false, false, false, true]);
        assert!(stopping.has_stopped());
        // The state of a checkpoint says so, too.
        let state = serde_json::from_str(&serde_json::to_string(&stopping.state).unwrap()).unwrap();
        assert!(EarlyStopping::new(&two, state).unwrap().has_stopped());
        let mut loss =
            EarlyStopping::new(&config("target = 0.5"), EarlyStoppingState::default()).unwrap();
        let stops = [0.75, f64::NEG_INFINITY, f64::NAN, 0.5].map(|x| loss.observe(1, x).stops());
        assert_eq!(stops, [false, false, false, true]);
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let message = |config: Config| {
            EarlyStopping::new(&config, EarlyStoppingState::default()).unwrap_err().to_string()
        };
        let rule = "`training.early_stopping.patience` = 0 must be at least 1";
        assert_eq!(message(Config { patience: 0, ..Config::default() }), rule);
        assert!(message(Config { min_delta: f64::NAN, ..Config::default() }).contains("NaN"));
        let without = message(Config { target_evaluations: 2, ..Config::default() });
        assert!(
            without.contains("`training.early_stopping.target`, which is missing"),
            "{without}"
        );
    }
}
