//! Continuations of texts, by a causal language model.

use std::ops::ControlFlow;

use candle_core::Device;
use tealight_model::ModelSpec;
use tealight_model::models::causal_lm::CausalLm;

use super::Pipeline;
use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::inference::continuation::{Continuation, Continuer, Settings, Vocabulary};
use crate::trained::TrainedModel;

/// A causal language model with its tokenizer.
#[derive(Debug)]
pub struct TextGeneration {
    model: CausalLm,
    tokenizer: Tokenizer,
    device: Device,
    /// Tokens that are never written; `None` of a model that was trained here, whose texts have no special tokens.
    suppressed: Option<Vec<u32>>,
}

/// A text to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// The text.
    pub prompt: String,
    /// How it is continued.
    pub settings: Settings,
}

impl Pipeline for TextGeneration {
    const NAME: &'static str = "text-generation";
    type Request = Request;
    type Answer = Vec<Continuation>;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let Some(ModelSpec::CausalLm(spec)) = &model.spec else {
            return Err(model.wrong_kind("a causal language model"));
        };
        let suppressed = match model.vocabulary() {
            Vocabulary::Text => None,
            Vocabulary::Except(ids) => Some(ids.to_vec()),
        };
        Ok(Self {
            model: model.build(device, |vb| CausalLm::build(&model.config, spec, vb))?,
            tokenizer: model.tokenizer()?.clone(),
            device: device.clone(),
            suppressed,
        })
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Self::Answer>> {
        let mut on_text = |_: usize, _: &str| ControlFlow::Continue(());
        let answer = |Request { prompt, settings }: &&Request| {
            self.continuer().continue_text(prompt, settings, &mut on_text)
        };
        requests.iter().map(answer).collect()
    }
}

impl TextGeneration {
    /// The model with its tokenizer, which also writes a continuation piece by piece.
    pub fn continuer(&self) -> Continuer<'_> {
        let vocabulary = self.suppressed.as_deref().map_or(Vocabulary::Text, Vocabulary::Except);
        let Self { model, tokenizer, device, .. } = self;
        Continuer { model, tokenizer, device, vocabulary }
    }
}
