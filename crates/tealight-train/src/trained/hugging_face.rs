//! Models of Tealight as models of `transformers`.

use tealight_model::hf::{self, Expressed, SpecialIds};
use tealight_model::{ModelConfig, ModelSpec};

use crate::data::text::tokenizer::Tokenizer;
use crate::inference::labels::Labels;

/// The model as one of the nearest family.
///
/// # Errors
/// If no family can represent it; the text gives all reasons.
pub(crate) fn nearest(
    config: &ModelConfig,
    spec: &ModelSpec,
    tokenizer: Option<&Tokenizer>,
    labels: Option<&Labels>,
) -> std::result::Result<Expressed, String> {
    let special = tokenizer.map(Tokenizer::special).cloned().unwrap_or_default();
    let pad = match spec {
        // The tokens of its sources and targets are those of one tokenizer.
        ModelSpec::Seq2Seq { .. } => special.pad,
        spec => spec.pad_id(),
    };
    let ids = SpecialIds { pad, bos: special.begin, eos: special.end };
    let outputs = match (spec, spec.read_out()) {
        (ModelSpec::Tagger(_), _) | (_, Some(_)) => {
            Some(labels.ok_or("it has no labels")?.for_hugging_face(spec.read_out()))
        }
        (_, None) => None,
    };
    hf::express(config, spec, &ids, outputs.as_ref()).map_err(|error| error.to_string())
}
