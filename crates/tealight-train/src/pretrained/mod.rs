//! Models that are there already, wherever they come from: a run of Tealight, one of its checkpoints, a
//! folder that `tealight export` wrote, or a model repository of Hugging Face.
//!
//! ```text
//! runs/<name>  checkpoints/step-000500  folder with tealight.json  folder with config.json
//!        └──────────────┴──────────┬──────────────┴─────────────────────────┘
//!                              Pretrained ──► a frozen model, to be used
//!                                         ──► parameters that a new run begins with
//! ```

pub mod card;
pub mod export;
pub mod folder;
mod readings;
mod settings;
mod tealight_folder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use tealight_model::hf::{Description, Family, Head, Sizes};
use tealight_model::models::causal_lm::{CausalLm, CausalLmSpec};
use tealight_model::models::masked_lm::{MaskedLm, MaskedLmSpec};
use tealight_model::models::seq2seq::{Seq2Seq, Seq2SeqSpec};
use tealight_model::params::frozen;
use tealight_model::{ModelConfig, ParamStore};

use crate::config::{ConfigSource, RunConfig};
use crate::error::{Error, Result};
use crate::run::tensors::NamedTensors;
use crate::run::{RunDirectory, Selection, load_weights};
use crate::text::tokenizer::Tokenizer;
use folder::HfFolder;

/// A trained model with what its use takes.
#[derive(Debug)]
pub struct Pretrained {
    /// Where it was found.
    pub origin: PathBuf,
    /// Where its tokenizer is: of a checkpoint, the run.
    folder: PathBuf,
    /// The transformer, its longest sequence written out.
    pub model: ModelConfig,
    /// What it was trained for.
    pub purpose: Purpose,
    /// What it reads and writes, where that is text.
    pub tokenizer: Option<Tokenizer>,
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

/// What a model was trained for, with the sizes that its data decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To fill masks.
    MaskedLm(MaskedLmSpec),
    /// To continue texts.
    CausalLm(CausalLmSpec),
    /// To write one text for another.
    Seq2Seq(Seq2SeqSpec),
    /// Something else, by the kind of its task: its blocks can still begin a new run.
    Other(String),
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
        let purpose = Purpose::new(config.task.kind(), &manifest.sizes, tokenizer.as_ref());
        model.max_seq_len = model.max_seq_len.or(purpose.seq_len());
        let (origin, folder) = (path.to_owned(), directory.path().to_owned());
        Ok(Self { origin, folder, model, purpose, tokenizer, weights, class: None })
    }

    fn from_hugging_face(path: &Path) -> Result<Self> {
        let HfFolder { description, weights, notes } = HfFolder::open(path)?;
        let Description { family, config: model, sizes, .. } = description;
        let purpose = match family.head() {
            Head::MaskedLm => Purpose::MaskedLm(sizes.masked_lm()),
            Head::CausalLm => Purpose::CausalLm(sizes.causal_lm()),
            Head::Seq2Seq => Purpose::Seq2Seq(sizes.seq2seq()),
        };
        let tokenizer = Tokenizer::in_folder(path)?;
        let (origin, class) = (path.to_owned(), Some(Class { family, sizes, notes }));
        Ok(Self { folder: origin.clone(), origin, model, purpose, tokenizer, weights, class })
    }

    /// The masked language model, frozen.
    pub fn masked_lm(&self, device: &Device) -> Result<MaskedLm> {
        match &self.purpose {
            Purpose::MaskedLm(spec) => {
                let vb = frozen(&self.weights, DType::F32, device);
                Ok(MaskedLm::build(&self.model, spec, &vb)?)
            }
            other => Err(self.is_not("a masked language model", other)),
        }
    }

    /// The causal language model, frozen.
    pub fn causal_lm(&self, device: &Device) -> Result<CausalLm> {
        match &self.purpose {
            Purpose::CausalLm(spec) => {
                let vb = frozen(&self.weights, DType::F32, device);
                Ok(CausalLm::build(&self.model, spec, &vb)?)
            }
            other => Err(self.is_not("a causal language model", other)),
        }
    }

    /// The encoder-decoder, frozen.
    pub fn seq2seq(&self, device: &Device) -> Result<Seq2Seq> {
        match &self.purpose {
            Purpose::Seq2Seq(spec) => {
                let vb = frozen(&self.weights, DType::F32, device);
                Ok(Seq2Seq::build(&self.model, spec, &vb)?)
            }
            other => Err(self.is_not("an encoder-decoder", other)),
        }
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

impl Purpose {
    /// The purpose of a model that was trained on a task of this `kind`, with `sizes` as the manifest of
    /// a run has them.
    pub(crate) fn new(
        kind: &str,
        sizes: &BTreeMap<String, u64>,
        tokenizer: Option<&Tokenizer>,
    ) -> Self {
        let size = |name: &str| sizes.get(name).map(|&size| size as usize);
        let purpose = match kind {
            "masked_lm" => size("vocab_size").zip(size("seq_len")).map(|(vocab_size, seq_len)| {
                Self::MaskedLm(MaskedLmSpec {
                    vocab_size,
                    seq_len,
                    n_token_types: size("n_token_types").unwrap_or(0),
                    pad_id: tokenizer.and_then(|tokenizer| tokenizer.special().pad),
                    packed: false,
                })
            }),
            "causal_lm" => size("vocab_size").zip(size("seq_len")).map(|(vocab_size, seq_len)| {
                Self::CausalLm(CausalLmSpec { vocab_size, seq_len, packed: false })
            }),
            _ => None,
        };
        purpose.unwrap_or_else(|| Self::Other(kind.to_owned()))
    }

    /// The kind of its task, and its sizes as a manifest has them.
    pub fn description(&self) -> (String, BTreeMap<String, u64>) {
        let sized = |kind: &str, sizes: &[(&str, usize)]| {
            let sizes = sizes.iter().map(|&(name, size)| (name.to_owned(), size as u64));
            (kind.to_owned(), sizes.collect())
        };
        match self {
            Self::MaskedLm(MaskedLmSpec { vocab_size, n_token_types, seq_len, .. }) => {
                let types = ("n_token_types", *n_token_types);
                sized("masked_lm", &[("vocab_size", *vocab_size), ("seq_len", *seq_len), types])
            }
            Self::CausalLm(CausalLmSpec { vocab_size, seq_len, .. }) => {
                sized("causal_lm", &[("vocab_size", *vocab_size), ("seq_len", *seq_len)])
            }
            Self::Seq2Seq(Seq2SeqSpec { vocab_size, source_len, target_len }) => {
                let lens = [("source_len", *source_len), ("target_len", *target_len)];
                sized("seq2seq", &[&[("vocab_size", *vocab_size)], &lens[..]].concat())
            }
            Self::Other(kind) => sized(kind, &[]),
        }
    }

    /// The longest sequence.
    fn seq_len(&self) -> Option<usize> {
        match self {
            Self::MaskedLm(spec) => Some(spec.seq_len),
            Self::CausalLm(spec) => Some(spec.seq_len),
            Self::Seq2Seq(_) | Self::Other(_) => None,
        }
    }
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MaskedLm(_) => f.write_str("a masked language model"),
            Self::CausalLm(_) => f.write_str("a causal language model"),
            Self::Seq2Seq(_) => f.write_str("an encoder-decoder"),
            Self::Other(kind) => write!(f, "a model of the task \"{kind}\""),
        }
    }
}
