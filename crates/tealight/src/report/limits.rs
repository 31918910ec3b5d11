//! Values to compare a run with: the Bayes limit and the baselines of its final evaluation.

use serde::Serialize;
use serde_json::Value;

use super::read::RunData;

/// A value that a metric is compared with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Limit {
    #[serde(skip)]
    pub(super) metric: String,
    /// What reaches it.
    pub(super) name: String,
    pub(super) value: f64,
}

/// The prefix of a baseline's values in a report, and its name here, in the order of the table of results.
pub(super) const BASELINES: [(&str, &str); 6] = [
    ("majority_", "majority"),
    ("unigram_", "token frequencies"),
    ("root_operator_", "root operator"),
    ("linear_", "linear"),
    ("lookup_", "lookup table"),
    ("bayes_", BAYES),
];
pub(super) const BAYES: &str = "Bayes limit";

/// The limits of a run. The Bayes limit of the weather follows from its rule, so it is known before the run is
/// finished.
pub(super) fn limits(run: &RunData) -> Vec<Limit> {
    let mut limits = of_rule(run);
    let report = run.report.as_ref().and_then(Value::as_object).into_iter().flatten();
    for (key, value) in report {
        let baseline =
            BASELINES.iter().find_map(|(start, name)| Some((key.strip_prefix(start)?, name)));
        if let (Some((metric, name)), Some(value)) = (baseline, value.as_f64())
            && !limits.iter().any(|limit| limit.metric == metric && limit.name == *name)
        {
            limits.push(Limit { metric: metric.to_owned(), name: (*name).to_owned(), value });
        }
    }
    if let Some(report) = &run.report {
        limits.extend(of_masked_tokens(report));
    }
    limits
}

/// Those of a masked language model: always the commonest token, and the best prediction of the weather in diaries.
fn of_masked_tokens(report: &Value) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut add = |metric: String, name: &str, value: &Value| {
        let name = name.to_owned();
        limits.extend(value.as_f64().map(|value| Limit { metric, name, value }));
    };
    let commonest = &report["commonest"];
    let name = format!("always “{}”", commonest["token"].as_str().unwrap_or_default());
    add("accuracy".to_owned(), &name, &commonest["accuracy"]);
    add("loss".to_owned(), &name, &commonest["loss"]);
    for weather in report["weather"].as_array().into_iter().flatten() {
        let language = weather["language"].as_str().unwrap_or_default();
        add(format!("weather_accuracy_{language}"), BAYES, &weather["limit"]["accuracy"]);
    }
    limits
}

/// The Bayes limit of weather that is drawn from a rule.
fn of_rule(run: &RunData) -> Vec<Limit> {
    let limit =
        |metric: &str, value| Limit { metric: metric.to_owned(), name: BAYES.to_owned(), value };
    run.bayes().map_or_else(Vec::new, |score| {
        vec![limit("accuracy", score.accuracy), limit("nll", score.nll)]
    })
}
