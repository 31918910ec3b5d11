//! The scores of a model beside its baselines and the Bayes limit.

use serde_json::Value;
use tealight_model::models::forecaster::Forecaster;
use tealight_ops::rng::{Purpose, Stream};

use super::Weather;
use super::data::N_EXAMPLES;
use crate::data::weather::{Evaluation, Examples, Linear, Lookup, Method, Score, majority};
use crate::error::Result;
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::table::thousands;

/// Windows drawn where there are too many to evaluate them all.
const N_SAMPLED: usize = 20_000;

/// Seed of these windows and of the lookup table's examples, for every run.
const EVALUATION_SEED: u64 = 0;

/// Scores on the same windows: accuracy, and cross-entropy with the true distribution in nats. The lookup table knows
/// the windows in the training examples, or in 5,000 examples where every batch is new.
pub(super) fn report(task: &Weather, model: &Forecaster) -> Result<Report> {
    let window = task.config.window;
    let stream = Stream::new(EVALUATION_SEED, Purpose::Data);
    let generator = task.data.generator.as_deref();
    let evaluation = match generator {
        Some(generator) => Evaluation::new(generator, window, N_SAMPLED, stream.fork(0))?,
        None => Evaluation::empirical(&task.data.validation),
    };
    let examples = match (task.training_examples(), generator) {
        (Some(examples), _) => examples,
        (None, Some(generator)) => &Examples::sample(generator, window, N_EXAMPLES, stream.fork(1)),
        (None, None) => unreachable!("invariant: examples from a file are a fixed set"),
    };
    let (linear, linear_examples) = match task.training_examples() {
        Some(examples) => (Linear::fit(examples), Some(examples.len())),
        None => (Linear::ceiling(&evaluation), None),
    };
    let forecasts = task.forecast(model, &evaluation.windows, window)?;
    let scores = |score: Score| [("accuracy", score.accuracy), ("nll", score.nll)];
    let scores_of = |forecasts: &[_]| scores(evaluation.score(forecasts));
    let model = evaluation.score(&forecasts);

    let mut report = Report::new(&[("accuracy", "accuracy"), ("nll", "NLL")]);
    report.model(scores(model));
    if let Some(limit) = generator.map(|generator| generator.bayes(window)) {
        report.row(Predictor::Bayes, "Bayes limit", scores(limit));
    } else {
        for unknown in ["bayes_accuracy", "bayes_nll"] {
            report.value(unknown, Value::Null);
        }
    }
    let name = match linear_examples {
        Some(n) => format!("linear ({} examples)", thousands(n as u64)),
        None => "linear (its ceiling)".to_owned(),
    };
    report.row(Predictor::Linear, name, scores_of(&linear.predict(&evaluation)));
    let name = format!("lookup table ({} examples)", thousands(examples.len() as u64));
    let lookup = Lookup::memorise(examples).predict(&evaluation);
    report.row(Predictor::Lookup, name, scores_of(&lookup));
    report.row(Predictor::Majority, "majority", scores_of(&majority(&evaluation)));
    report.value("exact", evaluation.method == Method::Exact);
    report.value("n_windows", evaluation.len());
    report.value("accuracy_standard_error", model.accuracy_standard_error);
    report.value("nll_standard_error", model.nll_standard_error);
    report.value("linear_examples", linear_examples);
    report.value("lookup_examples", examples.len());
    report.footnote = footnote(&evaluation, &model, generator.is_none() && !task.is_test);
    Ok(report)
}

/// `is_validation`: early stopping and the choice of the checkpoint have used these windows, too.
fn footnote(evaluation: &Evaluation, model: &Score, is_validation: bool) -> String {
    let n = thousands(evaluation.len() as u64);
    if evaluation.method == Method::Exact {
        return format!("exact: all {n} possible windows, each weighed by its true probability");
    }
    let held_out = held_out_if(is_validation);
    format!(
        "over {n} windows{held_out}; standard error of the transformer {:.4} and {:.4}",
        model.accuracy_standard_error, model.nll_standard_error
    )
}
