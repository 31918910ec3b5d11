//! Tags of the words of texts, by a tagger.

use candle_core::Device;
use tealight_model::ModelSpec;
use tealight_model::models::tagger::{Tagger, TaggerSpec};

use super::Pipeline;
use crate::data::text::tokenizer::{Frame, Tokenizer};
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::labels::Labels;
use crate::inference::tagger::{Answer, Input, Tagging, TokenTags, WordTagger};
use crate::trained::TrainedModel;
use crate::trained::sentence::longest_text;

/// A tagger with its tokenizer and labels.
#[derive(Debug)]
pub struct TokenClassification {
    model: Tagger,
    tokenizer: Tokenizer,
    frame: Frame,
    labels: Labels,
    seq_len: usize,
    required_len: Option<usize>,
    device: Device,
}

/// Texts to tag.
#[derive(Clone, Debug)]
pub struct Request {
    /// Texts, or sentences as words.
    pub inputs: Vec<Input>,
    /// How they are tagged.
    pub tagging: Tagging,
}

impl Pipeline for TokenClassification {
    const NAME: &'static str = "token-classification";
    type Request = Request;
    /// For each input.
    type Answer = Vec<Answer>;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let (Some(ModelSpec::Tagger(spec)), Some(labels)) = (&model.spec, &model.readers.labels)
        else {
            return Err(model.wrong_kind("a tagger of words"));
        };
        let TaggerSpec { seq_len, .. } = *spec;
        let required_len = model.config.required_len();
        let stated = longest_text(&model.folder)?.unwrap_or(usize::MAX);
        let tokenizer = model.tokenizer()?.clone();
        Ok(Self {
            model: model.build(device, |vb| Tagger::build(&model.config, spec, vb))?,
            frame: tokenizer.frame()?,
            tokenizer,
            labels: labels.clone(),
            seq_len: seq_len.min(required_len.unwrap_or(usize::MAX)).min(stated),
            required_len,
            device: device.clone(),
        })
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Vec<Answer>>> {
        let answer = |request: &&Request| self.tagger().tag(&request.inputs, &request.tagging);
        requests.iter().map(answer).collect()
    }
}

impl TokenClassification {
    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The most tokens of a piece, special ones included.
    pub fn max_seq_len(&self) -> usize {
        self.seq_len
    }

    /// The tags in the order of the outputs.
    pub fn labels(&self) -> &[String] {
        self.labels.names()
    }

    /// The `k` likeliest tags of each token of a text.
    ///
    /// # Errors
    /// If the scores of the model are not finite.
    pub fn tags_of_tokens(&self, text: &str, k: usize) -> Result<Vec<TokenTags>> {
        self.tagger().tags_of_tokens(text, k)
    }

    /// The attention maps of a text.
    ///
    /// # Errors
    /// If the text has no token.
    pub fn attention_maps(&self, text: &str) -> Result<Vec<AttentionMap>> {
        self.tagger().attention_maps(text)
    }

    fn tagger(&self) -> WordTagger<'_> {
        let Self { model, tokenizer, frame, labels, seq_len, required_len, device } = self;
        let (seq_len, required_len) = (*seq_len, *required_len);
        WordTagger { model, tokenizer, frame, labels, seq_len, required_len, device }
    }
}
