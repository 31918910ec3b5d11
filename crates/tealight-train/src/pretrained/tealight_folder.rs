//! Tealight's own format of an exported model, for models without a class in `transformers`.
//!
//! ```text
//! tealight.json        the version of the format, the task, its sizes, the resolved [model]
//! model.safetensors    the parameters
//! tokenizer.json       for models of text
//! vocabulary.json      for models of the task `seq2seq`
//! labels.json          for classifiers
//! pictures.json        for classifiers of pictures: size, mean and deviation
//! README.md            the model card
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tealight_model::ModelConfig;
use tealight_model::models::classifier::ReadOut;

use super::purpose::{Purpose, PurposeRecord};
use super::{Pretrained, labels, preprocessing, symbols};
use crate::checks::{MAX_SIZE, at_most};
use crate::config::{Precision, limits};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::run::checkpoint::MODEL;
use crate::storage::tensor_file::TensorFile;
use crate::storage::tensors::NamedTensors;
use crate::storage::{files, tensors};
use crate::task::images::Preprocessing;
use crate::task::labels::Labels;
use crate::task::seq2seq::Vocabulary;

/// The version of `tealight.json` that is written, and the newest that is read.
const FORMAT_VERSION: u64 = 1;

/// The file that describes the model.
pub(super) const FILE: &str = "tealight.json";

/// `tealight.json`
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Description {
    format_version: u64,
    tealight_version: String,
    task: String,
    sizes: BTreeMap<String, u64>,
    /// The read-out of a classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_out: Option<ReadOut>,
    model: ModelConfig,
}

/// Reads the model in `folder`.
pub(super) fn read(folder: &Path) -> Result<Pretrained> {
    let path = folder.join(FILE);
    let Description { task, sizes, read_out, model, .. } = files::read_json(&path, FORMAT_VERSION)?;
    let tokenizer = Tokenizer::in_folder(folder)?;
    let record = PurposeRecord { task, sizes, read_out };
    let purpose = Purpose::from_record(record, tokenizer.as_ref());
    check(&model, &purpose).map_err(|error| in_file(error, &path))?;
    let tokenizer = match (&purpose, tokenizer) {
        // Folders of earlier versions have a template that ends a text.
        (Purpose::CausalLm(_), Some(tokenizer)) => Some(tokenizer.for_prompts(None)?),
        (_, tokenizer) => tokenizer,
    };
    Ok(Pretrained {
        origin: folder.to_owned(),
        folder: folder.to_owned(),
        config_file: path,
        labels: labels(&purpose, folder)?,
        preprocessing: preprocessing(&purpose, folder)?,
        symbols: symbols(&purpose, folder)?,
        purpose,
        model,
        tokenizer,
        weights: TensorFile::safetensors(&folder.join(MODEL))?.read()?,
        classification_head: NamedTensors::new(),
        hf: None,
        checkpoint_note: None,
        precision: Precision::F32,
    })
}

/// Checks the model and its sizes against the limits of a configuration.
fn check(model: &ModelConfig, purpose: &Purpose) -> Result<()> {
    limits::check_model(model)?;
    model.validate()?;
    let mut sizes = purpose.record().sizes;
    if let Purpose::Other(_) = purpose {
        if purpose.of_symbols().is_none() {
            // These sizes build nothing and may be large, such as the number of examples in a corpus.
            return Ok(());
        }
        sizes.retain(|name, _| ["vocab_size", "source_len", "target_len"].contains(&name.as_str()));
    }
    let check = |(name, &size)| at_most(&format!("sizes.{name}"), size, MAX_SIZE);
    sizes.iter().try_for_each(check)
}

/// Names the file instead of the configuration in an error.
fn in_file(error: Error, path: &Path) -> Error {
    match error {
        Error::Config(fault) => Error::unusable(path, &fault),
        error => error,
    }
}

/// The files of the folder with their names, except the model card.
pub(super) fn files(model: &Pretrained) -> Result<Vec<(String, Vec<u8>)>> {
    let PurposeRecord { task, sizes, read_out } = model.purpose.record();
    let description = Description {
        format_version: FORMAT_VERSION,
        tealight_version: env!("CARGO_PKG_VERSION").to_owned(),
        task,
        sizes,
        read_out,
        model: model.model.clone(),
    };
    let mut files = vec![
        (FILE.to_owned(), files::to_json(Path::new(FILE), &description)?),
        (MODEL.to_owned(), tensors::to_bytes(Path::new(MODEL), &model.weights)?),
    ];
    let tokenizer = model.tokenizer.as_ref().map(Tokenizer::files).transpose()?;
    let labels = model.labels.as_ref().map(Labels::file).transpose()?;
    let pictures = model.preprocessing.as_ref().map(Preprocessing::file).transpose()?;
    let symbols = model.symbols.as_ref().map(Vocabulary::file).transpose()?;
    let others = tokenizer.into_iter().flatten().chain(symbols).chain(labels).chain(pictures);
    files.extend(others.map(|(name, content)| (name.to_owned(), content)));
    Ok(files)
}
