//! Texts generated from texts by an encoder-decoder with a tokenizer, such as T5.
//!
//! ```text
//! encoder  x₁ … x_n </s>           decoder  <pad> y₁ … y_m → y₁ … y_m </s>
//! ```
//!
//! As in T5, the first token of the decoder is padding.

use candle_core::{Device, Tensor};
use tealight_model::attention::Memory;
use tealight_model::generation::{Sequence, StopRules, Strategy, generate};
use tealight_model::models::seq2seq::{CachedPredictor, Seq2Seq, Seq2SeqSpec, Tokens};
use tealight_model::{Mask, Mode};

use crate::data::text::tokenizer::{Specials, Tokenizer};
use crate::error::{Error, Result};
use crate::pretrained::purpose::Purpose;
use crate::pretrained::{Pretrained, check_n_tokens};
use crate::task::seq2seq::{Translation, check};

/// An encoder-decoder with its tokenizer.
#[derive(Debug)]
pub struct Translator<'a> {
    model: Seq2Seq,
    tokenizer: &'a Tokenizer,
    device: &'a Device,
    /// The first token of the decoder.
    begin: u32,
    source_len: usize,
    target_len: usize,
}

impl<'a> Translator<'a> {
    /// Builds the encoder-decoder of `pretrained` on `device`.
    ///
    /// # Errors
    /// If the model is not an encoder-decoder, or has no tokenizer.
    pub fn new(pretrained: &'a Pretrained, device: &'a Device) -> Result<Self> {
        let model = pretrained.seq2seq(device)?;
        let tokenizer = pretrained.tokenizer()?;
        let Purpose::Seq2Seq { spec, begin_id } = pretrained.purpose else {
            unreachable!("invariant: only an encoder-decoder is built as one")
        };
        let Seq2SeqSpec { source_len, target_len, .. } = spec;
        let Some(begin) = begin_id.or(tokenizer.special().pad) else {
            return Err(Error::NoTokenizer(pretrained.origin.clone()));
        };
        Ok(Self { model, tokenizer, device, begin, source_len, target_len })
    }

    /// Generates texts of up to `max_len` tokens for each text: one, or one per beam, best first.
    pub fn translate(
        &self,
        texts: &[String],
        strategy: &Strategy,
        max_len: Option<usize>,
    ) -> Result<Vec<Vec<Translation>>> {
        check(strategy, max_len, self.target_len)?;
        let max_len = max_len.unwrap_or(self.target_len);
        texts.iter().map(|text| self.translate_one(text, strategy, max_len)).collect()
    }

    fn translate_one(
        &self,
        text: &str,
        strategy: &Strategy,
        max_len: usize,
    ) -> Result<Vec<Translation>> {
        let ids = self.tokenizer.encode(text)?.ids;
        let n = ids.len();
        check_n_tokens(text, n, self.source_len)?;
        let source = Tensor::from_vec(ids, (1, n), self.device)?;
        let mask = &Mask::none();
        let states = &self.model.encode(Tokens { ids: &source, mask }, Mode::Eval)?;
        let never = [self.begin];
        let mut predictor = CachedPredictor::new(&self.model, Memory { states, mask }, &never)?;
        let stop = Vec::from_iter(self.tokenizer.special().end);
        let ends = StopRules { stop: &stop, max_len };
        let written = generate(&mut predictor, &[vec![self.begin]], &ends, strategy)?;
        let translation = |sequence: Sequence| {
            let text = self.tokenizer.decode(&sequence.ids, Specials::Skip)?;
            Ok(Translation::new(text, &sequence))
        };
        written.into_iter().flatten().map(translation).collect()
    }
}
