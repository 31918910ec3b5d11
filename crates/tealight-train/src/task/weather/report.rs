//! The scores of a model beside its baselines and the Bayes limit.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::models::forecaster::Forecaster;
use tealight_ops::rng::{Purpose, Stream};

use super::Weather;
use super::data::N_EXAMPLES;
use crate::data::weather::{Evaluation, Examples, Linear, Lookup, Method, majority};
use crate::error::Result;
use crate::task::TaskReport;
use crate::task::metrics::by_name;
use crate::task::table::{Table, thousands};

/// Windows drawn where there are too many to evaluate them all.
const N_SAMPLED: usize = 20_000;

/// Seed of these windows and of the lookup table's examples, for every run.
const EVALUATION_SEED: u64 = 0;

/// Scores on the same windows, by the names in `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Share of the days that are forecast as the likeliest.
    pub accuracy: f64,
    /// Cross-entropy with the true distribution, in nats.
    pub nll: f64,
    /// The best accuracy that any model of this window can have; `None` if the rule is unknown.
    pub bayes_accuracy: Option<f64>,
    /// The best NLL that any model of this window can have.
    pub bayes_nll: Option<f64>,
    /// Multinomial logistic regression on the flattened window.
    pub linear_accuracy: f64,
    /// Its NLL.
    pub linear_nll: f64,
    /// A table of the windows in the training examples, or in 5,000 examples where every batch is new.
    pub lookup_accuracy: f64,
    /// Its NLL.
    pub lookup_nll: f64,
    /// A constant forecast.
    pub majority_accuracy: f64,
    /// Its NLL.
    pub majority_nll: f64,
    /// Whether all windows were evaluated, with their true probabilities.
    pub exact: bool,
    /// Windows evaluated.
    pub n_windows: usize,
    /// Standard error of the model's accuracy; 0 if exact.
    pub accuracy_standard_error: f64,
    /// Standard error of the model's NLL; 0 if exact.
    pub nll_standard_error: f64,
    /// Examples that the linear model was fitted to; `None` = the exact distribution.
    pub linear_examples: Option<usize>,
    /// Examples in the lookup table.
    pub lookup_examples: usize,
}

impl TaskReport<Weather> for Report {
    fn new(task: &Weather, model: &Forecaster) -> Result<Self> {
        let window = task.config.window;
        let stream = Stream::new(EVALUATION_SEED, Purpose::Data);
        let generator = task.data.generator.as_deref();
        let evaluation = match generator {
            Some(generator) => Evaluation::new(generator, window, N_SAMPLED, stream.fork(0))?,
            None => Evaluation::empirical(&task.data.validation),
        };
        let limit = generator.map(|generator| generator.bayes(window));
        let examples = match (task.training_examples(), generator) {
            (Some(examples), _) => examples,
            (None, Some(generator)) => {
                &Examples::sample(generator, window, N_EXAMPLES, stream.fork(1))
            }
            (None, None) => unreachable!("invariant: examples from a file are a fixed set"),
        };
        let (linear, linear_examples) = match task.training_examples() {
            Some(examples) => (Linear::fit(examples), Some(examples.len())),
            None => (Linear::ceiling(&evaluation), None),
        };
        let forecasts = task.forecast(model, &evaluation.windows, window)?;
        let model = evaluation.score(&forecasts);
        let linear = evaluation.score(&linear.predict(&evaluation));
        let lookup = evaluation.score(&Lookup::memorise(examples).predict(&evaluation));
        let majority = evaluation.score(&majority(&evaluation));
        Ok(Self {
            accuracy: model.accuracy,
            nll: model.nll,
            bayes_accuracy: limit.map(|limit| limit.accuracy),
            bayes_nll: limit.map(|limit| limit.nll),
            linear_accuracy: linear.accuracy,
            linear_nll: linear.nll,
            lookup_accuracy: lookup.accuracy,
            lookup_nll: lookup.nll,
            majority_accuracy: majority.accuracy,
            majority_nll: majority.nll,
            exact: evaluation.method == Method::Exact,
            n_windows: evaluation.len(),
            accuracy_standard_error: model.accuracy_standard_error,
            nll_standard_error: model.nll_standard_error,
            linear_examples,
            lookup_examples: examples.len(),
        })
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        by_name([("accuracy", self.accuracy), ("nll", self.nll)])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["", "accuracy", "NLL"]);
        let mut row = |name: &str, accuracy: f64, nll: f64| {
            table.row([name.to_owned(), format!("{accuracy:.4}"), format!("{nll:.4}")]);
        };
        let linear = match self.linear_examples {
            Some(n) => format!("linear ({} examples)", thousands(n as u64)),
            None => "linear (its ceiling)".to_owned(),
        };
        let lookup = format!("lookup table ({} examples)", thousands(self.lookup_examples as u64));
        row("majority", self.majority_accuracy, self.majority_nll);
        row(&linear, self.linear_accuracy, self.linear_nll);
        row(&lookup, self.lookup_accuracy, self.lookup_nll);
        row("transformer", self.accuracy, self.nll);
        if let (Some(accuracy), Some(nll)) = (self.bayes_accuracy, self.bayes_nll) {
            row("Bayes limit", accuracy, nll);
        }
        writeln!(f, "{table}{}", self.footnote())
    }
}

impl Report {
    fn footnote(&self) -> String {
        let n = thousands(self.n_windows as u64);
        if self.exact {
            return format!(
                "exact: all {n} possible windows, each weighed by its true probability"
            );
        }
        // Weather from a file has no third split: early stopping and `select` have used these windows, too.
        let windows =
            if self.bayes_nll.is_none() { "windows held out for validation" } else { "windows" };
        format!(
            "over {n} {windows}; standard error of the transformer {:.4} and {:.4}",
            self.accuracy_standard_error, self.nll_standard_error
        )
    }
}
