//! Texts written from texts, by an encoder-decoder.
//!
//! ```text
//! encoder  x₁ … x_n </s>           decoder  <pad> y₁ … y_m → y₁ … y_m </s>          with a tokenizer, such as T5
//! ```
//!
//! As in T5, the first token of the decoder is padding. A model of the task `seq2seq` has a vocabulary of symbols in
//! place of a tokenizer ([`symbols`](crate::inference::symbols)).

use candle_core::{Device, Tensor};
use tealight_model::attention::Memory;
use tealight_model::generation::{Sequence, StopRules, Strategy, generate};
use tealight_model::models::seq2seq::{CachedPredictor, Seq2Seq, Seq2SeqSpec, Tokens};
use tealight_model::{Mask, Mode, ModelSpec};

use super::Pipeline;
use crate::data::text::tokenizer::{Specials, Tokenizer};
use crate::error::{Error, Result};
use crate::inference::attention_map::AttentionMap;
use crate::inference::symbols::{SymbolTranslator, Translated, Vocabulary, check};
use crate::trained::{TrainedModel, check_n_tokens};

/// An encoder-decoder with what reads its sources and writes its targets.
#[derive(Debug)]
pub struct Translation {
    model: Seq2Seq,
    spec: Seq2SeqSpec,
    reader: Reader,
    device: Device,
}

/// What reads sources and writes targets.
#[derive(Debug)]
enum Reader {
    Symbols(Vocabulary),
    Tokens {
        tokenizer: Box<Tokenizer>,
        /// The first token of the decoder.
        begin: u32,
    },
}

/// Texts to translate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The sources.
    pub texts: Vec<String>,
    /// How targets are decoded.
    pub strategy: Strategy,
    /// The most tokens of a target; the limit of the model when absent.
    pub max_len: Option<usize>,
}

impl Pipeline for Translation {
    const NAME: &'static str = "translation";
    type Request = Request;
    /// For each text one translation, or one for each beam, best first.
    type Answer = Vec<Vec<Translated>>;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let Some(ModelSpec::Seq2Seq { spec, begin_id }) = model.spec else {
            return Err(model.wrong_kind("an encoder-decoder"));
        };
        let built = model.build(device, |vb| Seq2Seq::build(&model.config, &spec, vb))?;
        let reader = if let Some(vocabulary) = &model.readers.vocabulary {
            Reader::Symbols(vocabulary.clone())
        } else if model.run.is_some() && model.readers.tokenizer.is_none() {
            // A run keeps its vocabulary. If the file is missing, the error of `read` names it.
            Reader::Symbols(Vocabulary::read(&model.folder)?)
        } else {
            let tokenizer = model.tokenizer()?.clone();
            let begin = begin_id.or(tokenizer.special().pad);
            let rule = "it names no first token of the decoder, and its tokenizer has no padding in its place";
            let begin = begin.ok_or_else(|| Error::unusable(&model.config_file, &rule))?;
            Reader::Tokens { tokenizer: Box::new(tokenizer), begin }
        };
        Ok(Self { model: built, spec, reader, device: device.clone() })
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Self::Answer>> {
        let answer = |request: &&Request| {
            let Request { texts, strategy, max_len } = request;
            match &self.reader {
                Reader::Symbols(vocabulary) => {
                    self.symbols(vocabulary).translate(texts, strategy, *max_len)
                }
                Reader::Tokens { tokenizer, begin } => {
                    check(strategy, *max_len, self.spec.target_len)?;
                    let max_len = max_len.unwrap_or(self.spec.target_len);
                    let texts = texts.iter();
                    texts
                        .map(|text| self.write(text, tokenizer, *begin, strategy, max_len))
                        .collect()
                }
            }
        };
        requests.iter().map(answer).collect()
    }
}

impl Translation {
    /// The attention maps of a source and its output; `None` for a model with a tokenizer.
    pub(super) fn attention_maps(&self, source: &str) -> Result<Option<Vec<AttentionMap>>> {
        match &self.reader {
            Reader::Symbols(vocabulary) => {
                self.symbols(vocabulary).attention_maps(source).map(Some)
            }
            Reader::Tokens { .. } => Ok(None),
        }
    }

    fn symbols<'a>(&'a self, vocabulary: &'a Vocabulary) -> SymbolTranslator<'a> {
        let Self { model, spec, device, .. } = self;
        SymbolTranslator { model, spec: *spec, vocabulary, device }
    }

    fn write(
        &self,
        text: &str,
        tokenizer: &Tokenizer,
        begin: u32,
        strategy: &Strategy,
        max_len: usize,
    ) -> Result<Vec<Translated>> {
        let ids = tokenizer.encode(text)?.ids;
        let n = ids.len();
        check_n_tokens(text, n, self.spec.source_len)?;
        let source = Tensor::from_vec(ids, (1, n), &self.device)?;
        let mask = &Mask::none();
        let states = &self.model.encode(Tokens { ids: &source, mask }, Mode::Eval)?;
        let never = [begin];
        let mut predictor = CachedPredictor::new(&self.model, Memory { states, mask }, &never)?;
        let stop = Vec::from_iter(tokenizer.special().end);
        let ends = StopRules { stop: &stop, max_len };
        let written = generate(&mut predictor, &[vec![begin]], &ends, strategy)?;
        let translated = |sequence: Sequence| {
            let text = tokenizer.decode(&sequence.ids, Specials::Skip)?;
            Ok(Translated::new(text, &sequence))
        };
        written.into_iter().flatten().map(translated).collect()
    }
}
