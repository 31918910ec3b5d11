//! The settings of an embedding, and the pooling of hidden states.

use std::collections::BTreeMap;

use tealight_model::models::pooling::{LEAST_NORM, Normalize, Pooling};

use super::dense::Dense;
use crate::data::text::tokenizer::Side;
use crate::error::{Error, Result};

/// The settings of a model's embeddings, which files beside its parameters give. The default is
/// sentence-transformers' for a folder without such files: mean pooling, not normalised.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The poolings, whose vectors are concatenated.
    pub poolings: Vec<Pooling>,
    /// Linear maps of the pooled vector, one after the other.
    pub dense: Vec<Dense>,
    /// Whether vectors get length 1.
    pub normalize: Normalize,
    /// Only the first dimensions are returned (Kusupati et al. 2022, <https://arxiv.org/abs/2205.13147>).
    pub truncate_dim: Option<usize>,
    /// Longer texts are truncated to this many tokens, special ones included; at most the model's own limit.
    pub max_seq_len: Option<usize>,
    /// The side on which they lose tokens.
    pub truncated_side: Side,
    /// Texts are converted to lower case before the tokenizer's own rules.
    pub lowercase: bool,
    /// Put before each text.
    pub prompt: String,
}

/// How a model embeds texts, as its folder or its run says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentenceSettings {
    /// The settings, with the prompt that the folder applies by default.
    pub settings: Settings,
    /// All prompts by name; some are empty.
    pub prompts: BTreeMap<String, String>,
    /// The name of the default prompt.
    pub default_prompt: Option<String>,
    /// Whether the folder has the files; without them, the settings are sentence-transformers' default.
    pub is_stated: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poolings: vec![Pooling::Mean],
            dense: Vec::new(),
            normalize: Normalize::No,
            truncate_dim: None,
            max_seq_len: None,
            truncated_side: Side::Right,
            lowercase: false,
            prompt: String::new(),
        }
    }
}

impl Settings {
    /// The length of a vector of a model of width `d_model`, before [`Self::truncate_dim`] shortens it.
    pub(crate) fn whole_dim(&self, d_model: usize) -> usize {
        self.dense.last().map_or(self.poolings.len() * d_model, |dense| dense.n_out)
    }

    /// The length of a vector that is returned.
    ///
    /// # Errors
    /// If there is no pooling, or if [`Self::truncate_dim`] is longer than the vector.
    pub(crate) fn dim(&self, d_model: usize) -> Result<usize> {
        let whole = self.whole_dim(d_model);
        let dim = self.truncate_dim.unwrap_or(whole);
        if (1..=whole).contains(&dim) {
            return Ok(dim);
        }
        let message = format!("`truncate_dim` = {dim} is not one of 1 to {whole}");
        Err(Error::config(["truncate_dim"], message))
    }

    /// `states (seq_len, d_model)` of the tokens of a text → its `vector`, of the length that is returned.
    pub(super) fn pool(&self, states: &[f32], d_model: usize, vector: &mut [f32]) {
        let pooled = self.poolings.iter().flat_map(|pooling| pool(*pooling, states, d_model));
        let mut pooled =
            self.dense.iter().fold(pooled.collect(), |x: Vec<f32>, dense| dense.apply(&x));
        if self.normalize == Normalize::Pooled {
            to_unit_length(&mut pooled);
        }
        let n_kept = vector.len();
        vector.copy_from_slice(&pooled[..n_kept]);
        if self.normalize == Normalize::Returned {
            to_unit_length(vector);
        }
    }
}

/// `states (seq_len, d_model)` → `(d_model)`
fn pool(pooling: Pooling, states: &[f32], d_model: usize) -> Vec<f32> {
    let mut rows = states.chunks_exact(d_model);
    let first = rows.next().expect("invariant: a text has tokens").to_vec();
    match pooling {
        Pooling::Cls => first,
        Pooling::Max => rows.fold(first, |pooled, row| combined(pooled, row, f32::max)),
        Pooling::Mean => {
            let sum = rows.fold(first, |pooled, row| combined(pooled, row, |a, b| a + b));
            let n = (states.len() / d_model) as f32;
            sum.into_iter().map(|value| value / n).collect()
        }
    }
}

fn combined(mut pooled: Vec<f32>, row: &[f32], with: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    pooled.iter_mut().zip(row).for_each(|(pooled, &value)| *pooled = with(*pooled, value));
    pooled
}

/// Divides by the Euclidean norm.
pub fn to_unit_length(vector: &mut [f32]) {
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(LEAST_NORM);
    for value in vector {
        *value /= norm;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three tokens of two dimensions.
    const STATES: [f32; 6] = [1., -7., 2., 5., 6., -1.];

    #[test]
    fn poolings_are_those_of_their_formulas() {
        assert_eq!(pool(Pooling::Mean, &STATES, 2), [3., -1.]);
        assert_eq!(pool(Pooling::Cls, &STATES, 2), [1., -7.]);
        assert_eq!(pool(Pooling::Max, &STATES, 2), [6., 5.]);
        let mut vector = [3., -4.];
        to_unit_length(&mut vector);
        assert_eq!(vector, [0.6, -0.8]);
        let mut zeros = [0.; 3];
        to_unit_length(&mut zeros);
        assert_eq!(zeros, [0.; 3]);
    }

    #[test]
    fn a_vector_is_normalised_before_or_after_it_is_shortened() {
        let pooled = |normalize| {
            let poolings = vec![Pooling::Mean, Pooling::Max];
            let settings = Settings { poolings, normalize, ..Settings::default() };
            let mut vector = [0.; 3];
            settings.pool(&STATES, 2, &mut vector);
            vector
        };
        assert_eq!(pooled(Normalize::No), [3., -1., 6.]);
        assert_eq!(pooled(Normalize::Pooled), [3., -1., 6.].map(|x: f32| x / 71_f32.sqrt()));
        assert_eq!(pooled(Normalize::Returned), [3., -1., 6.].map(|x: f32| x / 46_f32.sqrt()));
    }
}
