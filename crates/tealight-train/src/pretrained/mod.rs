//! Models that are there already, wherever they come from: a run of Tealight, one of its checkpoints, a
//! folder that `tealight export` wrote, or a model repository of Hugging Face.
//!
//! ```text
//! runs/<name>  checkpoints/step-000500  folder with tealight.json  folder with config.json
//!        └──────────────┴──────────┬──────────────┴─────────────────────────┘
//!                              Pretrained ──► a frozen model, to be used
//!                                         ──► parameters that a new run begins with
//! ```

mod attention_maps;
pub mod card;
pub mod export;
pub mod folder;
mod purpose;
mod settings;
mod tealight_folder;
pub mod translation;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use tealight_model::hf::{Description, Family, Head, Sizes};
use tealight_model::models::causal_lm::CausalLm;
use tealight_model::models::classifier::Classifier;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::models::seq2seq::Seq2Seq;
use tealight_model::params::frozen;
use tealight_model::{BuildError, BuildResult, ModelConfig, ParamStore};

use crate::config::{ConfigSource, RunConfig};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::run::{RunDirectory, Selection, load_weights};
use crate::storage::tensors::NamedTensors;
use crate::task::classify::{self, Classify, Labels};
use folder::HfFolder;
pub use purpose::{Purpose, Stated};

/// A trained model with what its use takes.
#[derive(Debug)]
pub struct Pretrained {
    /// Where it was found.
    pub origin: PathBuf,
    /// Where its tokenizer is: of a checkpoint, the run.
    folder: PathBuf,
    /// The file that says what it is, for messages.
    description: PathBuf,
    /// The transformer, its longest sequence written out.
    pub model: ModelConfig,
    /// What it was trained for.
    pub purpose: Purpose,
    /// What it reads and writes, where that is text.
    pub tokenizer: Option<Tokenizer>,
    /// The classes of a classifier, in the order of its outputs.
    labels: Option<Labels>,
    /// Its parameters, by their names in the model.
    pub weights: NamedTensors,
    /// What it is in `transformers`, if it comes from there.
    pub class: Option<Class>,
}

/// What a model is in `transformers`.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The family.
    pub family: Family,
    /// What its `config.json` says beside the model.
    pub sizes: Sizes,
    /// What a person should know: what was not read, what is not kept.
    pub notes: Vec<String>,
}

/// What became of the parameters of a run that began with those of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initialised {
    /// How many tensors were taken over.
    pub n_loaded: usize,
    /// The run's parameters that the other does not have: they begin at random.
    pub fresh: Vec<String>,
    /// The other's that the run has no place for.
    pub unused: Vec<String>,
}

impl Pretrained {
    /// Opens whatever is at `path`. `selection` says which checkpoint of a run; the choice of its
    /// configuration when absent.
    pub fn open(path: &Path, selection: Option<Selection>) -> Result<Self> {
        if !path.exists() {
            let missing = std::io::ErrorKind::NotFound.into();
            return Err(Error::io("open", path)(missing));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = if path.is_file() { parent.unwrap_or(Path::new(".")) } else { path };
        if tealight_folder::is_one(folder) {
            return tealight_folder::read(folder);
        }
        if folder.join(folder::CONFIG).is_file() {
            return Self::from_hugging_face(folder);
        }
        match RunDirectory::open(path) {
            Ok(directory) => Self::from_run(path, &directory, selection),
            Err(Error::NotARun { .. }) => Err(Error::NotAModel { path: path.to_owned() }),
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
        let selection = selection
            .or_else(|| Selection::named(path, directory))
            .unwrap_or_else(|| config.checkpoint.select.into());
        let weights = load_weights(&directory.checkpoints().find(selection)?, &Device::Cpu)?;
        let tokenizer = Tokenizer::in_folder(directory.path())?;
        let mut model = config.model;
        let mut stated = Stated {
            task: config.task.kind().to_owned(),
            sizes: manifest.sizes,
            ..Stated::default()
        };
        if let Some(classify) = config.task.settings().classifier() {
            stated.read_out = Some(classify.read_out);
            stated.sizes.insert("n_token_types".to_owned(), classify.n_token_types as u64);
        }
        let purpose = Purpose::read(stated, tokenizer.as_ref());
        model.max_seq_len = model.max_seq_len.or(purpose.seq_len());
        Ok(Self {
            origin: path.to_owned(),
            folder: directory.path().to_owned(),
            description: directory.resolved_path(),
            labels: labels(&purpose, directory.path())?,
            model,
            purpose,
            tokenizer,
            weights,
            class: None,
        })
    }

    fn from_hugging_face(path: &Path) -> Result<Self> {
        let HfFolder { description, weights, notes } = HfFolder::open(path)?;
        let Description { family, config: model, sizes, .. } = description;
        let purpose = match family.head() {
            Head::MaskedLm => Purpose::MaskedLm(sizes.masked_lm()),
            Head::CausalLm => Purpose::CausalLm(sizes.causal_lm()),
            Head::Seq2Seq => Purpose::Seq2Seq { spec: sizes.seq2seq(), begin_id: sizes.bos_id },
        };
        Ok(Self {
            origin: path.to_owned(),
            folder: path.to_owned(),
            description: path.join(folder::CONFIG),
            model,
            purpose,
            tokenizer: Tokenizer::in_folder(path)?,
            labels: None,
            weights,
            class: Some(Class { family, sizes, notes }),
        })
    }

    /// The masked language model, frozen.
    pub fn masked_lm(&self, device: &Device) -> Result<MaskedLm> {
        match &self.purpose {
            Purpose::MaskedLm(spec) => {
                self.built(device, |vb| MaskedLm::build(&self.model, spec, vb))
            }
            other => Err(self.is_not("a masked language model", other)),
        }
    }

    /// The causal language model, frozen.
    pub fn causal_lm(&self, device: &Device) -> Result<CausalLm> {
        match &self.purpose {
            Purpose::CausalLm(spec) => {
                self.built(device, |vb| CausalLm::build(&self.model, spec, vb))
            }
            other => Err(self.is_not("a causal language model", other)),
        }
    }

    /// The encoder-decoder, frozen.
    pub fn seq2seq(&self, device: &Device) -> Result<Seq2Seq> {
        match &self.purpose {
            Purpose::Seq2Seq { spec, .. } => {
                self.built(device, |vb| Seq2Seq::build(&self.model, spec, vb))
            }
            other => Err(self.is_not("an encoder-decoder", other)),
        }
    }

    /// The classifier, frozen, and the task that knows how it is asked.
    pub fn classifier(&self, device: &Device) -> Result<(Classify, Classifier)> {
        let Purpose::Classifier(spec) = &self.purpose else {
            return Err(self.is_not("a classifier of texts", &self.purpose));
        };
        let config = classify::Config {
            seq_len: spec.seq_len,
            read_out: spec.read_out,
            n_token_types: spec.n_token_types,
            vocab_size: Some(spec.vocab_size),
            ..classify::Config::default()
        };
        let task = Classify::without_data(&config, &self.folder, device)?;
        let model = self.built(device, |vb| Classifier::build(&self.model, spec, vb))?;
        Ok((task, model))
    }

    /// What `build` makes of the parameters; an error names the file that is to blame.
    fn built<M>(
        &self,
        device: &Device,
        build: impl FnOnce(&VarBuilder<'_>) -> BuildResult<M>,
    ) -> Result<M> {
        build(&frozen(&self.weights, DType::F32, device)).map_err(|error| match error {
            BuildError::Config(fault) => {
                Error::Unusable { path: self.description.clone(), rule: fault.to_string() }
            }
            BuildError::Candle(error) => {
                Error::Unusable { path: self.origin.clone(), rule: error.to_string() }
            }
        })
    }

    /// The tokenizer, or an error that says that there is none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer { path: self.origin.clone() })
    }

    /// Writes into `params` every tensor that both have under one name.
    ///
    /// # Errors
    /// If a tensor that both have differs in shape, or they have none in common.
    pub fn initialise(&self, params: &ParamStore) -> Result<Initialised> {
        let variables: BTreeMap<_, _> = params.iter().collect();
        let has_place = |name: &String| variables.contains_key(name);
        let unused = self.weights.keys().filter(|&name| !has_place(name));
        let fresh = variables.keys().filter(|name| !self.weights.contains_key(*name));
        let shared: Vec<_> = self.weights.iter().filter(|&(name, _)| has_place(name)).collect();
        let initialised = Initialised {
            n_loaded: shared.len(),
            fresh: fresh.cloned().collect(),
            unused: unused.cloned().collect(),
        };
        if shared.is_empty() {
            let message = format!(
                "`init_from`: no tensor of `{}` has a place in this model",
                self.origin.display()
            );
            return Err(Error::config(["init_from"], message));
        }
        for (name, tensor) in shared {
            let variable = &variables[name];
            if variable.shape() != tensor.shape() {
                let (expected, actual) = (variable.shape().clone(), tensor.shape().clone());
                let (origin, name) = ("model in `init_from`", name.clone());
                return Err(Error::MisshapenTensor { origin, name, expected, actual });
            }
            variable.set(&tensor.to_device(variable.device())?.to_dtype(variable.dtype())?)?;
        }
        Ok(initialised)
    }

    fn is_not(&self, wanted: &'static str, purpose: &Purpose) -> Error {
        Error::OtherPurpose { path: self.origin.clone(), wanted, found: purpose.to_string() }
    }
}

impl std::fmt::Display for Initialised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tensors", self.n_loaded)?;
        for (what, names) in [("drawn anew", &self.fresh), ("not used", &self.unused)] {
            if !names.is_empty() {
                write!(f, "; {what}: {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}

/// The labels in `folder`, as many as a classifier has outputs; `None` for other models.
fn labels(purpose: &Purpose, folder: &Path) -> Result<Option<Labels>> {
    let Purpose::Classifier(spec) = purpose else { return Ok(None) };
    let labels = Labels::read(folder)?;
    let (n, n_classes) = (labels.names().len(), spec.n_classes);
    if n != n_classes {
        let rule = format!("its labels are {n}, and its model tells {n_classes} classes apart");
        return Err(Error::Unusable { path: folder.to_owned(), rule });
    }
    Ok(Some(labels))
}
