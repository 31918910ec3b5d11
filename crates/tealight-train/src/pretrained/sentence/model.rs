//! Models that embed texts, and the files of sentence-transformers beside those that are exported.

use std::path::Path;

use candle_core::Device;
use serde_json::{Map, Value, json};
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};

use super::pooling::flags_of;
use super::{CONFIG, MODEL, MODULES, POOLING, SentenceSettings, TOKENIZER, TRANSFORMER};
use crate::data::text::tokenizer::Side;
use crate::error::{Error, Result};
use crate::inference::embed::{Embedder, Normalize, Settings};
use crate::pretrained::Pretrained;
use crate::pretrained::purpose::Purpose;
use crate::storage::files;

impl Pretrained {
    /// How the model's folder embeds texts.
    ///
    /// # Errors
    /// As [`SentenceSettings::read`].
    pub fn sentence_settings(&self) -> Result<SentenceSettings> {
        SentenceSettings::read(&self.folder, self.model.d_model)
    }

    /// The files of sentence-transformers for a folder that is exported; none if this one has none, or asks for what
    /// Tealight does not compute.
    ///
    /// # Errors
    /// If the folder truncates texts on the left, which no file that is written says.
    pub(in crate::pretrained) fn sentence_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        match self.sentence_settings() {
            Ok(stated) if stated.is_stated => {
                if stated.settings.truncated_side == Side::Left {
                    let rule = "`truncation_side` = \"left\" cannot be exported";
                    return Err(Error::unusable(&self.folder.join(TOKENIZER), &rule));
                }
                of_settings(&stated, self.model.d_model)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Builds the encoder, without gradients, and what embeds texts with it.
    ///
    /// # Errors
    /// If the model is no encoder of texts, has no tokenizer, or cannot do what the `settings` ask for.
    pub fn embedder(&self, settings: Settings, device: &Device) -> Result<Embedder> {
        let spec = match &self.purpose {
            Purpose::MaskedLm(spec) | Purpose::Encoder(spec) => *spec,
            Purpose::Classifier(spec) if !self.model.causal => MaskedLmSpec {
                vocab_size: spec.vocab_size,
                n_token_types: spec.n_token_types,
                pad_id: spec.pad_id,
                seq_len: spec.seq_len,
                packed: false,
            },
            _ => {
                return Err(
                    self.wrong_purpose("an encoder of texts, which reads in both directions")
                );
            }
        };
        let encoder =
            self.build_model(device, |vb| MaskedLm::build_encoder(&self.model, &spec, vb))?;
        let embedder = Embedder::new(encoder, &self.model, self.tokenizer()?, settings, device);
        embedder.map_err(|error| match error {
            Error::Config(fault) => Error::unusable(&self.folder, &fault),
            error => error,
        })
    }
}

/// The files of `stated` settings with their names, as sentence-transformers 2 and later read them.
fn of_settings(stated: &SentenceSettings, d_model: usize) -> Result<Vec<(String, Vec<u8>)>> {
    let SentenceSettings { settings, prompts, default_prompt, .. } = stated;
    let module = |idx: usize, path: &str, class: &str| {
        let class = format!("sentence_transformers.models.{class}");
        json!({ "idx": idx, "name": idx.to_string(), "path": path, "type": class })
    };
    let mut modules = vec![module(0, "", "Transformer"), module(1, POOLING, "Pooling")];
    if settings.normalize != Normalize::No {
        modules.push(module(2, "2_Normalize", "Normalize"));
    }
    let mut pooling = Map::new();
    pooling.insert("word_embedding_dimension".to_owned(), d_model.into());
    if let [one] = *settings.poolings {
        pooling.extend(flags_of(one));
    } else {
        // Only the newer spelling has an order.
        pooling.insert("pooling_mode".to_owned(), json!(settings.poolings));
    }
    let transformer = json!({
        "max_seq_length": settings.max_seq_len, "do_lower_case": settings.lowercase,
    });
    let model = json!({
        "prompts": prompts, "default_prompt_name": default_prompt, "truncate_dim": settings.truncate_dim,
    });
    let json = |name: String, value: Value| -> Result<_> {
        let bytes = files::to_json(Path::new(&name), &value)?;
        Ok((name, bytes))
    };
    Ok(vec![
        json(MODULES.to_owned(), modules.into())?,
        json(format!("{POOLING}/{CONFIG}"), pooling.into())?,
        json(TRANSFORMER.to_owned(), transformer)?,
        json(MODEL.to_owned(), model)?,
    ])
}
