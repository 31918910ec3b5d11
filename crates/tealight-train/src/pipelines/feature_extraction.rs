//! Vectors of texts, by an encoder.

use candle_core::Device;
use tealight_model::ModelSpec;
use tealight_model::models::masked_lm::MaskedLm;

use super::Pipeline;
use crate::error::{Error, Result};
use crate::inference::embed::{Embedder, Embeddings, SentenceSettings, Settings};
use crate::trained::TrainedModel;

/// An encoder with its tokenizer and its pooling.
#[derive(Debug)]
pub struct FeatureExtraction {
    embedder: Embedder,
    stated: SentenceSettings,
}

/// Texts to embed.
#[derive(Clone, Debug)]
pub struct Request {
    /// The texts.
    pub texts: Vec<String>,
    /// The name of the prompt before each text; that of the model's folder when absent.
    pub prompt: Option<String>,
}

impl Pipeline for FeatureExtraction {
    const NAME: &'static str = "feature-extraction";
    type Request = Request;
    type Answer = Embeddings;

    /// Opens the model with the settings that its folder states.
    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        Self::with_settings(model, device, |_| {})
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Embeddings>> {
        let mut prompted = Vec::new();
        for Request { texts, prompt } in requests {
            let prompt = self.stated.prompt(prompt.as_deref())?;
            prompted.extend(texts.iter().map(|text| format!("{prompt}{text}")));
        }
        let embedded = self.embedder.embed_with_prompt("", &prompted)?;
        Ok(embedded.divided(requests.iter().map(|request| request.texts.len())))
    }
}

impl FeatureExtraction {
    /// Opens the model with the settings that its folder states, after `change`.
    ///
    /// # Errors
    /// If the model is no encoder of texts, has no tokenizer, or cannot do what the settings ask for.
    pub fn with_settings(
        model: &TrainedModel,
        device: &Device,
        change: impl FnOnce(&mut Settings),
    ) -> Result<Self> {
        let stated = model.sentence_settings()?;
        let mut settings = stated.settings.clone();
        change(&mut settings);
        let is_causal_classifier =
            matches!(model.spec, Some(ModelSpec::TextClassifier(_))) && model.config.causal;
        let spec = model.spec.and_then(|spec| spec.encoder()).filter(|_| !is_causal_classifier);
        let spec = spec.ok_or_else(|| {
            model.wrong_kind("an encoder of texts, which reads in both directions")
        })?;
        let encoder =
            model.build(device, |vb| MaskedLm::build_encoder(&model.config, &spec, vb))?;
        let embedder = Embedder::new(encoder, &model.config, model.tokenizer()?, settings, device);
        let embedder = embedder.map_err(|error| match error {
            Error::Config(fault) => Error::unusable(&model.folder, &fault),
            error => error,
        })?;
        Ok(Self { embedder, stated })
    }

    /// What the folder of the model states.
    pub fn stated(&self) -> &SentenceSettings {
        &self.stated
    }

    /// The encoder with its tokenizer and its pooling.
    pub fn embedder(&self) -> &Embedder {
        &self.embedder
    }
}
