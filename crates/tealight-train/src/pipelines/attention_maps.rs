//! The attention maps of a model for a sequence that a user types: a text, days, symbols.

use candle_core::{Device, Tensor};
use serde_json::json;
use tealight_model::block::BlockInput;
use tealight_model::embedding::Input;
use tealight_model::models::causal_lm::CausalLm;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::transformer::Transformer;
use tealight_model::{Mask, Mode, ModelSpec};

use super::Pipeline;
use super::forecast::Forecast;
use super::text_classification::TextClassification;
use super::token_classification::TokenClassification;
use super::translation::Translation;
use crate::data::text::tokenizer::Tokenizer;
use crate::data::weather::{format, parse};
use crate::error::{Error, Result};
use crate::inference::attention_map::{AttentionMap, SequenceMaps};
use crate::inference::text_classifier::Text;
use crate::trained::{TrainedModel, check_n_tokens};

/// A model whose attention weights are shown.
#[derive(Debug)]
pub struct AttentionMaps {
    reader: Reader,
    /// The most tokens of a text.
    max_seq_len: usize,
    device: Device,
}

/// A built model with what reads a sequence for it.
#[derive(Debug)]
enum Reader {
    Encoder(Box<(Transformer, Tokenizer)>),
    CausalLm(Box<(CausalLm, Tokenizer)>),
    Classifier(Box<TextClassification>),
    Tagger(Box<TokenClassification>),
    Translation(Box<Translation>),
    Forecast(Box<Forecast>),
}

impl Pipeline for AttentionMaps {
    const NAME: &'static str = "attention-maps";
    /// The sequence.
    type Request = String;
    type Answer = SequenceMaps;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let reader = match &model.spec {
            Some(ModelSpec::MaskedLm(spec) | ModelSpec::Encoder(spec)) => {
                let tokenizer = model.tokenizer()?.clone();
                let encoder =
                    model.build(device, |vb| MaskedLm::build_encoder(&model.config, spec, vb))?;
                Reader::Encoder(Box::new((encoder, tokenizer)))
            }
            Some(ModelSpec::CausalLm(spec)) => {
                let tokenizer = model.tokenizer()?.clone();
                let built = model.build(device, |vb| CausalLm::build(&model.config, spec, vb))?;
                Reader::CausalLm(Box::new((built, tokenizer)))
            }
            Some(ModelSpec::TextClassifier(_)) => {
                Reader::Classifier(Box::new(TextClassification::open(model, device)?))
            }
            Some(ModelSpec::Tagger(_)) => {
                Reader::Tagger(Box::new(TokenClassification::open(model, device)?))
            }
            Some(ModelSpec::Seq2Seq { .. }) if model.readers.vocabulary.is_some() => {
                Reader::Translation(Box::new(Translation::open(model, device)?))
            }
            Some(ModelSpec::Forecaster(_)) => {
                Reader::Forecast(Box::new(Forecast::open(model, device)?))
            }
            Some(ModelSpec::ImageClassifier(_) | ModelSpec::Seq2Seq { .. }) | None => {
                return Err(model.wrong_kind(
                    "a language model, a classifier of texts, a tagger, or a model of the task \"weather\" or \"seq2seq\"",
                ));
            }
        };
        let max_seq_len = model.config.max_seq_len.unwrap_or(usize::MAX);
        Ok(Self { reader, max_seq_len, device: device.clone() })
    }

    fn answers(&self, requests: &[&String]) -> Result<Vec<SequenceMaps>> {
        requests.iter().map(|sequence| self.maps(sequence)).collect()
    }
}

impl AttentionMaps {
    /// The number of positions of a sequence: tokens, days or symbols.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn len_of(&self, sequence: &str) -> Result<usize> {
        Ok(match &self.reader {
            Reader::Encoder(both) => both.1.encode(sequence)?.ids.len(),
            Reader::CausalLm(both) => both.1.encode_beginning(sequence)?.len(),
            Reader::Classifier(pipeline) => pipeline.tokenizer().encode(sequence)?.ids.len(),
            Reader::Tagger(pipeline) => pipeline.tokenizer().encode(sequence)?.ids.len(),
            Reader::Translation(_) => sequence.chars().count(),
            Reader::Forecast(_) => days(sequence)?.len(),
        })
    }

    fn maps(&self, sequence: &str) -> Result<SequenceMaps> {
        let maps = match &self.reader {
            Reader::Encoder(both) => {
                let (encoder, tokenizer) = &**both;
                let ids = tokenizer.encode(sequence)?.ids;
                let input = self.input(sequence, &ids)?;
                let mask = &Mask::none();
                let context = BlockInput::new(mask, Mode::Eval);
                let layers = encoder.attention_maps(&Input::tokens(&input), &context)?;
                AttentionMap::of_tokens(tokenizer, &ids, layers)
            }
            Reader::CausalLm(both) => {
                let (model, tokenizer) = &**both;
                let ids = tokenizer.encode_beginning(sequence)?;
                let input = self.input(sequence, &ids)?;
                let layers = model.attention_maps(&input, &Mask::none())?;
                AttentionMap::of_tokens(tokenizer, &ids, layers)
            }
            Reader::Tagger(pipeline) => pipeline.attention_maps(sequence)?,
            Reader::Classifier(pipeline) => {
                let text = Text { text: sequence.to_owned(), text_pair: None };
                pipeline.attention_maps(&text)?
            }
            Reader::Translation(pipeline) => {
                let maps = pipeline.attention_maps(sequence)?.unwrap_or_default();
                return Ok(SequenceMaps { sequence: json!({ "source": sequence }), maps });
            }
            Reader::Forecast(pipeline) => {
                let days = days(sequence)?;
                let (days, maps) = pipeline.attention_maps(&days)?;
                let sequence = json!({ "days": days, "emoji": format(days) });
                return Ok(SequenceMaps { sequence, maps });
            }
        };
        Ok(SequenceMaps { sequence: json!({ "text": sequence }), maps })
    }

    /// `(1, n)`: the tokens of a text that the model can read.
    fn input(&self, text: &str, ids: &[u32]) -> Result<Tensor> {
        check_n_tokens(text, ids.len(), self.max_seq_len)?;
        Ok(Tensor::from_slice(ids, (1, ids.len()), &self.device)?)
    }
}

/// The days that a user typed.
fn days(sequence: &str) -> Result<Vec<u8>> {
    parse(sequence)
        .map_err(|error| Error::input(format!("cannot parse the sequence as weather: {error}")))
}
