//! What trained models can do: a file for each ability, from a request to an answer.
//!
//! ```text
//! TrainedModel ──open──► Pipeline ──answers──► an answer for each request
//! ```
//!
//! A pipeline holds the built model and what reads its inputs, as a `pipeline` of `transformers` does, and has its name
//! where there is one. The commands translate arguments into requests and answers into text or JSON, the server does so
//! with HTTP. Both choose a pipeline by [`name_of`], not by the kind of the model.

pub mod attention_maps;
pub mod feature_extraction;
pub mod fill_mask;
pub mod forecast;
pub mod image_classification;
pub mod reranking;
pub mod text_classification;
pub mod text_generation;
pub mod token_classification;
pub mod translation;

use candle_core::Device;
use tealight_model::ModelSpec;

use crate::error::Result;
use crate::trained::TrainedModel;

/// An ability of trained models.
pub trait Pipeline: Sized + 'static {
    /// Its name, that of a pipeline of `transformers` where there is one.
    const NAME: &'static str;
    /// A question to the model.
    type Request: Send + 'static;
    /// The answer of the model.
    type Answer: Send + 'static;

    /// Builds the model on `device`, without gradients.
    ///
    /// # Errors
    /// If the model is of another kind, which the error names, or lacks a file that this needs.
    fn open(model: &TrainedModel, device: &Device) -> Result<Self>;

    /// The answers to several requests, in their order, computed together where that is faster. An answer does not
    /// depend on the requests beside it, up to rounding.
    ///
    /// # Errors
    /// If one of the requests cannot be answered.
    fn answers(&self, requests: &[&Self::Request]) -> Result<Vec<Self::Answer>>;

    /// The answer to one request.
    ///
    /// # Errors
    /// As [`Self::answers`].
    fn answer(&self, request: &Self::Request) -> Result<Self::Answer> {
        let mut answers = self.answers(&[request])?;
        Ok(answers.pop().expect("invariant: there are as many answers as requests"))
    }
}

/// The name of the pipeline that a model was trained for; `None` for a model that no pipeline uses.
pub fn name_of(model: &TrainedModel) -> Option<&'static str> {
    name_of_kind(model.spec.as_ref()?)
}

fn name_of_kind(spec: &ModelSpec) -> Option<&'static str> {
    Some(match spec {
        ModelSpec::MaskedLm(_) => fill_mask::FillMask::NAME,
        ModelSpec::Encoder(_) => feature_extraction::FeatureExtraction::NAME,
        ModelSpec::CausalLm(_) => text_generation::TextGeneration::NAME,
        ModelSpec::Seq2Seq { .. } => translation::Translation::NAME,
        ModelSpec::TextClassifier(_) => text_classification::TextClassification::NAME,
        ModelSpec::Tagger(_) => token_classification::TokenClassification::NAME,
        ModelSpec::ImageClassifier(spec) if spec.n_classes == 0 => return None,
        ModelSpec::ImageClassifier(_) => image_classification::ImageClassification::NAME,
        ModelSpec::Forecaster(_) => forecast::Forecast::NAME,
    })
}

/// A command that uses an exported model. The folder of a forecaster does not say how days are encoded.
pub(crate) fn command(model: &TrainedModel) -> &'static str {
    match &model.spec {
        Some(ModelSpec::MaskedLm(_)) => "tealight fill-mask FOLDER \"… [MASK] …\"",
        Some(ModelSpec::Encoder(_)) => "tealight embed FOLDER \"…\"",
        Some(ModelSpec::CausalLm(_)) => "tealight generate FOLDER \"…\"",
        Some(ModelSpec::Seq2Seq { .. }) => "tealight translate FOLDER \"…\"",
        Some(ModelSpec::TextClassifier(_)) => "tealight classify FOLDER \"…\"",
        Some(ModelSpec::Tagger(_)) => "tealight tag FOLDER \"…\"",
        Some(ModelSpec::ImageClassifier(spec)) if spec.n_classes > 0 => {
            "tealight classify FOLDER picture.png"
        }
        None | Some(ModelSpec::ImageClassifier(_) | ModelSpec::Forecaster(_)) => {
            "tealight train CONFIG    # with init_from = \"FOLDER\""
        }
    }
}

/// `items` in groups of these lengths.
fn divided<T>(items: Vec<T>, lens: impl Iterator<Item = usize>) -> Vec<Vec<T>> {
    let mut items = items.into_iter();
    lens.map(|len| items.by_ref().take(len).collect()).collect()
}

#[cfg(test)]
mod tests {
    use tealight_model::SpecRecord;

    use super::*;
    use crate::task::TaskConfig;

    #[test]
    fn a_task_names_the_pipeline_of_the_models_that_it_trains() {
        let sizes = [
            "vocab_size",
            "seq_len",
            "source_len",
            "target_len",
            "n_classes",
            "height",
            "width",
            "channels",
        ];
        let mut n_named = 0;
        for kind in TaskConfig::KINDS {
            let task = TaskConfig::default_of(kind.name).unwrap();
            let sizes = sizes.map(|name| (name.to_owned(), 8)).into();
            let record = SpecRecord { task: kind.name.to_owned(), sizes, read_out: None };
            let spec = task.settings().model_spec(record, Some(0));
            let name = spec.as_ref().and_then(name_of_kind);
            assert_eq!(task.settings().pipeline(), name, "{}", kind.name);
            n_named += usize::from(name.is_some());
        }
        assert!(n_named > 5, "{n_named}");
    }
}
