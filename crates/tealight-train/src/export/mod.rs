//! `tealight export`: writes a model as a folder for `transformers`, for Tealight or for ONNX.

pub mod card;
mod generation;
mod sentence;

use std::collections::BTreeMap;
use std::path::Path;

use tealight_model::hf::{self, Expressed};
use tealight_model::onnx::{self, Cache, Options, Weights};
use tealight_model::{ModelSpec, SpecRecord};

use crate::config::RunConfig;
use crate::data::images::Colour;
use crate::error::{Error, Result};
use crate::inference::labels::Labels;
use crate::inference::readers::Readers;
use crate::inference::text_classifier::Activation;
use crate::pipelines;
use crate::storage::files;
use crate::task::RowMeanings;
use crate::trained::hugging_face::nearest;
use crate::trained::sentence::longest_text;
use crate::trained::{HfOrigin, TrainedModel, folder, preprocessor, tealight_folder};
use card::{Card, Provenance};

/// The format of the folder.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// `transformers` loads the folder as this model.
    HuggingFace(Box<Expressed>),
    /// Only Tealight loads the folder.
    Tealight {
        /// Why `transformers` cannot express the model, if it cannot.
        reason: Option<String>,
    },
    /// A graph of ONNX in `onnx/model.onnx`, with the configuration of `transformers` and the tokenizer beside it.
    Onnx {
        /// The model for `transformers`, or why it has no such class; then there is no `config.json`.
        expressed: std::result::Result<Box<Expressed>, String>,
        /// Whether a decoder takes and gives keys and values.
        cache: Cache,
        /// Whether the graph of an encoder also gives the vectors of texts.
        pooled: bool,
        /// The format of weights. The graph is in `onnx/model_quantized.onnx` if it is int8.
        weights: Weights,
    },
}

/// The file of the graph, where Optimum and transformers.js look for it, and a command that loads it.
fn onnx_model(weights: Weights) -> (&'static str, &'static str) {
    macro_rules! file {
        ($file:literal) => {
            (
                $file,
                concat!(
                    "python -c 'import onnxruntime; onnxruntime.InferenceSession(\"",
                    $file,
                    "\")'"
                ),
            )
        };
    }
    match weights {
        Weights::F32 => file!("onnx/model.onnx"),
        Weights::Int8 => file!("onnx/model_quantized.onnx"),
    }
}

/// The class of `transformers` for the model that a run with this configuration trains. `sizes` and `rows` are those of
/// its task.
///
/// # Errors
/// If `transformers` has no class for the model; the text gives all reasons.
pub fn foreseen(
    config: &RunConfig,
    sizes: BTreeMap<String, u64>,
    rows: RowMeanings<'_>,
) -> std::result::Result<String, String> {
    let (task, mut model) = (config.task.kind(), config.model.clone());
    let record = SpecRecord { task: task.to_owned(), sizes, read_out: None };
    let pad = rows.tokenizer.and_then(|tokenizer| tokenizer.special().pad);
    let spec = config.task.settings().model_spec(record, pad);
    let is_foreign = |spec: &ModelSpec| match spec {
        ModelSpec::Forecaster(_) => false,
        ModelSpec::Seq2Seq { .. } => rows.tokenizer.is_some(),
        _ => true,
    };
    let spec = spec.filter(is_foreign).ok_or_else(|| format!("its task is \"{task}\""))?;
    model.max_seq_len = model.max_seq_len.or(spec.seq_len());
    let expressed = nearest(&model, &spec, rows.tokenizer, rows.labels)?;
    Ok(expressed.architecture().to_owned())
}

impl TrainedModel {
    /// This model as one of `transformers`.
    ///
    /// # Errors
    /// If `transformers` has no class for it; the text gives the reason.
    pub fn hugging_face(&self) -> std::result::Result<Expressed, String> {
        let mut expressed = self.expressed()?;
        if let Some(preprocessing) = &self.readers.preprocessing {
            expressed.notes.extend(preprocessor::write(preprocessing).1);
        }
        // A folder may read shorter texts than its model could.
        let stated = longest_text(&self.folder).map_err(|error| error.to_string())?;
        expressed.seq_len = stated.map_or(expressed.seq_len, |len| len.min(expressed.seq_len));
        if matches!(self.spec, Some(ModelSpec::TextClassifier(spec)) if spec.n_classes == 1) {
            let activation = self.activation().map_err(|error| error.to_string())?;
            activation.add_to(&mut expressed.config);
        }
        Ok(expressed)
    }

    fn expressed(&self) -> std::result::Result<Expressed, String> {
        let spec = self.portable_spec();
        let spec = spec.ok_or_else(|| format!("its task is \"{}\"", self.record.task))?;
        if let Some(HfOrigin { family, ids, classification, .. }) = &self.hf {
            let outputs = classification.as_ref();
            let expressed = hf::express_as(*family, &self.config, spec, ids, outputs);
            return expressed.map_err(|error| error.to_string());
        }
        let Readers { tokenizer, labels, .. } = &self.readers;
        nearest(&self.config, spec, tokenizer.as_ref(), labels.as_ref())
    }

    /// Writes the folder `to`.
    ///
    /// # Errors
    /// If `to` exists and is not empty, among others: no file is overwritten.
    pub fn export(&self, to: &Path, format: &Format, provenance: &Provenance) -> Result<()> {
        let (loaded_by, reason, mut files) = match format {
            Format::Onnx { expressed, cache, pooled, weights } => {
                let reason = expressed.as_ref().err().map(String::as_str);
                let vectors = if *pooled { Some(self.vector_spec()?) } else { None };
                let options =
                    Options { cache: *cache, vectors: vectors.as_ref(), weights: *weights };
                ("onnx", reason, self.onnx_files(expressed.as_deref().ok(), options)?)
            }
            Format::HuggingFace(expressed) => {
                let tokenizer = self.readers.tokenizer.as_ref();
                let mut files = folder::files(expressed, &self.encoder_weights(), tokenizer)?;
                // `config.json` has the labels, but has no key for their thresholds.
                let labels = self.readers.labels.as_ref();
                let labels = labels.filter(|labels| !labels.thresholds().is_empty());
                let file = labels.map(Labels::file).transpose()?;
                files.extend(file.map(|(name, bytes)| (name.to_owned(), bytes)));
                (card::TRANSFORMERS, None, files)
            }
            Format::Tealight { reason } => {
                ("tealight", reason.as_deref(), tealight_folder::files(self)?)
            }
        };
        let of_sentences = self.sentence_files()?;
        let is_sentence = !of_sentences.is_empty() && loaded_by == card::TRANSFORMERS;
        files.extend(of_sentences);
        let is_own = matches!(format, Format::Tealight { .. });
        let activation = self.readers.activation.filter(|_| is_own);
        files.extend(activation.map(Activation::file).transpose()?);
        if !matches!(format, Format::Tealight { .. }) {
            files.extend(self.preprocessor_file()?);
            files.extend(self.generation_file()?);
        }
        let n_parameters = self.weights.values().map(|tensor| tensor.elem_count() as u64).sum();
        let card = Card {
            provenance,
            description: self.description(),
            pipeline_tag: if is_sentence {
                Some(card::SENTENCE_SIMILARITY)
            } else {
                self.portable_spec().and_then(ModelSpec::pipeline_tag)
            },
            is_grey: self
                .readers
                .preprocessing
                .as_ref()
                .is_some_and(|one| one.colour == Colour::Grey),
            loaded_by: if is_sentence { card::SENTENCE_TRANSFORMERS } else { loaded_by },
            command: match format {
                Format::Onnx { weights, .. } => onnx_model(*weights).1,
                _ => pipelines::command(self),
            },
            reason,
            n_parameters,
        };
        files.push(("README.md".to_owned(), card.markdown().into_bytes()));
        files::write_directory(to, &files)
    }

    /// The files of a folder with a graph of ONNX, except the model card.
    fn onnx_files(
        &self,
        expressed: Option<&Expressed>,
        options: Options<'_>,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        let spec = self.portable_spec().ok_or_else(|| {
            let rule = format!(
                "{} cannot be written as ONNX: only Tealight encodes its inputs",
                self.description()
            );
            Error::unusable(&self.config_file, &rule)
        })?;
        let (config, weights) = (&self.config, self.encoder_weights());
        let graph = onnx::export(config, spec, options, &weights);
        let graph = graph.map_err(|error| Error::unusable(&self.config_file, &error))?;
        let mut files = match (expressed, &self.readers.tokenizer) {
            (Some(expressed), tokenizer) => folder::description(expressed, tokenizer.as_ref())?,
            (None, Some(tokenizer)) => {
                let named = |(name, bytes): (&str, _)| (name.to_owned(), bytes);
                tokenizer.files()?.into_iter().map(named).collect()
            }
            (None, None) => Vec::new(),
        };
        let labels = self.readers.labels.as_ref().map(Labels::file).transpose()?;
        files.extend(labels.map(|(name, bytes)| (name.to_owned(), bytes)));
        files.push((onnx_model(options.weights).0.to_owned(), graph));
        Ok(files)
    }

    /// How `transformers` prepares pictures; `None` for models of texts.
    fn preprocessor_file(&self) -> Result<Option<(String, Vec<u8>)>> {
        let Some(preprocessing) = &self.readers.preprocessing else { return Ok(None) };
        let name = preprocessor::FILE;
        let content = files::to_json(Path::new(name), &preprocessor::write(preprocessing).0)?;
        Ok(Some((name.to_owned(), content)))
    }
}
