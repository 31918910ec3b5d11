//! A folder of `transformers`: `config.json`, and `model.safetensors` or its shards with
//! `model.safetensors.index.json`. What they say is [`tealight_model::hf`]'s to know.
//!
//! A file is refused by its name, and nothing of it is believed before it is checked: a text is not
//! longer than it may be, a tensor stands where its header says, and a model of the sizes in
//! `config.json` is built from the tensors that are there, before anything else is allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path};

use candle_core::safetensors::Load as _;
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tealight_model::BuildError;
use tealight_model::hf::{self, Description, Expressed, Head, HfError};
use tealight_model::models::causal_lm::CausalLm;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::models::seq2seq::Seq2Seq;

use crate::data::text::tokenizer::{self, Tokenizer};
use crate::error::{Error, Result};
use crate::storage::files;
use crate::storage::tensors::{self, NamedTensors};

/// What the model is.
pub const CONFIG: &str = "config.json";
/// Its tensors.
pub const MODEL: &str = "model.safetensors";
/// Or which of several files has which of them.
const INDEX: &str = "model.safetensors.index.json";

/// Bytes that a text of JSON may have: far more than any has.
const MAX_TEXT: u64 = 1 << 26;

/// A model of `transformers`.
#[derive(Debug)]
pub struct HfFolder {
    /// What it is.
    pub description: Description,
    /// Whether it has the head that its family is trained with. An encoder may come without: `BertModel`,
    /// as sentence-transformers saves it, or with the head of a classifier.
    pub has_head: bool,
    /// Its parameters, all that the model has, by their names here, in f32.
    pub weights: NamedTensors,
    /// What a person should know: what was not read, what is not kept.
    pub notes: Vec<String>,
}

impl HfFolder {
    /// Reads the folder at `path`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or no model here computes what it describes; the file is named.
    pub fn open(path: &Path) -> Result<Self> {
        let config = path.join(CONFIG);
        let description = hf::describe(&text(&config)?).map_err(of_file(&config))?;
        let loaded = load(path)?;
        let weights = description.rename(loaded.tensors).map_err(of_file(&loaded.origin))?;
        let is_masked_lm = description.family.head() == Head::MaskedLm;
        let has_head = !is_masked_lm || weights.has_masked_lm_head();
        let built = weights.asked_for_by(|vb| build(&description, has_head, vb));
        let weights = built.map_err(|error| match error {
            BuildError::Config(fault) => unusable(&config, &fault),
            BuildError::Candle(error) => unusable(&loaded.origin, &error),
        })?;
        let notes = [&description.notes[..], weights.notes()].concat();
        Ok(Self { description, has_head, weights: weights.into_tensors(), notes })
    }
}

/// The files of a model that `transformers` can express, by name: its configuration, its `parameters`
/// and, where there is one, its tokenizer.
///
/// # Errors
/// If a parameter has no name there.
pub fn files(
    expressed: &Expressed,
    parameters: &NamedTensors,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let model = Path::new(MODEL);
    let named = expressed.rename(parameters).map_err(of_file(model))?;
    let mut written = vec![
        (CONFIG.to_owned(), files::to_json(Path::new(CONFIG), &expressed.config)?),
        (MODEL.to_owned(), tensors::to_bytes_for_torch(model, &named)?),
    ];
    if let Some(tokenizer) = tokenizer {
        written.extend(tokenizer_files(expressed, tokenizer)?);
    }
    Ok(written)
}

/// Builds the model and drops it: an error for what is wrong with it, and a request for each parameter.
fn build(description: &Description, has_head: bool, vb: &VarBuilder<'_>) -> Result<(), BuildError> {
    let Description { config, sizes, family, .. } = description;
    match family.head() {
        Head::MaskedLm if !has_head => {
            MaskedLm::build_encoder(config, &sizes.masked_lm(), vb).map(|_| ())
        }
        Head::MaskedLm => MaskedLm::build(config, &sizes.masked_lm(), vb).map(|_| ()),
        Head::CausalLm => CausalLm::build(config, &sizes.causal_lm(), vb).map(|_| ()),
        Head::Seq2Seq => Seq2Seq::build(config, &sizes.seq2seq(), vb).map(|_| ()),
    }
}

/// The tensors of a folder under the names in the file, with the file that says where they are.
struct Loaded {
    origin: std::path::PathBuf,
    tensors: NamedTensors,
    /// Those that nothing is computed with.
    skipped: BTreeSet<String>,
}

fn load(path: &Path) -> Result<Loaded> {
    let (single, index) = (path.join(MODEL), path.join(INDEX));
    let (tensors, skipped) = (BTreeMap::new(), BTreeSet::new());
    let mut loaded = Loaded { origin: single.clone(), tensors, skipped };
    if single.is_file() || !index.is_file() {
        loaded.add(&single)?;
        return Ok(loaded);
    }
    loaded.origin.clone_from(&index);
    let shards = Index::read(&index)?;
    for file in shards.weight_map.values().collect::<BTreeSet<_>>() {
        loaded.add(&path.join(file))?;
    }
    let absent = shards.weight_map.iter().find(|(name, _)| !loaded.has(name));
    match absent {
        None => Ok(loaded),
        Some((name, file)) => {
            Err(unusable(&path.join(file), &format!("it has no tensor `{name}`")))
        }
    }
}

impl Loaded {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name) || self.skipped.contains(name)
    }

    /// Adds the tensors of one file: floats in f32, and no others, for nothing is computed with them.
    fn add(&mut self, path: &Path) -> Result<()> {
        let bytes = files::read(path)?;
        let views = tensors::views(path, &bytes)?;
        for (name, view) in views.tensors() {
            use safetensors::Dtype::{BF16, F16, F32, F64};
            if !matches!(view.dtype(), BF16 | F16 | F32 | F64) {
                self.skipped.insert(name);
                continue;
            }
            let tensor = view.load(&Device::Cpu)?.to_dtype(DType::F32)?;
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(unusable(path, &format!("tensor `{name}` is in another file, too")));
            }
        }
        Ok(())
    }
}

/// `model.safetensors.index.json`
#[derive(Deserialize)]
struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

impl Index {
    fn read(path: &Path) -> Result<Self> {
        let json_error = |source| Error::Json { path: path.to_owned(), source };
        let index: Self = serde_json::from_str(&text(path)?).map_err(json_error)?;
        match index.weight_map.values().find(|file| !is_beside(file)) {
            None => Ok(index),
            Some(file) => Err(unusable(path, &format!("`{file}` is not a file beside it"))),
        }
    }
}

/// Whether a name is that of a file in the same folder, and leads nowhere else.
fn is_beside(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}

fn text(path: &Path) -> Result<String> {
    let size = fs::metadata(path).map_err(Error::io("read", path))?.len();
    if size > MAX_TEXT {
        return Err(unusable(
            path,
            &format!("it has {size} bytes, too many for what it should be"),
        ));
    }
    files::read_text(path)
}

fn unusable(path: &Path, rule: &impl ToString) -> Error {
    Error::Unusable { path: path.to_owned(), rule: rule.to_string() }
}

fn of_file(path: &Path) -> impl FnOnce(HfError) -> Error {
    move |error| unusable(path, &error)
}

/// `tokenizer.json`, and what special tokens are for.
fn tokenizer_files(expressed: &Expressed, tokenizer: &Tokenizer) -> Result<Vec<(String, Vec<u8>)>> {
    let map = tokenizer.roles();
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": expressed.seq_len,
        "clean_up_tokenization_spaces": false,
    });
    let mut settings = settings.as_object().cloned().unwrap_or_default();
    settings.extend(map.clone());
    let json = |name: &str, map: &Map<String, Value>| -> Result<_> {
        Ok((name.to_owned(), files::to_json(Path::new(name), map)?))
    };
    Ok(vec![
        (tokenizer::FILE.to_owned(), tokenizer.to_json()?),
        json("tokenizer_config.json", &settings)?,
        json("special_tokens_map.json", &map)?,
    ])
}
