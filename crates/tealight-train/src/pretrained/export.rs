//! `tealight export`: writes a model as a folder for `transformers`, for Tealight or for ONNX.

use std::path::Path;

use tealight_model::hf::{self, Expressed, Head, Sizes};
use tealight_model::models::classifier::ReadOut;
use tealight_model::onnx::{self, Cache, Model};

use super::card::{Card, Provenance};
use super::purpose::Purpose;
use super::{HfOrigin, Pretrained, folder, preprocessor, tealight_folder};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::storage::files;
use crate::task::labels::Labels;

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
    },
}

/// The graph, where Optimum and transformers.js look for it.
const ONNX_MODEL: &str = "onnx/model.onnx";

impl Pretrained {
    /// This model as one of `transformers`.
    ///
    /// # Errors
    /// If `transformers` has no class for it; the text gives the reason.
    pub fn hugging_face(&self) -> std::result::Result<Expressed, String> {
        let mut expressed = self.expressed()?;
        if let Some(preprocessing) = &self.preprocessing {
            expressed.notes.extend(preprocessor::write(preprocessing).1);
        }
        Ok(expressed)
    }

    fn expressed(&self) -> std::result::Result<Expressed, String> {
        if let Some(HfOrigin { family, sizes, classification, .. }) = &self.hf {
            let expressed = match classification {
                Some(outputs) => hf::express_classifier_as(*family, &self.model, sizes, outputs),
                None => hf::express_as(*family, &self.model, sizes),
            };
            let expressed = expressed.map_err(|error| error.to_string())?;
            let is_encoder = matches!(self.purpose, Purpose::Encoder(_));
            return Ok(if is_encoder { expressed.without_head() } else { expressed });
        }
        let special = self.tokenizer.as_ref().map(Tokenizer::special).cloned().unwrap_or_default();
        let (head, sizes, bos_id) = match &self.purpose {
            Purpose::MaskedLm(spec) => (Head::MaskedLm, Sizes::from(*spec), special.begin),
            Purpose::CausalLm(spec) => (Head::CausalLm, Sizes::from(*spec), special.begin),
            Purpose::Seq2Seq { spec, begin_id } => {
                let sizes = Sizes { pad_id: special.pad, ..Sizes::from(*spec) };
                (Head::Seq2Seq, sizes, begin_id.or(special.pad))
            }
            Purpose::Classifier(spec) => {
                let sizes = Sizes { eos_id: special.end, ..Sizes::from(*spec) };
                let sizes = Sizes { bos_id: special.begin, ..sizes };
                return self.hugging_face_classifier(&sizes, spec.read_out);
            }
            Purpose::Pictures(spec) => {
                return self.hugging_face_classifier(&Sizes::from(*spec), spec.read_out);
            }
            other @ (Purpose::Encoder(_) | Purpose::Other(_)) => {
                return Err(format!("its task is \"{}\"", other.record().task));
            }
        };
        let sizes = Sizes { bos_id, eos_id: special.end, ..sizes };
        hf::express(head, &self.model, &sizes).map_err(|error| error.to_string())
    }

    fn hugging_face_classifier(
        &self,
        sizes: &Sizes,
        read_out: ReadOut,
    ) -> std::result::Result<Expressed, String> {
        let labels = self.labels.as_ref().ok_or("it has no labels")?;
        let outputs = labels.for_hugging_face(read_out);
        let expressed = hf::express_classifier(&self.model, sizes, &outputs);
        expressed.map_err(|error| error.to_string())
    }

    /// Writes the folder `to`.
    ///
    /// # Errors
    /// If `to` exists and is not empty, among others: no file is overwritten.
    pub fn export(&self, to: &Path, format: &Format, provenance: &Provenance) -> Result<()> {
        let (library_name, reason, mut files) = match format {
            Format::Onnx { expressed, cache } => {
                let reason = expressed.as_ref().err().map(String::as_str);
                ("onnx", reason, self.onnx_files(expressed.as_deref().ok(), *cache)?)
            }
            Format::HuggingFace(expressed) => {
                let files = folder::files(expressed, &self.weights, self.tokenizer.as_ref())?;
                ("transformers", None, files)
            }
            Format::Tealight { reason } => {
                ("tealight", reason.as_deref(), tealight_folder::files(self)?)
            }
        };
        files.extend(self.sentence_files()?);
        if !matches!(format, Format::Tealight { .. }) {
            files.extend(self.preprocessor_file()?);
            files.extend(self.generation_file()?);
        }
        let n_parameters = self.weights.values().map(|tensor| tensor.elem_count() as u64).sum();
        let card = Card { provenance, purpose: &self.purpose, library_name, reason, n_parameters };
        files.push(("README.md".to_owned(), card.markdown().into_bytes()));
        files::write_directory(to, &files)
    }

    /// The files of a folder with a graph of ONNX, except the model card.
    fn onnx_files(
        &self,
        expressed: Option<&Expressed>,
        cache: Cache,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        let graph = onnx::export(&self.model, self.onnx_model(cache)?, &self.weights);
        let graph = graph.map_err(|error| Error::unusable(&self.config_file, &error))?;
        let mut files = match (expressed, &self.tokenizer) {
            (Some(expressed), tokenizer) => folder::description(expressed, tokenizer.as_ref())?,
            (None, Some(tokenizer)) => {
                let named = |(name, bytes): (&str, _)| (name.to_owned(), bytes);
                tokenizer.files()?.into_iter().map(named).collect()
            }
            (None, None) => Vec::new(),
        };
        let labels = self.labels.as_ref().map(Labels::file).transpose()?;
        files.extend(labels.map(|(name, bytes)| (name.to_owned(), bytes)));
        files.push((ONNX_MODEL.to_owned(), graph));
        Ok(files)
    }

    /// How `transformers` prepares pictures; `None` for models of texts.
    fn preprocessor_file(&self) -> Result<Option<(String, Vec<u8>)>> {
        let Some(preprocessing) = &self.preprocessing else { return Ok(None) };
        let name = preprocessor::FILE;
        let content = files::to_json(Path::new(name), &preprocessor::write(preprocessing).0)?;
        Ok(Some((name.to_owned(), content)))
    }

    /// The model whose graph is written.
    fn onnx_model(&self, cache: Cache) -> Result<Model<'_>> {
        let refuse = |rule: &str| Err(Error::unusable(&self.config_file, &rule));
        let model = match &self.purpose {
            Purpose::CausalLm(spec) => return Ok(Model::CausalLm(spec, cache)),
            Purpose::MaskedLm(spec) => Model::MaskedLm(spec),
            Purpose::Encoder(spec) => Model::Encoder(spec),
            Purpose::Classifier(spec) => Model::Classifier(spec),
            Purpose::Seq2Seq { .. } => {
                return refuse(
                    "an encoder-decoder cannot be written as ONNX: its export is not supported",
                );
            }
            Purpose::Pictures(spec) if spec.n_classes == 0 => {
                return refuse(
                    "a model of pictures without a classification head cannot be written as ONNX",
                );
            }
            Purpose::Pictures(spec) => Model::ImageClassifier(spec),
            Purpose::Other(record) => {
                let task = &record.task;
                let rule = format!(
                    "a model of the task \"{task}\" cannot be written as ONNX: its inputs are no texts"
                );
                return refuse(&rule);
            }
        };
        match cache {
            Cache::Without => Ok(model),
            Cache::With => refuse("only a causal language model has a cache of keys and values"),
        }
    }
}
