//! Whose scores a report has, and how the names in `report.json` say so.
//!
//! A score of the model has the name of its metric, `accuracy`; that of a baseline or of the Bayes limit begins with
//! whose it is, `bayes_accuracy`. A masked language model has two groups instead, `commonest` and `weather`. These
//! names have never changed, so the report of every run is read alike.

use serde::Serialize;
use serde_json::Value;

/// Whose predictions are scored: the model's, those of a baseline, or the best possible ones. In the order of the rows
/// of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Predictor {
    /// A baseline: all answers are as likely.
    Chance,
    /// A baseline: the most frequent answer in training, or by the rule that draws the data.
    Majority,
    /// A baseline: the most frequent value of the example, whatever its key.
    Unbound,
    /// A baseline: the mean number in training.
    Mean,
    /// A baseline: the most frequent answer in training under the same outermost operation.
    RootOperator,
    /// A baseline: multinomial logistic regression.
    Linear,
    /// A baseline: a table of the training examples.
    Lookup,
    /// The model of the run.
    Model,
    /// A baseline: the frequencies of the tokens.
    Unigram,
    /// A baseline: what followed the last tokens before.
    Bigram,
    /// A baseline: always the most frequent token.
    Commonest,
    /// The limit: the true distribution.
    Bayes,
}

/// Each predictor, the start of its names in JSON, if they have a common one, and its name in charts and pages.
const PREDICTORS: [(Predictor, Option<&str>, &str); 12] = [
    (Predictor::Chance, Some("chance_"), "chance"),
    (Predictor::Majority, Some("majority_"), "majority"),
    (Predictor::Unbound, Some("unbound_"), "most frequent value"),
    (Predictor::Mean, None, "mean"),
    (Predictor::RootOperator, Some("root_operator_"), "root operator"),
    (Predictor::Linear, Some("linear_"), "linear"),
    (Predictor::Lookup, Some("lookup_"), "lookup table"),
    (Predictor::Unigram, Some("unigram_"), "token frequencies"),
    (Predictor::Bigram, Some("bigram_"), "pairs of tokens"),
    (Predictor::Commonest, None, "commonest token"),
    (Predictor::Bayes, Some("bayes_"), "Bayes limit"),
    // The last, because every name begins so.
    (Predictor::Model, Some(""), "transformer"),
];

impl Predictor {
    /// What charts and pages call it.
    pub fn name(self) -> &'static str {
        self.described().1
    }

    /// The name of its score of `metric` in JSON; `None` if such names have nothing in common.
    pub fn key(self, metric: &str) -> Option<String> {
        Some(format!("{}{metric}", self.described().0?))
    }

    /// The predictor and the metric of a name in JSON; the model and the name itself if it begins with no other.
    pub fn of_key(key: &str) -> (Self, &str) {
        let found =
            |&(one, start, _): &(Self, Option<&str>, _)| Some((one, key.strip_prefix(start?)?));
        PREDICTORS.iter().find_map(found).unwrap_or((Self::Model, key))
    }

    fn described(self) -> (Option<&'static str>, &'static str) {
        let found = PREDICTORS.iter().find(|(one, ..)| *one == self);
        let (_, start, name) = found.expect("invariant: every predictor is in the list");
        (*start, name)
    }
}

/// A score that those of a model are compared with. Serialised for charts: name and value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReferenceScore {
    /// The metric.
    #[serde(skip)]
    pub metric: String,
    /// Who reaches it.
    #[serde(skip)]
    pub predictor: Predictor,
    /// What charts and pages call the predictor.
    pub name: String,
    /// The score.
    pub value: f64,
}

impl ReferenceScore {
    /// The score of a predictor under its usual name.
    pub fn new(predictor: Predictor, metric: impl Into<String>, value: f64) -> Self {
        Self { metric: metric.into(), predictor, name: predictor.name().to_owned(), value }
    }

    /// The scores in a `report.json`, in its order.
    pub fn read(report: &Value) -> Vec<Self> {
        let named = report.as_object().into_iter().flatten().filter_map(|(key, value)| {
            let (predictor, metric) = Predictor::of_key(key);
            Some(Self::new(predictor, metric, value.as_f64()?))
        });
        let mut scores: Vec<Self> = named.filter(|one| one.predictor != Predictor::Model).collect();
        let commonest = &report["commonest"];
        let name = format!("always “{}”", commonest["token"].as_str().unwrap_or_default());
        scores.extend(["accuracy", "loss"].into_iter().filter_map(|metric| {
            let score = Self::new(Predictor::Commonest, metric, commonest[metric].as_f64()?);
            Some(Self { name: name.clone(), ..score })
        }));
        scores.extend(report["weather"].as_array().into_iter().flatten().filter_map(|weather| {
            let metric = format!("weather_accuracy_{}", weather["language"].as_str()?);
            Some(Self::new(Predictor::Bayes, metric, weather["limit"]["accuracy"].as_f64()?))
        }));
        scores
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_in_json_tell_whose_they_are() {
        for (predictor, start, _) in PREDICTORS {
            let Some(start) = start else { continue };
            let key = predictor.key("accuracy").unwrap();
            assert_eq!(key, format!("{start}accuracy"));
            assert_eq!(Predictor::of_key(&key), (predictor, "accuracy"));
        }
        assert_eq!(Predictor::of_key("n_windows"), (Predictor::Model, "n_windows"));
    }

    #[test]
    fn a_report_of_masked_tokens_tells_what_they_are_compared_with() {
        let report = json!({
            "accuracy": 0.4, "loss": 2., "perplexity": 7.4, "n_masked": 3,
            "commonest": { "token": "the", "accuracy": 0.2, "loss": null },
            "weather": [{ "language": "english", "accuracy": 0.5, "limit": { "accuracy": 0.8 } }],
        });
        let read = ReferenceScore::read(&report);
        let read: Vec<_> = read.iter().map(|one| (&*one.metric, &*one.name, one.value)).collect();
        let limit = ("weather_accuracy_english", "Bayes limit", 0.8);
        assert_eq!(read, [("accuracy", "always “the”", 0.2), limit]);
    }
}
