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
use tealight_model::models::read_out::ReadOut;
use tealight_model::{ModelConfig, ModelSpec, SpecRecord};

use super::{TrainedModel, check_sizes, in_file, recorded};
use crate::config::{Precision, limits};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::inference::image_classifier::Preprocessing;
use crate::inference::labels::Labels;
use crate::inference::readers::Readers;
use crate::inference::symbols::Vocabulary;
use crate::run::checkpoint::MODEL;
use crate::storage::tensor_file::TensorFile;
use crate::storage::tensors::NamedTensors;
use crate::storage::{files, tensors};

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
pub(super) fn read(folder: &Path) -> Result<TrainedModel> {
    let path = folder.join(FILE);
    let Description { task, sizes, read_out, model, .. } = files::read_json(&path, FORMAT_VERSION)?;
    let tokenizer = Tokenizer::in_folder(folder)?;
    let record = SpecRecord { task, sizes, read_out };
    let spec = record.spec(tokenizer.as_ref().and_then(|tokenizer| tokenizer.special().pad));
    let checked = limits::check_model(&model).and_then(|()| Ok(model.validate()?));
    let checked = checked.and_then(|()| check_sizes(&record, spec.as_ref()));
    checked.map_err(|error| in_file(error, &path))?;
    let tokenizer = match (&spec, tokenizer) {
        // Folders of earlier versions have a template that ends a text.
        (Some(ModelSpec::CausalLm(_)), Some(tokenizer)) => Some(tokenizer.for_prompts(None)?),
        (_, tokenizer) => tokenizer,
    };
    let readers = Readers::read(spec.as_ref(), tokenizer, folder)?;
    Ok(TrainedModel {
        origin: folder.to_owned(),
        folder: folder.to_owned(),
        config_file: path,
        weights_from: folder.join(MODEL),
        run: None,
        record: recorded(spec.as_ref(), &readers, record),
        spec,
        config: model,
        weights: TensorFile::safetensors(&folder.join(MODEL))?.read()?,
        as_trained: NamedTensors::new(),
        classification_head: NamedTensors::new(),
        readers,
        hf: None,
        notes: Vec::new(),
        precision: Precision::F32,
    })
}

/// The files of the folder with their names, except the model card.
pub(crate) fn files(model: &TrainedModel) -> Result<Vec<(String, Vec<u8>)>> {
    let SpecRecord { task, sizes, read_out } = model.record.clone();
    let description = Description {
        format_version: FORMAT_VERSION,
        tealight_version: env!("CARGO_PKG_VERSION").to_owned(),
        task,
        sizes,
        read_out,
        model: model.config.clone(),
    };
    let mut files = vec![
        (FILE.to_owned(), files::to_json(Path::new(FILE), &description)?),
        (MODEL.to_owned(), tensors::to_bytes(Path::new(MODEL), &model.weights)?),
    ];
    let Readers { tokenizer, labels, preprocessing, vocabulary, .. } = &model.readers;
    let tokenizer = tokenizer.as_ref().map(Tokenizer::files).transpose()?;
    let labels = labels.as_ref().map(Labels::file).transpose()?;
    let pictures = preprocessing.as_ref().map(Preprocessing::file).transpose()?;
    let symbols = vocabulary.as_ref().map(Vocabulary::file).transpose()?;
    let others = tokenizer.into_iter().flatten().chain(symbols).chain(labels).chain(pictures);
    files.extend(others.map(|(name, content)| (name.to_owned(), content)));
    Ok(files)
}
