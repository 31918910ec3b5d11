//! The files of sentence-transformers in an exported folder.

use std::path::Path;

use serde_json::{Map, Value, json};
use tealight_model::models::pooling::VectorSpec;

use crate::data::text::tokenizer::Side;
use crate::error::{Error, Result};
use crate::inference::embed::{Dense, Normalize, SentenceSettings, Settings};
use crate::storage::files;
use crate::trained::TrainedModel;
use crate::trained::sentence::pooling::flags_of;
use crate::trained::sentence::{CONFIG, MODEL, MODULES, POOLING, TOKENIZER, TRANSFORMER};

impl TrainedModel {
    /// The steps from hidden states to the vector of a text.
    ///
    /// # Errors
    /// As [`TrainedModel::sentence_settings`], and if the vectors should be longer than they are.
    pub(super) fn vector_spec(&self) -> Result<VectorSpec> {
        let settings = self.sentence_settings()?.settings;
        let dim = settings.dim(self.config.d_model)?;
        let Settings { poolings, dense, normalize, .. } = settings;
        let dense = dense.iter().map(Dense::map).collect::<Result<_>>()?;
        Ok(VectorSpec { poolings, dense, normalize, dim })
    }

    /// The files of sentence-transformers for a folder that is exported; none if this one has none, or asks for what
    /// Tealight does not compute.
    ///
    /// # Errors
    /// If the folder truncates texts on the left, which no file that is written says.
    pub(super) fn sentence_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        match self.sentence_settings() {
            Ok(stated) if stated.is_stated => {
                if stated.settings.truncated_side == Side::Left {
                    let rule = "`truncation_side` = \"left\" cannot be exported";
                    return Err(Error::unusable(&self.folder.join(TOKENIZER), &rule));
                }
                of_settings(&stated, self.config.d_model)
            }
            _ => Ok(Vec::new()),
        }
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
    let mut of_dense = Vec::new();
    for dense in &settings.dense {
        let name = format!("{}_Dense", modules.len());
        modules.push(module(modules.len(), &name, "Dense"));
        of_dense.extend(dense.files(&name)?);
    }
    if settings.normalize != Normalize::No {
        let name = format!("{}_Normalize", modules.len());
        modules.push(module(modules.len(), &name, "Normalize"));
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
        "prompts": prompts, "default_prompt_name": default_prompt, "similarity_fn_name": "cosine",
        "truncate_dim": settings.truncate_dim,
    });
    let json = |name: String, value: Value| -> Result<_> {
        let bytes = files::to_json(Path::new(&name), &value)?;
        Ok((name, bytes))
    };
    let mut files = vec![
        json(MODULES.to_owned(), modules.into())?,
        json(format!("{POOLING}/{CONFIG}"), pooling.into())?,
        json(TRANSFORMER.to_owned(), transformer)?,
        json(MODEL.to_owned(), model)?,
    ];
    files.extend(of_dense);
    Ok(files)
}
