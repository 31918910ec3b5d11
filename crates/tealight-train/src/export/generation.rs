//! The `generation_config.json` of an exported folder.

use std::path::Path;

use serde_json::{Map, Value, json};
use tealight_model::ModelSpec;
use tealight_model::models::causal_lm::CausalLmSpec;

use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::storage::files;
use crate::trained::generation::{FILE, SUPPRESS};
use crate::trained::{HfOrigin, TrainedModel};

impl TrainedModel {
    /// The file of this model with its name; `None` if the model does not continue texts.
    pub(crate) fn generation_file(&self) -> Result<Option<(String, Vec<u8>)>> {
        let Some(ModelSpec::CausalLm(spec)) = &self.spec else { return Ok(None) };
        let keys = match &self.hf {
            Some(HfOrigin { generation: Some(read), .. }) => read.keys.clone(),
            _ => self.generation_keys(spec)?,
        };
        if keys.is_empty() {
            return Ok(None);
        }
        Ok(Some((FILE.to_owned(), files::to_json(Path::new(FILE), &keys)?)))
    }

    /// The content of the file of a folder without one, or of a model that was trained here.
    fn generation_keys(&self, spec: &CausalLmSpec) -> Result<Map<String, Value>> {
        let tokenizer = self.readers.tokenizer.as_ref();
        let [bos, eos, pad] = match (&self.hf, tokenizer) {
            (Some(HfOrigin { ids, .. }), _) => [ids.bos, ids.eos, ids.pad],
            (None, Some(tokenizer)) => special_ids(tokenizer)?,
            (None, None) => [None; 3],
        };
        let never =
            |tokenizer: &Tokenizer| self.vocabulary().suppressed(tokenizer, spec.vocab_size);
        let never = tokenizer.map(never).filter(|ids| !ids.is_empty());
        let keys = [
            ("bos_token_id", bos.map(|id| json!(id))),
            ("eos_token_id", eos.map(|id| json!(id))),
            ("pad_token_id", pad.map(|id| json!(id))),
            (SUPPRESS, never.map(|ids| json!(ids))),
        ];
        Ok(keys.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
    }
}

/// The ids of the token that an empty prompt is continued from, of the end token, and of padding.
fn special_ids(tokenizer: &Tokenizer) -> Result<[Option<u32>; 3]> {
    let special = tokenizer.special();
    let first = tokenizer.encode_beginning("")?.first().copied();
    Ok([first.or(special.end).or(special.begin), special.end, special.pad])
}
