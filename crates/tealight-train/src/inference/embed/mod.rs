//! Sentence embeddings: one vector for each text, pooled from the hidden states of an encoder (Reimers & Gurevych
//! 2019, <https://arxiv.org/abs/1908.10084>, §3).
//!
//! ```text
//! mean   e = 1/T Σ_t h_t          h_1 … h_T: the last hidden states of the tokens, special ones included
//! cls    e = h_1
//! max    e_i = max_t h_{t,i}
//!
//! normalised   e / max(‖e‖₂, 10⁻¹²)
//! ```
//!
//! The same vectors as `SentenceTransformer.encode` of sentence-transformers, up to rounding. A text's vector does not
//! depend on the other texts: attention that would mix them, or that padding would change, gets one text at a time.

mod settings;
mod vectors;

use std::cmp::Reverse;
use std::ops::Range;

use candle_core::{DType, Device};
use tealight_model::block::BlockInput;
use tealight_model::embedding::Input;
use tealight_model::transformer::Transformer;
use tealight_model::{Mask, Mode, ModelConfig};

use crate::data::padded_to;
use crate::data::text::tokenizer::{Tokenizer, Truncated};
use crate::error::{Error, Result};
pub use settings::{Normalize, Pooling, Settings, to_unit_length};
pub use vectors::{Embeddings, Neighbour};

/// The maximal number of positions in one forward pass, unless one text alone has more.
const MAX_POSITIONS: usize = 4096;
/// The padding that a batch may have in any case, in positions: about what a separate forward pass costs.
const FREE_PADDING: usize = 128;
/// Beyond that, the largest share of padding in a batch: one position of this many.
const PADDING_SHARE: usize = 16;

/// Texts → vectors, by an encoder with its tokenizer. It may be shared between threads.
#[derive(Debug)]
pub struct Embedder {
    encoder: Transformer,
    tokenizer: Tokenizer,
    device: Device,
    settings: Settings,
    d_model: usize,
    /// The most tokens of a text.
    longest: usize,
    /// The length that all texts are padded to, if the attention requires one.
    only_len: Option<usize>,
    /// Whether texts of different lengths may share a batch.
    shares_batches: bool,
}

impl Embedder {
    /// For an `encoder` that is built without gradients on `device` with the settings `config`.
    ///
    /// # Errors
    /// If there is no pooling, or if `settings.truncate_dim` or `settings.max_seq_len` is impossible for the model.
    pub fn new(
        encoder: Transformer,
        config: &ModelConfig,
        tokenizer: &Tokenizer,
        settings: Settings,
        device: &Device,
    ) -> Result<Self> {
        let (d_model, only_len) = (config.d_model, config.only_len());
        let dim = settings.pooled_dim(d_model);
        let truncated = settings.truncate_dim.unwrap_or(dim);
        if !(1..=dim).contains(&truncated) {
            let message = format!("`truncate_dim` = {truncated} is not one of 1 to {dim}");
            return Err(Error::config(["truncate_dim"], message));
        }
        let limit = only_len.unwrap_or(encoder.max_seq_len());
        let longest = settings.max_seq_len.unwrap_or(limit).min(limit);
        let tokenizer =
            if settings.lowercase { tokenizer.lowercasing()? } else { tokenizer.clone() };
        let n_added = tokenizer.n_added();
        if longest < n_added.max(1) {
            let message = format!(
                "`max_seq_length` = {longest} leaves no room for the {n_added} special tokens of a text"
            );
            return Err(Error::config(["max_seq_length"], message));
        }
        let (device, shares_batches) = (device.clone(), config.ignores_padding());
        Ok(Self {
            encoder,
            tokenizer,
            device,
            settings,
            d_model,
            longest,
            only_len,
            shares_batches,
        })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The number of tokens, special ones included, to which longer texts are truncated.
    pub fn max_seq_len(&self) -> usize {
        self.longest
    }

    /// The length of a vector.
    pub fn dim(&self) -> usize {
        self.settings.truncate_dim.unwrap_or(self.settings.pooled_dim(self.d_model))
    }

    /// The vectors of `texts`, in their order. Texts are sorted by length, padded and evaluated in batches.
    ///
    /// # Errors
    /// If a text has no tokens, as an empty one with a tokenizer that adds none.
    pub fn embed(&self, texts: &[String]) -> Result<Embeddings> {
        self.embed_with_prompt(&self.settings.prompt, texts)
    }

    /// [`Self::embed`] with another text before each of `texts` than [`Settings::prompt`].
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn embed_with_prompt(&self, prompt: &str, texts: &[String]) -> Result<Embeddings> {
        let encoded = self.encode(prompt, texts)?;
        let mut order: Vec<usize> = (0..encoded.len()).collect();
        order.sort_by_key(|&at| Reverse(encoded[at].ids.len()));
        let lens: Vec<usize> = order.iter().map(|&at| encoded[at].ids.len()).collect();
        let dim = self.dim();
        let mut values = vec![0.; texts.len() * dim];
        for batch in self.batches(&lens) {
            let rows: Vec<&[u32]> =
                order[batch.clone()].iter().map(|&at| &*encoded[at].ids).collect();
            let hidden = self.hidden(&rows)?;
            let width = hidden.len() / rows.len();
            for ((&at, row), states) in order[batch].iter().zip(&rows).zip(hidden.chunks(width)) {
                let states = &states[..row.len() * self.d_model];
                self.settings.pool(states, self.d_model, &mut values[at * dim..][..dim]);
            }
        }
        let n_truncated = encoded.iter().filter(|text| text.is_truncated).count();
        Ok(Embeddings { values, dim, n_truncated })
    }

    /// The last hidden states of the tokens of each text, special ones included: `(seq_len, d_model)` by rows, as the
    /// pipeline `feature-extraction` of `transformers`. Texts are evaluated one by one.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn states(&self, texts: &[String]) -> Result<Vec<Vec<Vec<f32>>>> {
        let states = |text: Truncated| {
            let hidden = self.hidden(&[&text.ids])?;
            let rows = hidden.chunks(self.d_model).take(text.ids.len());
            Ok(rows.map(<[f32]>::to_vec).collect())
        };
        self.encode("", texts)?.into_iter().map(states).collect()
    }

    /// The tokens of each text, on all threads.
    fn encode(&self, prompt: &str, texts: &[String]) -> Result<Vec<Truncated>> {
        let prompted: Vec<String>;
        let texts = if prompt.is_empty() {
            texts
        } else {
            prompted = texts.iter().map(|text| format!("{prompt}{text}")).collect();
            &prompted
        };
        let encoded = self.tokenizer.encode_all_truncated(
            texts,
            self.longest,
            self.settings.truncated_side,
        )?;
        match encoded.iter().position(|text| text.ids.is_empty()) {
            None => Ok(encoded),
            Some(at) => {
                let rule = "it has no tokens, and the tokenizer of this model adds none";
                Err(Error::text(&texts[at], rule))
            }
        }
    }

    /// Ranges of texts with these `lens`, which fall, for one forward pass each.
    fn batches(&self, lens: &[usize]) -> Vec<Range<usize>> {
        if self.shares_batches {
            batches(lens)
        } else {
            (0..lens.len()).map(|at| at..at + 1).collect()
        }
    }

    /// The last hidden states `(batch, seq_len, d_model)`, flat, of rows of ids, the longest first.
    fn hidden(&self, rows: &[&[u32]]) -> Result<Vec<f32>> {
        let pad = self.tokenizer.special().pad.unwrap_or(0);
        let width = self.only_len.unwrap_or(rows[0].len());
        let ids: Vec<Vec<u32>> = rows.iter().map(|row| row.to_vec()).collect();
        let (ids, mut mask) = padded_to(width, &ids, pad, &self.device)?;
        if rows.iter().all(|row| row.len() == width) {
            mask = Mask::none();
        }
        let hidden =
            self.encoder.forward(&Input::tokens(&ids), &BlockInput::new(&mask, Mode::Eval))?;
        let hidden = hidden.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        Ok(hidden.flatten_all()?.to_vec1()?)
    }
}

/// Ranges of `lens`, which fall, that are padded to their first: at most [`MAX_POSITIONS`] positions, unless one text
/// has more, and so much padding that another forward pass would not be faster.
fn batches(lens: &[usize]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut padding) = (0, 0);
    for (at, &len) in lens.iter().enumerate() {
        let positions = (at + 1 - start) * lens[start];
        padding += lens[start] - len;
        let is_full = positions > MAX_POSITIONS && at > start;
        if is_full || padding > FREE_PADDING.max(positions / PADDING_SHARE) {
            batches.push(start..at);
            (start, padding) = (at, 0);
        }
    }
    if start < lens.len() {
        batches.push(start..lens.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_all_texts_with_little_padding() {
        let mut lens: Vec<usize> = (0..1009).map(|n| 3 + n % 7 + n / 11).collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        let batches = batches(&lens);
        assert_eq!(
            batches.iter().flat_map(Clone::clone).collect::<Vec<_>>(),
            (0..1009).collect::<Vec<_>>()
        );
        for batch in &batches {
            let positions = batch.len() * lens[batch.start];
            let padding: usize =
                lens[batch.clone()].iter().map(|len| lens[batch.start] - len).sum();
            assert!(positions <= MAX_POSITIONS, "{batch:?}");
            assert!(padding <= FREE_PADDING.max(positions / PADDING_SHARE), "{batch:?}: {padding}");
        }
        assert!(batches.len() < 40, "{}", batches.len());
    }

    #[test]
    fn a_text_that_is_longer_than_a_batch_is_evaluated_alone() {
        assert_eq!(batches(&[9000, 9000, 4096, 3]), [0..1, 1..2, 2..3, 3..4]);
        assert!(batches(&[]).is_empty());
    }
}
