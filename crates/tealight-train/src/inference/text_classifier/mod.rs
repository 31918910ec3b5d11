//! The classes, labels or numbers that a classifier gives to texts.

pub(crate) mod encoder;
pub(crate) mod rows;

use std::borrow::Cow;

use candle_core::{Device, Tensor};
use tealight_model::Mode;
use tealight_model::models::classifier::Classifier;

use super::attention_map::AttentionMap;
use super::batches::Batching;
use super::labels::{Classified, Labels, Objective};
use super::{check_finite, probabilities, values};
use crate::error::{Error, Result};
use encoder::{Encoder, Tokens};
use rows::Rows;

/// Tokens in one forward pass.
pub(crate) const MAX_TOKENS: usize = 1 << 14;

/// A text, or a pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text {
    /// The only text, or the first.
    pub text: String,
    /// The second text of a pair.
    pub text_pair: Option<String>,
}

/// The function between the output of a cross-encoder, a logit, and its score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The score is the logit.
    Identity,
    /// The score is σ(x) = 1/(1 + e⁻ˣ), from 0 to 1.
    Sigmoid,
}

impl Activation {
    /// The score of a logit.
    pub fn score(self, logit: f64) -> f64 {
        match self {
            Self::Identity => logit,
            Self::Sigmoid => 1. / (1. + (-logit).exp()),
        }
    }
}

/// A classifier with what reads its texts and names its outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextClassifier<'a> {
    /// Built without gradients.
    pub(crate) model: &'a Classifier,
    pub(crate) encoder: &'a Encoder,
    pub(crate) labels: &'a Labels,
    /// The length that the attention of the model requires.
    pub(crate) required_len: Option<usize>,
    pub(crate) device: &'a Device,
}

impl TextClassifier<'_> {
    /// The labels of texts, in their order: as the pipeline `text-classification` of `transformers`.
    ///
    /// # Errors
    /// If a text is empty, or if the scores of the model are not finite.
    pub(crate) fn classify(&self, texts: &[Text]) -> Result<Vec<Classified>> {
        let scores = self.of_each(texts, |rows| self.scores(rows))?;
        Ok(scores.iter().map(|(_, scores)| Classified::new(self.labels, scores)).collect())
    }

    /// The number of tokens that the model reads of each text, and its outputs, in the order of the texts.
    ///
    /// # Errors
    /// As [`Self::classify`].
    pub(crate) fn logits(&self, texts: &[Text]) -> Result<Vec<(usize, Vec<f64>)>> {
        self.of_each(texts, |rows| values(&self.outputs(rows)?))
    }

    /// The number of tokens of each text, and what `compute` gives for it, in batches, checked to be finite.
    fn of_each(
        &self,
        texts: &[Text],
        compute: impl Fn(&[&Tokens]) -> Result<Vec<Vec<f64>>>,
    ) -> Result<Vec<(usize, Vec<f64>)>> {
        let tokens = texts.iter().map(|text| self.tokens(text)).collect::<Result<Vec<_>>>()?;
        let lens: Vec<usize> = tokens.iter().map(|text| text.ids.len()).collect();
        let batching = match self.required_len {
            Some(_) => Batching::OneByOne,
            None => Batching::OneLength { max_positions: MAX_TOKENS },
        };
        let mut computed = vec![Vec::new(); texts.len()];
        for batch in batching.batches(&lens) {
            let rows: Vec<_> = batch.iter().map(|&at| &tokens[at]).collect();
            let of_rows = compute(&rows)?;
            check_finite(of_rows.iter().flatten())?;
            for (at, one) in batch.into_iter().zip(of_rows) {
                computed[at] = one;
            }
        }
        Ok(lens.into_iter().zip(computed).collect())
    }

    /// The tokens of a text that a user gives.
    pub(crate) fn tokens(&self, text: &Text) -> Result<Tokens> {
        let tokens = self.encoder.encode(text)?;
        if tokens.ids.is_empty() {
            return Err(Error::input("a text is empty: there is nothing to classify"));
        }
        Ok(tokens)
    }

    /// The scores of the outputs for each text: probabilities, or numbers of a regression.
    pub(crate) fn scores(&self, tokens: &[&Tokens]) -> Result<Vec<Vec<f64>>> {
        let logits = self.outputs(tokens)?;
        let sigmoid = |x: f64| 1. / (1. + (-x).exp());
        Ok(match self.labels.objective() {
            Objective::Classes => probabilities(&logits)?,
            Objective::Labels => {
                let rows = values(&logits)?.into_iter();
                rows.map(|row| row.into_iter().map(sigmoid).collect()).collect()
            }
            Objective::Regression => values(&logits)?,
        })
    }

    /// `(n, n_outputs)`
    fn outputs(&self, tokens: &[&Tokens]) -> Result<Tensor> {
        let rows = self.rows(tokens)?;
        Ok(self.model.forward(&rows.input(), &rows.mask, Mode::Eval)?)
    }

    /// The attention maps of a text.
    pub(crate) fn attention_maps(&self, tokens: &Tokens) -> Result<Vec<AttentionMap>> {
        let rows = self.rows(&[tokens])?;
        let layers = self.model.attention_maps(&rows.input(), &rows.mask)?;
        let mut ids = Cow::Borrowed(&tokens.ids);
        if let Some(len) = self.required_len {
            ids.to_mut().resize(len, self.encoder.pad());
        }
        Ok(AttentionMap::of_tokens(&self.encoder.tokenizer, &ids, layers))
    }

    fn rows(&self, tokens: &[&Tokens]) -> Result<Rows> {
        Rows::new(tokens, self.required_len.unwrap_or(0), self.encoder.pad(), self.device)
    }
}
