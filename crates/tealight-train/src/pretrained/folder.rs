//! A folder of `transformers`: `config.json`, and `model.safetensors` or its shards with
//! `model.safetensors.index.json`. [`tealight_model::hf`] interprets their content.
//!
//! Every file is checked before its content is used, and errors name the file: the size of texts is limited,
//! the offsets of tensors must fit the file, and the sizes in `config.json` must fit the tensors before
//! anything of those sizes is allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

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

/// The file with the description of the model.
pub const CONFIG: &str = "config.json";
/// The file with the tensors.
pub const MODEL: &str = "model.safetensors";
/// The file that maps tensors to shards.
const INDEX: &str = "model.safetensors.index.json";

/// The largest JSON file that is read, in bytes; real ones are far smaller.
const MAX_JSON_SIZE: u64 = 1 << 26;

/// A model of `transformers`.
#[derive(Debug)]
pub struct HfFolder {
    /// The content of its `config.json`.
    pub description: Description,
    /// `false` if the files hold only the encoder of a masked language model, as `BertModel` saved by
    /// sentence-transformers does.
    pub has_head: bool,
    /// All parameters of the model, under Tealight's names, in f32.
    pub weights: NamedTensors,
    /// Notes for the user: keys and tensors that are ignored.
    pub notes: Vec<String>,
}

impl HfFolder {
    /// Reads the folder at `path`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or Tealight has no such model. The error names the file.
    pub fn open(path: &Path) -> Result<Self> {
        let config = path.join(CONFIG);
        let description = hf::describe(&read_json_text(&config)?).map_err(in_file(&config))?;
        let files = TensorFiles::read(path)?;
        let weights = description.rename(files.tensors).map_err(in_file(&files.origin))?;
        let is_masked_lm = description.family.head() == Head::MaskedLm;
        let has_head = !is_masked_lm || weights.has_masked_lm_head();
        let built = weights.restricted_to(|vb| build(&description, has_head, vb));
        let weights = built.map_err(|error| match error {
            BuildError::Config(fault) => Error::unusable(&config, &fault),
            BuildError::Candle(error) => Error::unusable(&files.origin, &error),
        })?;
        let notes = [&description.notes[..], weights.notes()].concat();
        Ok(Self { description, has_head, weights: weights.into_tensors(), notes })
    }
}

/// The files of a folder for `transformers`, with their names: the configuration, the `parameters` and the
/// tokenizer, if there is one.
///
/// # Errors
/// If a parameter has no counterpart in `transformers`.
pub fn files(
    expressed: &Expressed,
    parameters: &NamedTensors,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let model = Path::new(MODEL);
    let named = expressed.rename(parameters).map_err(in_file(model))?;
    let mut written = description(expressed, tokenizer)?;
    written.push((MODEL.to_owned(), tensors::to_bytes_for_torch(model, &named)?));
    Ok(written)
}

/// The files of [`files`] without those of the parameters.
pub(super) fn description(
    expressed: &Expressed,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let config = files::to_json(Path::new(CONFIG), &expressed.config)?;
    let mut written = vec![(CONFIG.to_owned(), config)];
    if let Some(tokenizer) = tokenizer {
        written.extend(tokenizer_files(expressed, tokenizer)?);
    }
    Ok(written)
}

/// Builds the model once, to check its settings and to request each of its parameters.
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

/// The tensors of a folder, under their names in the files.
struct TensorFiles {
    /// `model.safetensors` or the index of its shards, for error messages.
    origin: PathBuf,
    /// Floating-point tensors, in f32.
    tensors: NamedTensors,
    /// Names of other tensors, which are not parameters.
    skipped: BTreeSet<String>,
}

impl TensorFiles {
    fn read(folder: &Path) -> Result<Self> {
        let (single, index) = (folder.join(MODEL), folder.join(INDEX));
        let is_single = single.is_file() || !index.is_file();
        let origin = if is_single { single.clone() } else { index.clone() };
        let mut files = Self { origin, tensors: BTreeMap::new(), skipped: BTreeSet::new() };
        if is_single {
            files.add(&single)?;
            return Ok(files);
        }
        let shards = ShardIndex::read(&index)?.weight_map;
        for file in shards.values().collect::<BTreeSet<_>>() {
            files.add(&folder.join(file))?;
        }
        match shards.iter().find(|(name, _)| !files.has(name)) {
            None => Ok(files),
            Some((name, file)) => {
                Err(Error::unusable(&folder.join(file), &format!("it has no tensor `{name}`")))
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name) || self.skipped.contains(name)
    }

    /// Adds the tensors of one file.
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
                return Err(Error::unusable(
                    path,
                    &format!("tensor `{name}` is also in another file"),
                ));
            }
        }
        Ok(())
    }
}

/// `model.safetensors.index.json`
#[derive(Deserialize)]
struct ShardIndex {
    /// The file of each tensor, by the tensor's name.
    weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    fn read(path: &Path) -> Result<Self> {
        let text = read_json_text(path)?;
        let index: Self = serde_json::from_str(&text).map_err(Error::json(path))?;
        match index.weight_map.values().find(|file| !is_beside(file)) {
            None => Ok(index),
            Some(file) => Err(Error::unusable(path, &format!("`{file}` is not a file beside it"))),
        }
    }
}

/// Whether a path is only a file name, and so cannot leave the folder.
fn is_beside(file: &str) -> bool {
    let mut components = Path::new(file).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}

fn read_json_text(path: &Path) -> Result<String> {
    let size = fs::metadata(path).map_err(Error::io("read", path))?.len();
    if size > MAX_JSON_SIZE {
        let rule = format!("it has {size} bytes, and at most {MAX_JSON_SIZE} are read");
        return Err(Error::unusable(path, &rule));
    }
    files::read_text(path)
}

fn in_file(path: &Path) -> impl FnOnce(HfError) -> Error {
    move |error| Error::unusable(path, &error)
}

/// `tokenizer.json`, and two files that name the special tokens.
fn tokenizer_files(expressed: &Expressed, tokenizer: &Tokenizer) -> Result<Vec<(String, Vec<u8>)>> {
    let special_tokens = tokenizer.roles();
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": expressed.seq_len,
        "clean_up_tokenization_spaces": false,
    });
    let mut settings = settings.as_object().cloned().unwrap_or_default();
    settings.extend(special_tokens.clone());
    let json = |name: &str, map: &Map<String, Value>| -> Result<_> {
        Ok((name.to_owned(), files::to_json(Path::new(name), map)?))
    };
    Ok(vec![
        (tokenizer::FILE.to_owned(), tokenizer.to_json()?),
        json("tokenizer_config.json", &settings)?,
        json("special_tokens_map.json", &special_tokens)?,
    ])
}
