//! Trained models from disk: a run of Tealight, one of its checkpoints, a folder that `tealight export`
//! wrote, or a model repository of Hugging Face.
//!
//! ```text
//! runs/<name>  checkpoints/step-000500  folder with tealight.json  folder with config.json
//!        └──────────────┴──────────┬──────────────┴─────────────────────────┘
//!                              Pretrained ──► a model without gradients, for inference
//!                                         ──► initial parameters of a new run (`init_from`)
//! ```

mod attention_maps;
pub mod card;
pub mod export;
pub mod folder;
mod generation;
mod init_from;
mod preprocessor;
mod purpose;
mod sentence;
mod tealight_folder;
pub mod translation;
mod weight_files;

use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_nn::VarBuilder;
use tealight_model::hf::{Classification, Description, Family, Sizes};
use tealight_model::models::causal_lm::CausalLm;
use tealight_model::models::classifier::Classifier;
use tealight_model::models::image_classifier::ImageClassifier;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::models::seq2seq::Seq2Seq;
use tealight_model::params::without_gradients;
use tealight_model::transformer::Transformer;
use tealight_model::{BuildError, BuildResult, ModelConfig};

use crate::config::{Precision, RunConfig};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::inference::continuation::Vocabulary;
use crate::run::RunDirectory;
use crate::run::checkpoint::load_weights;
use crate::run::checkpoints::Selection;
use crate::settings::ConfigSource;
use crate::storage::hub::HubCache;
use crate::storage::tensors::NamedTensors;
use crate::task::TaskConfig;
use crate::task::classify::{self, Classify};
use crate::task::images::{self, Images, Preprocessing};
use crate::task::labels::Labels;
use crate::task::seq2seq;
use folder::HfFolder;
use generation::GenerationConfig;
pub use init_from::InitReport;
pub use purpose::{Purpose, PurposeRecord};
pub use sentence::SentenceSettings;

/// A trained model with everything that inference needs.
#[derive(Debug)]
pub struct Pretrained {
    /// The path that was opened.
    pub origin: PathBuf,
    /// The folder of the tokenizer; for a checkpoint, that of its run.
    folder: PathBuf,
    /// The file that describes the model, for error messages.
    config_file: PathBuf,
    /// The transformer, with `max_seq_len` set.
    pub model: ModelConfig,
    /// The task that the model was trained for.
    pub purpose: Purpose,
    /// The tokenizer, for models of text. Of a causal language model that was trained here, its template is one for
    /// prompts.
    pub tokenizer: Option<Tokenizer>,
    /// The classes of a classifier, in the order of its outputs.
    labels: Option<Labels>,
    /// How files become what a classifier of pictures reads, where that is known.
    preprocessing: Option<Preprocessing>,
    /// The tokens of a model of the task `seq2seq`, which has no tokenizer.
    symbols: Option<seq2seq::Vocabulary>,
    /// The parameters by name.
    pub weights: NamedTensors,
    /// Parameters that only a classifier that begins with this model has, such as BERT's pooler.
    classification_head: NamedTensors,
    /// Present if the model was read from a folder of `transformers`.
    pub hf: Option<HfOrigin>,
    /// A note for the user if the latest checkpoint of a run takes the place of the best one.
    pub checkpoint_note: Option<String>,
    /// What models built from it compute in, f32 by default.
    pub precision: Precision,
}

/// What Tealight's description of a model does not contain, but that of `transformers` does.
#[derive(Clone, Debug, PartialEq)]
pub struct HfOrigin {
    /// The family.
    pub family: Family,
    /// Sizes and special tokens in its `config.json`.
    pub sizes: Sizes,
    /// What the outputs of a classifier mean; `None` for other models.
    pub classification: Option<Classification>,
    /// Notes for the user: keys and tensors that are ignored.
    pub notes: Vec<String>,
    /// Its `generation_config.json`, if it continues texts and has one.
    generation: Option<GenerationConfig>,
}

impl Pretrained {
    /// Opens the model at `path`. For a run, `selection` chooses the checkpoint; without it, the path or the
    /// run's configuration does. A path that does not exist is the name of a model in the local cache of Hugging
    /// Face.
    pub fn open(path: &Path, selection: Option<Selection>) -> Result<Self> {
        let path = &*HubCache::of_environment().locate(path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = if path.is_file() { parent.unwrap_or(Path::new(".")) } else { path };
        if folder.join(tealight_folder::FILE).is_file() {
            return tealight_folder::read(folder);
        }
        if folder.join(folder::CONFIG).is_file() {
            return Self::from_hugging_face(folder);
        }
        match RunDirectory::open(path) {
            Ok(directory) => Self::from_run(path, &directory, selection),
            Err(Error::NotARun { .. }) => Err(Error::NotAModel(path.to_owned())),
            Err(error) => Err(error),
        }
    }

    fn from_run(
        path: &Path,
        directory: &RunDirectory,
        selection: Option<Selection>,
    ) -> Result<Self> {
        let manifest = directory.manifest()?;
        let source = ConfigSource::read(&directory.resolved_path(), &[])?;
        let config: RunConfig = source.deserialize()?;
        let asked = selection.or_else(|| Selection::named(path, directory));
        let (checkpoint, checkpoint_note) =
            directory.checkpoints().select(asked, config.checkpoint.select)?;
        let weights = load_weights(&checkpoint, &Device::Cpu)?;
        let tokenizer = match (&config.task, Tokenizer::in_folder(directory.path())?) {
            (TaskConfig::CausalLm(task), Some(tokenizer)) => Some(task.for_prompts(&tokenizer)?),
            (_, tokenizer) => tokenizer,
        };
        let mut model = config.model;
        let mut record = PurposeRecord {
            task: config.task.kind().to_owned(),
            sizes: manifest.sizes,
            read_out: None,
        };
        let settings = config.task.settings();
        if let Some(classify) = settings.classifier() {
            record.read_out = Some(classify.read_out);
            record.sizes.insert("n_token_types".to_owned(), classify.n_token_types as u64);
        }
        record.read_out = record.read_out.or(settings.image_classifier().map(|it| it.read_out));
        let purpose = Purpose::from_record(record, tokenizer.as_ref());
        model.max_seq_len = model.max_seq_len.or(purpose.seq_len());
        Ok(Self {
            origin: path.to_owned(),
            folder: directory.path().to_owned(),
            config_file: directory.resolved_path(),
            labels: labels(&purpose, directory.path())?,
            preprocessing: preprocessing(&purpose, directory.path())?,
            symbols: symbols(&purpose, directory.path())?,
            model,
            purpose,
            tokenizer,
            weights,
            classification_head: NamedTensors::new(),
            hf: None,
            checkpoint_note,
            precision: Precision::F32,
        })
    }

    fn from_hugging_face(path: &Path) -> Result<Self> {
        let HfFolder { description, purpose, weights, classification_head, notes } =
            HfFolder::open(path)?;
        let Description { family, config: model, sizes, classification, .. } = description;
        let (preprocessing, of_pictures) = match &purpose {
            Purpose::Pictures(spec) => preprocessor::read(path, spec.size)?.unzip(),
            _ => (None, None),
        };
        let generation = match &purpose {
            Purpose::CausalLm(spec) => GenerationConfig::read(path, spec.vocab_size)?,
            _ => None,
        };
        let notes = [notes, of_pictures.unwrap_or_default()].concat();
        Ok(Self {
            origin: path.to_owned(),
            folder: path.to_owned(),
            config_file: path.join(folder::CONFIG),
            model,
            purpose,
            tokenizer: Tokenizer::in_folder(path)?,
            labels: classification.as_ref().map(Labels::of_hugging_face),
            preprocessing,
            symbols: None,
            weights,
            classification_head,
            hf: Some(HfOrigin { family, sizes, classification, notes, generation }),
            checkpoint_note: None,
            precision: Precision::F32,
        })
    }

    /// Builds the masked language model, without gradients.
    pub fn masked_lm(&self, device: &Device) -> Result<MaskedLm> {
        match (&self.purpose, &self.hf) {
            (Purpose::MaskedLm(spec), _) => {
                self.build_model(device, |vb| MaskedLm::build(&self.model, spec, vb))
            }
            (Purpose::Encoder(_), Some(HfOrigin { family, .. })) => {
                let missing = family.masked_lm_head(&self.model).join("`, `");
                let rule = format!(
                    "it is an encoder without a language-model head, which computes the probabilities of \
                     masked tokens: there is no tensor `{missing}`"
                );
                Err(Error::unusable(&self.origin, &rule))
            }
            _ => Err(self.wrong_purpose("a masked language model")),
        }
    }

    /// Builds the encoder of a masked language model, without gradients.
    fn encoder(&self, device: &Device) -> Result<Transformer> {
        let (Purpose::MaskedLm(spec) | Purpose::Encoder(spec)) = &self.purpose else {
            return Err(self.wrong_purpose("a language model or a classifier of texts"));
        };
        self.build_model(device, |vb| MaskedLm::build_encoder(&self.model, spec, vb))
    }

    /// Builds the causal language model, without gradients.
    pub fn causal_lm(&self, device: &Device) -> Result<CausalLm> {
        let Purpose::CausalLm(spec) = &self.purpose else {
            return Err(self.wrong_purpose("a causal language model"));
        };
        self.build_model(device, |vb| CausalLm::build(&self.model, spec, vb))
    }

    /// Builds the encoder-decoder, without gradients.
    pub fn seq2seq(&self, device: &Device) -> Result<Seq2Seq> {
        let spec = match &self.purpose {
            Purpose::Seq2Seq { spec, .. } => Some(*spec),
            other => other.of_symbols(),
        };
        let spec = spec.ok_or_else(|| self.wrong_purpose("an encoder-decoder"))?;
        self.build_model(device, |vb| Seq2Seq::build(&self.model, &spec, vb))
    }

    /// Builds the encoder-decoder of the task `seq2seq`, without gradients, and the task that encodes texts for it;
    /// `None` if the model has no vocabulary of this task.
    pub fn seq2seq_task(&self, device: &Device) -> Result<Option<(seq2seq::Seq2Seq, Seq2Seq)>> {
        let (Some(spec), Some(symbols)) = (self.purpose.of_symbols(), &self.symbols) else {
            return Ok(None);
        };
        let task = seq2seq::Seq2Seq::without_data(symbols.clone(), spec, device);
        Ok(Some((task, self.seq2seq(device)?)))
    }

    /// Builds the classifier, without gradients, and the task that encodes texts for it.
    pub fn classifier(&self, device: &Device) -> Result<(Classify, Classifier)> {
        let (Purpose::Classifier(spec), Some(labels)) = (&self.purpose, &self.labels) else {
            return Err(self.wrong_purpose("a classifier of texts"));
        };
        let config = classify::Config {
            seq_len: spec.seq_len,
            read_out: spec.read_out,
            n_token_types: spec.n_token_types,
            vocab_size: Some(spec.vocab_size),
            ..classify::Config::default()
        };
        let (tokenizer, labels) = (self.tokenizer()?.clone(), labels.clone());
        let task = Classify::without_data(&config, tokenizer, labels, &self.model, device)?;
        let model = self.build_model(device, |vb| Classifier::build(&self.model, spec, vb))?;
        Ok((task, model))
    }

    /// Builds the classifier of pictures, without gradients, and the task that prepares pictures for it.
    pub fn image_classifier(&self, device: &Device) -> Result<(Images, ImageClassifier)> {
        let (Purpose::Pictures(spec), Some(labels)) = (&self.purpose, &self.labels) else {
            return Err(self.wrong_purpose("a classifier of pictures"));
        };
        let config = images::Config { read_out: spec.read_out, ..images::Config::default() };
        let (labels, preprocessing) = (labels.clone(), self.preprocessing()?.clone());
        let task = Images::without_data(&config, labels, preprocessing, &self.model, device);
        let model = self.build_model(device, |vb| ImageClassifier::build(&self.model, spec, vb))?;
        Ok((task, model))
    }

    /// How files become what the classifier of pictures reads.
    fn preprocessing(&self) -> Result<&Preprocessing> {
        self.preprocessing.as_ref().ok_or_else(|| {
            let rule =
                "it does not say how pictures are prepared: there is no `preprocessor_config.json`, and no \
                 `processor_config.json`";
            Error::unusable(&self.folder, &rule)
        })
    }

    /// Builds a model from the parameters, without gradients. An error names the file with the cause.
    fn build_model<M>(
        &self,
        device: &Device,
        build: impl FnOnce(&VarBuilder<'_>) -> BuildResult<M>,
    ) -> Result<M> {
        let dtype = self.precision.computes_in(device);
        build(&without_gradients(&self.weights, dtype, device)).map_err(|error| match error {
            BuildError::Config(fault) => Error::unusable(&self.config_file, &fault),
            BuildError::Candle(error) => Error::unusable(&self.origin, &error),
        })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer(self.origin.clone()))
    }

    /// The tokens that its continuations may contain.
    pub fn vocabulary(&self) -> Vocabulary<'_> {
        match &self.hf {
            None => Vocabulary::Text,
            Some(HfOrigin { generation: None, .. }) => Vocabulary::Except(&[]),
            Some(HfOrigin { generation: Some(read), .. }) => Vocabulary::Except(read.suppressed()),
        }
    }

    fn wrong_purpose(&self, wanted: &'static str) -> Error {
        let (path, found) = (self.origin.clone(), self.purpose.to_string());
        Error::OtherPurpose { path, wanted, found }
    }
}

/// Reads the labels of a classifier from `folder`; `None` for other models.
///
/// # Errors
/// If the number of labels differs from the number of outputs.
fn labels(purpose: &Purpose, folder: &Path) -> Result<Option<Labels>> {
    let n_classes = match purpose {
        Purpose::Classifier(spec) => spec.n_classes,
        Purpose::Pictures(spec) if spec.n_classes > 0 => spec.n_classes,
        _ => return Ok(None),
    };
    let labels = Labels::read(folder)?;
    let n = labels.names().len();
    if n != n_classes {
        let rule = format!("it has {n} labels, and its model has {n_classes} classes");
        return Err(Error::unusable(folder, &rule));
    }
    Ok(Some(labels))
}

/// Reads how a classifier of pictures prepares them from `folder`; `None` for other models.
///
/// # Errors
/// If it gives pictures of another size than the model reads.
fn preprocessing(purpose: &Purpose, folder: &Path) -> Result<Option<Preprocessing>> {
    let Purpose::Pictures(spec) = purpose else { return Ok(None) };
    if !Preprocessing::is_in(folder) && spec.n_classes == 0 {
        return Ok(None);
    }
    let preprocessing = Preprocessing::read(folder)?;
    let (size, wanted) = (preprocessing.size(), spec.size);
    if size != wanted {
        let rule = format!(
            "it prepares pictures of {size} with {} channels, and its model reads {wanted} with {} channels",
            size.channels, wanted.channels
        );
        return Err(Error::unusable(folder, &rule));
    }
    Ok(Some(preprocessing))
}

/// Reads the vocabulary of a model of the task `seq2seq` from `folder`; `None` for other models, and where there is
/// none, as in a folder that an older version exported.
///
/// # Errors
/// If the number of tokens differs from that of the model.
fn symbols(purpose: &Purpose, folder: &Path) -> Result<Option<seq2seq::Vocabulary>> {
    let spec = purpose.of_symbols().filter(|_| seq2seq::Vocabulary::is_in(folder));
    let Some(spec) = spec else { return Ok(None) };
    let vocabulary = seq2seq::Vocabulary::read(folder)?;
    let (n, wanted) = (vocabulary.size(), spec.vocab_size);
    if n != wanted {
        let rule = format!("it has a vocabulary of {n} tokens, and its model has {wanted}");
        return Err(Error::unusable(folder, &rule));
    }
    Ok(Some(vocabulary))
}

/// Checks that a model can read a text of `n` tokens.
fn check_n_tokens(text: &str, n: usize, longest: usize) -> Result<()> {
    if (1..=longest).contains(&n) {
        return Ok(());
    }
    Err(Error::text(text, format!("it has {n} tokens, and the model reads 1 to {longest}")))
}
