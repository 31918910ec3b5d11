//! Early stopping: a run ends once evaluations have stopped improving (Prechelt 1998).

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// `[training.early_stopping]`
///
/// By default the evaluation loss must fall at least once in ten evaluations, by any amount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The metric of an evaluation that is watched.
    pub metric: String,
    /// Whether the metric should fall (`min`) or rise (`max`).
    pub direction: Direction,
    /// Evaluations in a row without improvement after which the run stops, at least 1.
    pub patience: u64,
    /// What a value must gain over the best one to count as an improvement.
    pub min_delta: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { metric: "loss".into(), direction: Direction::Min, patience: 10, min_delta: 0. }
    }
}

/// Which of two values of a metric is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The lower one: a loss.
    Min,
    /// The higher one: an accuracy.
    Max,
}

impl Direction {
    /// By how much `value` is better than `best`; negative if it is worse.
    pub fn gain(self, value: f64, best: f64) -> f64 {
        match self {
            Self::Min => best - value,
            Self::Max => value - best,
        }
    }
}

/// The best evaluation up to now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The step after which it was evaluated.
    pub step: u64,
    /// The value of the metric.
    pub value: f64,
}

impl Best {
    /// Whether `value` beats `best` by more than `min_delta`. What is not finite beats nothing.
    pub fn is_beaten(
        best: Option<&Self>,
        value: f64,
        direction: Direction,
        min_delta: f64,
    ) -> bool {
        value.is_finite() && best.is_none_or(|best| direction.gain(value, best.value) > min_delta)
    }
}

/// What early stopping remembers from one evaluation to the next; part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The last evaluation that counted as an improvement.
    pub best: Option<Best>,
    /// Evaluations since then.
    pub n_without_improvement: u64,
}

/// What follows from an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The best value yet.
    Improved,
    /// No improvement; so many more in a row and the run stops.
    Patient {
        /// Evaluations left.
        left: u64,
    },
    /// Patience is exhausted.
    Stop,
}

/// Watches one metric of the evaluations.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    config: Config,
    state: State,
}

impl EarlyStopping {
    /// Starts watching, from `State::default()` or from where a checkpoint left off.
    pub fn new(config: &Config, state: State) -> Result<Self> {
        let Config { patience, min_delta, .. } = *config;
        if patience == 0 {
            let key = "training.early_stopping.patience";
            return Err(Error::config([key], format!("`{key}` = 0 must be at least 1")));
        }
        if !(min_delta.is_finite() && min_delta >= 0.) {
            let key = "training.early_stopping.min_delta";
            let message = format!("`{key}` = {min_delta} must be finite and not negative");
            return Err(Error::config([key], message));
        }
        Ok(Self { config: config.clone(), state })
    }

    /// Takes note of the metric's `value` after `step` updates.
    pub fn observe(&mut self, step: u64, value: f64) -> Verdict {
        let Config { direction, patience, min_delta, .. } = self.config;
        if Best::is_beaten(self.state.best.as_ref(), value, direction, min_delta) {
            self.state = State { best: Some(Best { step, value }), n_without_improvement: 0 };
            return Verdict::Improved;
        }
        self.state.n_without_improvement += 1;
        match patience.saturating_sub(self.state.n_without_improvement) {
            0 => Verdict::Stop,
            left => Verdict::Patient { left },
        }
    }

    /// Whether patience is exhausted: a run that was stopped stays so when it is resumed.
    pub fn is_over(&self) -> bool {
        self.state.n_without_improvement >= self.config.patience
    }

    /// The metric that is watched.
    pub fn metric(&self) -> &str {
        &self.config.metric
    }

    /// What a checkpoint must keep.
    pub fn state(&self) -> &State {
        &self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(direction: Direction, patience: u64, min_delta: f64) -> EarlyStopping {
        let config = Config { direction, patience, min_delta, ..Config::default() };
        EarlyStopping::new(&config, State::default()).unwrap()
    }

    #[test]
    fn stops_after_patience_evaluations_without_improvement() {
        let mut stopping = watch(Direction::Min, 2, 0.);
        let verdicts: Vec<Verdict> = [3., 2., 2., 1.5, 1.6, 1.5]
            .into_iter()
            .zip(10..)
            .map(|(loss, step)| stopping.observe(step, loss))
            .collect();
        let (improved, patient) = (Verdict::Improved, Verdict::Patient { left: 1 });
        assert_eq!(verdicts, [improved, improved, patient, improved, patient, Verdict::Stop]);
        assert_eq!(stopping.state().best, Some(Best { step: 13, value: 1.5 }));
    }

    #[test]
    fn an_accuracy_must_rise_by_more_than_min_delta() {
        let mut stopping = watch(Direction::Max, 5, 0.25);
        assert_eq!(stopping.observe(1, 0.5), Verdict::Improved);
        assert_eq!(stopping.observe(2, 0.75), Verdict::Patient { left: 4 });
        assert_eq!(stopping.observe(3, 0.8125), Verdict::Improved);
    }

    #[test]
    fn what_is_not_finite_is_no_improvement() {
        let mut stopping = watch(Direction::Max, 3, 0.);
        for value in [f64::NAN, f64::INFINITY] {
            assert!(matches!(stopping.observe(1, value), Verdict::Patient { .. }));
        }
        assert_eq!(stopping.state().best, None);
    }

    #[test]
    fn a_state_that_went_through_json_continues_as_if_never_stopped() {
        let mut first = watch(Direction::Min, 2, 0.);
        first.observe(1, 0.1 + 0.2);
        first.observe(2, 0.5);
        let text = serde_json::to_string(first.state()).unwrap();
        let state: State = serde_json::from_str(&text).unwrap();
        assert_eq!(&state, first.state());
        let config = Config { patience: 2, ..Config::default() };
        let mut second = EarlyStopping::new(&config, state).unwrap();
        assert_eq!(second.observe(3, 0.4), Verdict::Stop);
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let message =
            |config: Config| EarlyStopping::new(&config, State::default()).unwrap_err().to_string();
        let rule = "`training.early_stopping.patience` = 0 must be at least 1";
        assert_eq!(message(Config { patience: 0, ..Config::default() }), rule);
        assert!(message(Config { min_delta: f64::NAN, ..Config::default() }).contains("NaN"));
    }
}
