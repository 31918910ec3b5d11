//! Trained models from disk: a run of Tealight, one of its checkpoints, a folder that `tealight export`
//! wrote, or a model repository of Hugging Face.
//!
//! ```text
//! runs/<name>  checkpoints/step-000500  folder with tealight.json  folder with config.json
//!        └──────────────┴──────────┬──────────────┴─────────────────────────┘
//!                             TrainedModel { spec, config, weights, readers }
//!                                         ──► an answer to a request (pipelines)
//!                                         ──► initial parameters of a new run (`init_from`)
//!                                         ──► a folder (export)
//! ```

pub mod folder;
pub(crate) mod generation;
pub(crate) mod hugging_face;
mod init_from;
mod layers;
mod meanings;
pub(crate) mod preprocessor;
mod rows;
pub(crate) mod sentence;
pub(crate) mod tealight_folder;
mod weight_files;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_nn::VarBuilder;
use tealight_model::hf::{Classification, Description, Family, SpecialIds};
use tealight_model::params::without_gradients;
use tealight_model::{BuildError, BuildResult, ModelConfig, ModelSpec, SpecRecord};

use crate::checks::{MAX_SIZE, at_most};
use crate::config::{Precision, RunConfig};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::inference::continuation::Vocabulary;
use crate::inference::decision::{self, Decision};
use crate::inference::labels::{self, Labels, Objective};
use crate::inference::readers::Readers;
use crate::inference::text_classifier::Activation;
use crate::run::RunDirectory;
use crate::run::checkpoint::load_weights;
use crate::run::checkpoints::Selection;
use crate::storage::hub::HubCache;
use crate::storage::tensors::NamedTensors;
use crate::task::TaskConfig;
use folder::HfFolder;
use generation::GenerationConfig;
pub use init_from::InitReport;

/// A trained model: what it is, its parameters, and what reads its inputs.
#[derive(Debug)]
pub struct TrainedModel {
    /// The path that was opened.
    pub origin: PathBuf,
    /// The folder of the tokenizer; for a checkpoint, that of its run.
    pub(crate) folder: PathBuf,
    /// The file that describes the model, for error messages.
    pub(crate) config_file: PathBuf,
    /// The checkpoint or folder that the parameters are from, for error messages.
    pub(crate) weights_from: PathBuf,
    /// The directory of the run that it is from; `None` for a folder.
    pub run: Option<RunDirectory>,
    /// What kind of model it is; `None` if its files do not say so. Such a model can initialise another one, and nothing
    /// else.
    pub spec: Option<ModelSpec>,
    /// The task that it was trained for, with its sizes, as files record them.
    pub(crate) record: SpecRecord,
    /// The settings of the model. `max_seq_len` is set for models that read one text; for others it may be absent.
    pub config: ModelConfig,
    /// The parameters by name.
    pub weights: NamedTensors,
    /// Of a run with a temperature (`task.calibration`), which divides the last map in `weights`: that map as it was trained.
    as_trained: NamedTensors,
    /// Parameters that only a classifier that begins with this model has, such as BERT's pooler.
    classification_head: NamedTensors,
    /// What reads its inputs and names its outputs.
    pub readers: Readers,
    /// Present if the model was read from a folder of `transformers`.
    pub hf: Option<HfOrigin>,
    /// Notes for the user: which checkpoint takes the place of the best one; keys and tensors that are ignored.
    pub notes: Vec<String>,
    /// What models built from it compute in, f32 by default.
    pub precision: Precision,
}

/// What Tealight's description of a model does not contain, but that of `transformers` does.
#[derive(Clone, Debug, PartialEq)]
pub struct HfOrigin {
    /// The family.
    pub family: Family,
    /// The ids of special tokens in its `config.json`.
    pub ids: SpecialIds,
    /// What the outputs of a classifier mean; `None` for other models.
    pub classification: Option<Classification>,
    /// Its `generation_config.json`, if it continues texts and has one.
    pub(crate) generation: Option<GenerationConfig>,
}

impl TrainedModel {
    /// Opens the model at `path`. For a run, `selection` chooses the checkpoint; without it, the path or the
    /// run's configuration does. A path that does not exist is the name of a model in the local cache of Hugging
    /// Face.
    ///
    /// # Errors
    /// If there is no model, or if a file of it is damaged or asks for what Tealight does not compute.
    pub fn open(path: &Path, selection: Option<Selection>) -> Result<Self> {
        let path = &*HubCache::of_environment().locate(path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = if path.is_file() { parent.unwrap_or(Path::new(".")) } else { path };
        if folder.join(tealight_folder::FILE).exists() {
            return tealight_folder::read(folder);
        }
        if folder.join(folder::CONFIG).exists() {
            return Self::from_hugging_face(folder);
        }
        match RunDirectory::open(path) {
            Ok(directory) => Self::from_run(path, directory, selection),
            Err(Error::NotARun { .. }) => {
                Err(Error::NotAModel { path: path.to_owned(), inner: model_below(path, DEPTH) })
            }
            Err(error) => Err(error),
        }
    }

    fn from_run(
        path: &Path,
        directory: RunDirectory,
        selection: Option<Selection>,
    ) -> Result<Self> {
        let manifest = directory.manifest()?;
        let source = directory.resolved(&[])?;
        let config: RunConfig = source.deserialize()?;
        let checked = config.validate().and_then(|()| config.task.settings().validate());
        checked.map_err(|error| in_file(error, &directory.resolved_path()))?;
        let RunConfig { task, mut model, checkpoint, .. } = config;
        let asked = selection.or_else(|| Selection::named(path, &directory));
        let (checkpoint, note) = directory.checkpoints().select(asked, checkpoint.select)?;
        let mut weights = load_weights(&checkpoint, &Device::Cpu)?;
        let decision = Decision::read(directory.path(), &checkpoint)?;
        let as_trained = match &decision {
            Some(decision) => decision.fold(&mut weights)?,
            None => NamedTensors::new(),
        };
        let tokenizer = match (&task, Tokenizer::in_folder(directory.path())?) {
            (TaskConfig::CausalLm(task), Some(tokenizer)) => Some(task.for_prompts(&tokenizer)?),
            (_, tokenizer) => tokenizer,
        };
        let pad_id = tokenizer.as_ref().and_then(|tokenizer| tokenizer.special().pad);
        let record =
            SpecRecord { task: task.kind().to_owned(), sizes: manifest.sizes, read_out: None };
        let spec = task.settings().model_spec(record.clone(), pad_id);
        check_sizes(&record, spec.as_ref())
            .map_err(|error| in_file(error, &directory.manifest_path()))?;
        if let Some(
            ModelSpec::MaskedLm(_)
            | ModelSpec::CausalLm(_)
            | ModelSpec::TextClassifier(_)
            | ModelSpec::Tagger(_),
        ) = spec
        {
            model.max_seq_len = model.max_seq_len.or(spec.and_then(|spec| spec.seq_len()));
        }
        let mut readers = Readers::read(spec.as_ref(), tokenizer, directory.path())?;
        task.settings().add_readers(&mut readers)?;
        if let Some(Decision { thresholds, .. }) = decision {
            add_thresholds(&mut readers, thresholds, directory.path())?;
        }
        Ok(Self {
            origin: path.to_owned(),
            folder: directory.path().to_owned(),
            config_file: directory.resolved_path(),
            weights_from: checkpoint,
            run: Some(directory),
            record: recorded(spec.as_ref(), &readers, record),
            spec,
            config: model,
            weights,
            as_trained,
            classification_head: NamedTensors::new(),
            readers,
            hf: None,
            notes: note.into_iter().collect(),
            precision: Precision::F32,
        })
    }

    fn from_hugging_face(path: &Path) -> Result<Self> {
        let HfFolder { description, spec, weights, classification_head, mut notes } =
            HfFolder::open(path)?;
        let Description { family, config, ids, classification, .. } = description;
        let labels = classification.as_ref().map(|outputs| {
            // A folder that Tealight wrote has thresholds beside what `config.json` can hold; other programs write other
            // files of this name.
            let labels = Labels::of_hugging_face(outputs);
            let kept = Labels::parse(path).ok().filter(|kept| kept.names() == labels.names());
            let thresholds = kept.map(|kept| kept.thresholds().clone()).unwrap_or_default();
            labels.with_thresholds(thresholds).checked(&path.join(labels::FILE))
        });
        let labels = labels.transpose()?;
        let tokenizer = Tokenizer::in_folder(path)?;
        let mut readers = Readers { tokenizer, labels, ..Readers::default() };
        if let ModelSpec::ImageClassifier(spec) = &spec
            && let Some((preprocessing, of_pictures)) = preprocessor::read(path, spec.size)?
        {
            readers.preprocessing = Some(preprocessing);
            notes.extend(of_pictures);
        }
        let generation = match &spec {
            ModelSpec::CausalLm(spec) => GenerationConfig::read(path, spec.vocab_size)?,
            _ => None,
        };
        Ok(Self {
            origin: path.to_owned(),
            folder: path.to_owned(),
            config_file: path.join(folder::CONFIG),
            weights_from: path.to_owned(),
            run: None,
            record: SpecRecord::new(&spec).unwrap_or_default(),
            spec: Some(spec),
            config,
            weights,
            as_trained: NamedTensors::new(),
            classification_head,
            readers,
            hf: Some(HfOrigin { family, ids, classification, generation }),
            notes,
            precision: Precision::F32,
        })
    }

    /// Builds a model from the parameters, without gradients. An error names the files with the cause.
    pub(crate) fn build<M>(
        &self,
        device: &Device,
        build: impl FnOnce(&VarBuilder<'_>) -> BuildResult<M>,
    ) -> Result<M> {
        let dtype = self.precision.computes_in(device);
        build(&without_gradients(&self.weights, dtype, device)).map_err(|error| match error {
            BuildError::Config(fault) => Error::unusable(&self.config_file, &fault),
            BuildError::Candle(error) => {
                let (config, cause) = (self.config_file.display(), without_backtrace(&error));
                let rule = format!("does not fit `{config}`: {cause}");
                Error::unusable(&self.weights_from, &rule)
            }
        })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.readers.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer(self.origin.clone()))
    }

    /// The tokens that its continuations may contain.
    pub(crate) fn vocabulary(&self) -> Vocabulary<'_> {
        match &self.hf {
            None => Vocabulary::Text,
            Some(HfOrigin { generation: None, .. }) => Vocabulary::Except(&[]),
            Some(HfOrigin { generation: Some(read), .. }) => Vocabulary::Except(read.suppressed()),
        }
    }

    /// The kind of the model, with its article. A model whose inputs only Tealight encodes is called by its task.
    pub fn description(&self) -> String {
        match &self.spec {
            Some(spec) if !reads_only_task_data(Some(spec), &self.readers) => spec.to_string(),
            _ => format!("a model of the task \"{}\"", self.record.task),
        }
    }

    /// The function that the only output of this cross-encoder goes through: as its folder states, or as the loss of its run
    /// asks; of a run that predicts a number, none; else σ, as in sentence-transformers.
    ///
    /// # Errors
    /// If a file of the folder cannot be read, or names another function.
    pub(crate) fn activation(&self) -> Result<Activation> {
        let stated = Activation::read(&self.folder)?.or(self.readers.activation);
        if let Some(stated) = stated {
            return Ok(stated);
        }
        let objective = self.readers.labels.as_ref().map(Labels::objective);
        let is_number = self.hf.is_none() && objective == Some(Objective::Regression);
        Ok(if is_number { Activation::Identity } else { Activation::Sigmoid })
    }

    /// This model with other weights, for which no thresholds have been chosen.
    #[must_use]
    pub fn with_weights(self, weights: NamedTensors) -> Self {
        let labels = self.readers.labels.map(|labels| labels.with_thresholds(BTreeMap::new()));
        let as_trained = NamedTensors::new();
        Self { weights, as_trained, readers: Readers { labels, ..self.readers }, ..self }
    }

    /// The parameters as they were trained, without the temperature of a run. A folder has it in its parameters.
    pub fn weights_as_trained(&self) -> NamedTensors {
        let mut weights = self.weights.clone();
        weights.extend(self.as_trained.clone());
        weights
    }

    /// The kind of the model, if other programs can use it, too.
    pub(crate) fn portable_spec(&self) -> Option<&ModelSpec> {
        self.spec.as_ref().filter(|spec| !reads_only_task_data(Some(spec), &self.readers))
    }

    /// The error that something needs another kind of model: the kind that is `wanted`, with its article.
    pub(crate) fn wrong_kind(&self, wanted: &'static str) -> Error {
        Error::OtherKind { path: self.origin.clone(), wanted, found: self.description() }
    }
}

/// How many folders deep, and how many in each, a folder that is no model is searched for one, as a wheel has it:
/// `package/model`.
const DEPTH: usize = 3;
const MAX_FOLDERS: usize = 100;

/// The first model below `path`, by name; an unreadable folder has none.
fn model_below(path: &Path, depth: usize) -> Option<PathBuf> {
    let entries = fs::read_dir(path).ok()?.flatten().map(|entry| entry.path());
    let mut inner: Vec<_> = entries.filter(|path| path.is_dir()).take(MAX_FOLDERS).collect();
    inner.sort_unstable();
    let files = [tealight_folder::FILE, folder::CONFIG];
    let is_model = |path: &&PathBuf| {
        files.iter().any(|file| path.join(file).exists()) || RunDirectory::open(path).is_ok()
    };
    let found = inner.iter().find(is_model).cloned();
    let deeper = || inner.iter().find_map(|path| model_below(path, depth - 1));
    found.or_else(|| if depth > 1 { deeper() } else { None })
}

/// Whether only a task of Tealight encodes the inputs of the model, so that no other program can use it.
fn reads_only_task_data(spec: Option<&ModelSpec>, readers: &Readers) -> bool {
    match spec {
        None | Some(ModelSpec::Forecaster(_)) => true,
        Some(ModelSpec::Seq2Seq { .. }) => readers.tokenizer.is_none(),
        Some(_) => false,
    }
}

/// Gives the labels of a run in `folder` the thresholds that were chosen with the checkpoint.
fn add_thresholds(
    readers: &mut Readers,
    thresholds: BTreeMap<String, f64>,
    folder: &Path,
) -> Result<()> {
    let file = folder.join(decision::FILE);
    let labels = readers.labels.take().map(|labels| labels.with_thresholds(thresholds));
    readers.labels = labels.map(|labels| labels.checked(&file)).transpose()?;
    Ok(())
}

/// What an exported folder records of a model whose files have this `record`.
fn recorded(spec: Option<&ModelSpec>, readers: &Readers, record: SpecRecord) -> SpecRecord {
    let of_kind = spec.filter(|_| !reads_only_task_data(spec, readers)).and_then(SpecRecord::new);
    of_kind.unwrap_or(record)
}

/// Checks the recorded sizes of a model against the limits of a configuration, and its token ids against its vocabulary.
/// The sizes of a model without a `spec` build nothing and may be large, such as the number of examples in a corpus.
fn check_sizes(record: &SpecRecord, spec: Option<&ModelSpec>) -> Result<()> {
    let Some((spec, of_spec)) = spec.and_then(|spec| Some((spec, SpecRecord::new(spec)?))) else {
        return Ok(());
    };
    for name in ["pad_id", "begin_id"] {
        let (id, n_tokens) = (record.sizes.get(name), spec.vocab_size() as u64);
        if let Some(id) = id.filter(|&&id| id >= n_tokens) {
            let key = format!("sizes.{name}");
            let message = format!("`{key}` = {id} must be below `sizes.vocab_size` = {n_tokens}");
            return Err(Error::config([&key], message));
        }
    }
    let check = |(name, &size): (&String, &u64)| at_most(&format!("sizes.{name}"), size, MAX_SIZE);
    of_spec.sizes.iter().try_for_each(check)
}

/// Names the file instead of the configuration in an error.
fn in_file(error: Error, path: &Path) -> Error {
    match error {
        Error::Config(fault) => Error::unusable(path, &fault),
        error => error,
    }
}

/// The message of an error, without the backtrace that Candle adds under `RUST_BACKTRACE`.
fn without_backtrace(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => inner.to_string(),
        error => error.to_string(),
    }
}

/// Checks that a model can read a text of `n` tokens.
pub(crate) fn check_n_tokens(text: &str, n: usize, longest: usize) -> Result<()> {
    if (1..=longest).contains(&n) {
        return Ok(());
    }
    Err(Error::text(text, format!("it has {n} tokens, and the model reads 1 to {longest}")))
}
