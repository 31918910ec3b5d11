//! A folder of a model that Tealight alone can express: what `tealight export` writes where there is no
//! such class in `transformers`.
//!
//! ```text
//! tealight.json        the version of the format, the task, its sizes, the resolved [model]
//! model.safetensors    the parameters
//! tokenizer.json       for models of text
//! README.md            the model card
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Device;
use serde::{Deserialize, Serialize};
use tealight_model::ModelConfig;

use super::{Pretrained, Purpose};
use crate::error::Result;
use crate::run::checkpoint::MODEL;
use crate::run::{files, tensors};
use crate::text::tokenizer::Tokenizer;

/// The version of `tealight.json` that is written, and the newest that is read.
const FORMAT_VERSION: u64 = 1;

const FILE: &str = "tealight.json";

/// `tealight.json`
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Description {
    format_version: u64,
    tealight_version: String,
    task: String,
    sizes: BTreeMap<String, u64>,
    model: ModelConfig,
}

/// Whether `folder` is such a folder.
pub(super) fn is_one(folder: &Path) -> bool {
    folder.join(FILE).is_file()
}

/// Reads the model in `folder`.
pub(super) fn read(folder: &Path) -> Result<Pretrained> {
    let Description { task, sizes, model, .. } =
        files::read_json(&folder.join(FILE), FORMAT_VERSION)?;
    let tokenizer = Tokenizer::in_folder(folder)?;
    Ok(Pretrained {
        origin: folder.to_owned(),
        folder: folder.to_owned(),
        purpose: Purpose::new(&task, &sizes, tokenizer.as_ref()),
        model,
        tokenizer,
        weights: tensors::load(&folder.join(MODEL), &Device::Cpu)?,
        class: None,
    })
}

/// The files of the folder, by name, without the card.
pub(super) fn files(
    model: &Pretrained,
    task: &str,
    sizes: &BTreeMap<String, u64>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let description = Description {
        format_version: FORMAT_VERSION,
        tealight_version: env!("CARGO_PKG_VERSION").to_owned(),
        task: task.to_owned(),
        sizes: sizes.clone(),
        model: model.model.clone(),
    };
    let mut files = vec![
        (FILE.to_owned(), files::to_json(Path::new(FILE), &description)?),
        (MODEL.to_owned(), tensors::to_bytes(Path::new(MODEL), &model.weights)?),
    ];
    if let Some(tokenizer) = &model.tokenizer {
        let of_tokenizer = tokenizer.files()?.into_iter();
        files.extend(of_tokenizer.map(|(name, content)| (name.to_owned(), content)));
    }
    Ok(files)
}
