//! The answers of a model to a few fixed examples, which a user compares over the steps of a run.

use serde::{Deserialize, Serialize};

use crate::data::images::Picture;

/// A fixed example, and the model's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The input of the model.
    pub input: String,
    /// The right answer, if it is known: one text, or one for each mask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub truth: Vec<String>,
    /// The text that the model writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The likeliest answers, the likeliest first: once, or once for each mask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Vec<Candidate>>,
    /// Whether the answer is right, where the candidates and the truth do not tell: of several labels, all must be given and
    /// no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_right: Option<bool>,
    /// The picture that `input` names. A run keeps it as a file of its own.
    #[serde(skip)]
    pub picture: Option<Picture>,
}

/// An answer and its probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// A token, a class, a day.
    pub text: String,
    /// `None` where it is not finite.
    pub probability: Option<f64>,
}

/// Examples of a run.
pub(crate) const N_SAMPLES: usize = 3;
/// Candidates of an answer.
const N_CANDIDATES: usize = 5;

/// The likeliest of `names` by `probabilities`, to four digits.
pub(crate) fn likeliest<S: Into<String>>(
    named: impl IntoIterator<Item = (S, f64)>,
) -> Vec<Candidate> {
    let mut named: Vec<(S, f64)> = named.into_iter().collect();
    named.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    named.truncate(N_CANDIDATES);
    let candidate = |(name, p): (S, f64)| Candidate { text: name.into(), probability: rounded(p) };
    named.into_iter().map(candidate).collect()
}

fn rounded(probability: f64) -> Option<f64> {
    probability.is_finite().then(|| (probability * 1e4).round() / 1e4)
}
