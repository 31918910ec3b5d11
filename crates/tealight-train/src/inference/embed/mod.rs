//! Sentence embeddings: one vector for each text, pooled from the hidden states of an encoder (Reimers & Gurevych
//! 2019, <https://arxiv.org/abs/1908.10084>, §3).
//!
//! ```text
//! mean   e = 1/T Σ_t h_t          h_1 … h_T: the last hidden states of the tokens, special ones included
//! cls    e = h_1
//! max    e_i = max_t h_{t,i}
//!
//! dense        φ(W e + b)
//! normalised   e / max(‖e‖₂, 10⁻¹²)
//! ```
//!
//! The same vectors as `SentenceTransformer.encode` of sentence-transformers, up to rounding. A text's vector does not
//! depend on the other texts: attention that would mix them, or that padding would change, gets one text at a time.

pub(crate) mod dense;
mod mining;
mod settings;
mod vectors;

use candle_core::{DType, Device};
use tealight_model::block::BlockInput;
use tealight_model::embedding::Input;
use tealight_model::transformer::Transformer;
use tealight_model::{Mask, Mode, ModelConfig};

use crate::data::padded_to;
use crate::data::text::tokenizer::{Tokenizer, Truncated};
use crate::error::{Error, Result};
use crate::inference::batches::Batching;
use crate::inference::check_finite;
pub use dense::Dense;
pub use mining::Mining;
pub use settings::{SentenceSettings, Settings, to_unit_length};
pub use tealight_model::models::pooling::{DenseActivation, Normalize, Pooling};
pub use vectors::{Embeddings, Neighbour};

/// Texts → vectors, by an encoder with its tokenizer. It may be shared between threads.
#[derive(Debug)]
pub struct Embedder {
    encoder: Transformer,
    tokenizer: Tokenizer,
    device: Device,
    settings: Settings,
    d_model: usize,
    /// The length of a vector.
    dim: usize,
    /// The most tokens of a text.
    longest: usize,
    /// The length that all texts are padded to, if the attention requires one.
    required_len: Option<usize>,
    batching: Batching,
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
        let (d_model, required_len) = (config.d_model, config.required_len());
        let dim = settings.dim(d_model)?;
        let limit = required_len.unwrap_or(encoder.max_seq_len());
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
        let device = device.clone();
        let batching = if config.ignores_padding() { Batching::Padded } else { Batching::OneByOne };
        Ok(Self {
            encoder,
            tokenizer,
            device,
            settings,
            d_model,
            dim,
            longest,
            required_len,
            batching,
        })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The tokenizer, which converts texts to lower case if the settings say so.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The number of tokens, special ones included, to which longer texts are truncated.
    pub fn max_seq_len(&self) -> usize {
        self.longest
    }

    /// The length of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The vectors of `texts`, in their order. Texts are sorted by length, padded and evaluated in batches.
    ///
    /// # Errors
    /// If a text has no tokens, as an empty one with a tokenizer that adds none; or if a hidden state is not finite.
    pub fn embed(&self, texts: &[String]) -> Result<Embeddings> {
        self.embed_with_prompt(&self.settings.prompt, texts)
    }

    /// [`Self::embed`] with another text before each of `texts` than [`Settings::prompt`].
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn embed_with_prompt(&self, prompt: &str, texts: &[String]) -> Result<Embeddings> {
        let encoded = self.encode(prompt, texts)?;
        let lens: Vec<usize> = encoded.iter().map(|text| text.ids.len()).collect();
        let dim = self.dim;
        let mut values = vec![0.; texts.len() * dim];
        for batch in self.batching.batches(&lens) {
            let rows: Vec<&[u32]> = batch.iter().map(|&at| &*encoded[at].ids).collect();
            let hidden = self.hidden(&rows)?;
            let width = hidden.len() / rows.len();
            for ((&at, row), states) in batch.iter().zip(&rows).zip(hidden.chunks(width)) {
                let states = &states[..row.len() * self.d_model];
                check_finite(states)?;
                self.settings.pool(states, self.d_model, &mut values[at * dim..][..dim]);
            }
        }
        let are_truncated = encoded.iter().map(|text| text.is_truncated).collect();
        Ok(Embeddings { values, dim, are_truncated, lens })
    }

    /// The last hidden states of the tokens of each text, special ones included: `(seq_len, d_model)` by rows, as the
    /// pipeline `feature-extraction` of `transformers`. Texts are evaluated one by one.
    ///
    /// # Errors
    /// As [`Self::embed`], or if the states of all texts have more than `max_numbers` numbers, before any is computed.
    pub fn states(&self, texts: &[String], max_numbers: usize) -> Result<Vec<Vec<Vec<f32>>>> {
        let encoded = self.encode("", texts)?;
        let n_tokens: usize = encoded.iter().map(|text| text.ids.len()).sum();
        let d_model = self.d_model;
        if n_tokens * d_model > max_numbers {
            let rule = format!(
                "{n_tokens} tokens with `d_model` = {d_model} make {} numbers, and the limit is {max_numbers}: send fewer \
                 texts",
                n_tokens * d_model
            );
            return Err(Error::input(rule));
        }
        let states = |text: Truncated| {
            let hidden = self.hidden(&[&text.ids])?;
            let rows = hidden.chunks(self.d_model).take(text.ids.len());
            check_finite(rows.clone().flatten())?;
            Ok(rows.map(<[f32]>::to_vec).collect())
        };
        encoded.into_iter().map(states).collect()
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

    /// The last hidden states `(batch, seq_len, d_model)`, flat, of rows of ids, the longest first.
    fn hidden(&self, rows: &[&[u32]]) -> Result<Vec<f32>> {
        let pad = self.tokenizer.special().pad.unwrap_or(0);
        let width = self.required_len.unwrap_or(rows[0].len());
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
