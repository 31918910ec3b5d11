//! The files of sentence-transformers beside a model: how its hidden states become embeddings.
//!
//! ```text
//! modules.json                        the steps: Transformer, Pooling, maybe Dense, maybe Normalize, with their folders
//! 1_Pooling/config.json               the pooling
//! sentence_bert_config.json           the longest text, lower case
//! config_sentence_transformers.json   prompts, and how many dimensions are returned
//! tokenizer_config.json               the longest text, if no other file says it; the side on which texts are truncated
//! ```
//!
//! What these files ask for is done or refused by name. Keys and their meaning are those of sentence-transformers 2
//! to 6; modules with parameters other than `Dense` are refused.

pub(crate) mod activation;
mod dense;
pub(crate) mod pooling;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use candle_core::{DType, Tensor};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::TrainedModel;
use super::weight_files::read_json_text;
use crate::data::text::tokenizer::Side;
use crate::error::{Error, Result};
use crate::inference::embed::dense::{BIAS, WEIGHT};
use crate::inference::embed::{Dense, DenseActivation, Normalize, SentenceSettings};
use crate::storage::tensors::NamedTensors;
use pooling::poolings;

/// The steps.
pub(crate) const MODULES: &str = "modules.json";
/// The settings of the step that runs the model.
pub(crate) const TRANSFORMER: &str = "sentence_bert_config.json";
/// Prompts and the number of dimensions.
pub(crate) const MODEL: &str = "config_sentence_transformers.json";
/// The settings of the tokenizer.
pub(crate) const TOKENIZER: &str = "tokenizer_config.json";
/// The settings of a step, in its folder.
pub(crate) const CONFIG: &str = "config.json";
/// The folder of the pooling in folders that are written.
pub(crate) const POOLING: &str = "1_Pooling";

impl TrainedModel {
    /// How the model embeds texts: as its run trained it to, or as its folder says.
    ///
    /// # Errors
    /// As [`SentenceSettings::read`].
    pub fn sentence_settings(&self) -> Result<SentenceSettings> {
        match &self.readers.sentence {
            Some(trained) => {
                let mut trained = trained.clone();
                trained.settings.dense.extend(self.trained_dense()?);
                Ok(trained)
            }
            None => SentenceSettings::read(&self.folder, self.config.d_model),
        }
    }

    /// The parameters without those of a linear map behind the pooling, which a folder has beside them.
    pub(crate) fn encoder_weights(&self) -> NamedTensors {
        let mut weights = self.weights.clone();
        weights.retain(|name, _| name != WEIGHT && name != BIAS);
        weights
    }

    /// The linear map behind the pooling of a run.
    fn trained_dense(&self) -> Result<Option<Dense>> {
        let Some(weight) = self.weights.get(WEIGHT) else { return Ok(None) };
        let (n_out, n_in) = weight.dims2()?;
        let values = |x: &Tensor| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1();
        let bias = self.weights.get(BIAS).map(values).transpose()?;
        let (weight, activation) = (values(weight)?, DenseActivation::Identity);
        Ok(Some(Dense { weight, bias, n_in, n_out, activation }))
    }
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: String,
    /// The path of a class in Python.
    #[serde(rename = "type")]
    class: String,
}

impl SentenceSettings {
    /// Reads the files of `folder`, which holds a model of width `d_model`.
    ///
    /// # Errors
    /// If a file cannot be read, or asks for what Tealight does not compute. The error names the file and the key.
    pub fn read(folder: &Path, d_model: usize) -> Result<Self> {
        let mut found = Self::default();
        found.settings.truncated_side = truncated_side(folder)?;
        if !folder.join(MODULES).exists() {
            return match folder.join(POOLING).join(CONFIG) {
                pooling if pooling.exists() => {
                    let rule = "there is no `modules.json`, which says whether this pooling is used and what follows it";
                    Err(Error::unusable(&pooling, &rule))
                }
                _ => Ok(found),
            };
        }
        found.is_stated = true;
        found.add_modules(folder, d_model)?;
        found.add_transformer(folder)?;
        found.add_model(folder)?;
        Ok(found)
    }

    /// The prompt of this name; by default that of the folder, which may be empty.
    ///
    /// # Errors
    /// If there is no such prompt.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name else { return Ok(&self.settings.prompt) };
        self.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let names: Vec<_> = self.prompts.keys().map(|name| format!("\"{name}\"")).collect();
            let known = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
            Error::input(format!("the model has no prompt \"{name}\": {known}"))
        })
    }

    fn add_modules(&mut self, folder: &Path, d_model: usize) -> Result<()> {
        let path = folder.join(MODULES);
        let modules: Vec<Module> = of_json(&path)?;
        let refused = |rule: String| Err(Error::unusable(&path, &rule));
        let mut names = modules.iter().map(Module::name);
        if (names.next(), names.next()) != (Some("Transformer"), Some("Pooling")) {
            let names: Vec<_> = modules.iter().map(Module::name).collect();
            return refused(format!(
                "its modules are {}; those of an embedding begin with `Transformer` and `Pooling`",
                names.join(", ")
            ));
        }
        if !modules[0].path.is_empty() {
            let rule = format!(
                "its model is in `{}`, and only one beside this file is read",
                modules[0].path
            );
            return refused(rule);
        }
        self.add_pooling(&inside(folder, &modules[1].path, &path)?.join(CONFIG), d_model)?;
        for module @ Module { path: name, class } in &modules[2..] {
            match module.name() {
                "Normalize" => self.add_normalize(folder, name)?,
                "Dense" if self.settings.normalize == Normalize::No => {
                    let (n_in, path) =
                        (self.settings.whole_dim(d_model), inside(folder, name, &path)?);
                    self.settings.dense.push(Dense::read(&path, n_in)?);
                }
                _ => {
                    return refused(format!(
                        "its module `{class}` in `{name}` is not supported at this place; `Dense` and then `Normalize` are, \
                         after `Transformer` and `Pooling`"
                    ));
                }
            }
        }
        Ok(())
    }

    fn add_normalize(&mut self, folder: &Path, name: &str) -> Result<()> {
        let path = inside(folder, name, &folder.join(MODULES))?.join(CONFIG);
        let config: Map<String, Value> = if path.exists() { of_json(&path)? } else { Map::new() };
        if let Some((key, value)) = config.iter().find(|(_, value)| *value != "sentence_embedding")
        {
            let rule = format!("`{key}` = {value} is not supported; \"sentence_embedding\" is");
            return Err(Error::unusable(&path, &rule));
        }
        self.settings.normalize = Normalize::Pooled;
        Ok(())
    }

    fn add_pooling(&mut self, path: &Path, d_model: usize) -> Result<()> {
        let mut config: Map<String, Value> = of_json(path)?;
        let refused = |rule: String| Err(Error::unusable(path, &rule));
        let modes = poolings(&mut config).map_err(|rule| Error::unusable(path, &rule))?;
        for key in ["embedding_dimension", "word_embedding_dimension"] {
            match config.remove(key) {
                Some(width) if width != d_model => {
                    return refused(format!(
                        "`{key}` = {width}, and the model has a width of {d_model}"
                    ));
                }
                _ => {}
            }
        }
        // Whether tokens of a prompt are pooled, too.
        let include_prompt = config.remove("include_prompt").unwrap_or(Value::Bool(true));
        if include_prompt != true {
            return refused(format!("`include_prompt` = {include_prompt} is not supported"));
        }
        if let Some(key) = config.keys().next() {
            return refused(format!("its key `{key}` is not known"));
        }
        self.settings.poolings = modes;
        Ok(())
    }

    fn add_transformer(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join(TRANSFORMER);
        let mut config: Map<String, Value> =
            if path.exists() { of_json(&path)? } else { Map::new() };
        let refused = |rule: String| Err(Error::unusable(&path, &rule));
        self.settings.max_seq_len = length(&mut config, "max_seq_length", &path)?;
        match config.remove("do_lower_case") {
            Some(Value::Bool(lowercase)) => self.settings.lowercase = lowercase,
            None | Some(Value::Null) => {}
            Some(other) => {
                return refused(format!("`do_lower_case` = {other} is neither true nor false"));
            }
        }
        let task = config.remove("transformer_task").unwrap_or(json!("feature-extraction"));
        if task != "feature-extraction" {
            let rule =
                format!("`transformer_task` = {task} is not supported; \"feature-extraction\" is");
            return refused(rule);
        }
        // Of text; the parts of models that read more.
        for key in ["modality_config", "module_output_name", "unpad_inputs"] {
            config.remove(key);
        }
        match config.iter().find(|(_, value)| !is_empty(value)) {
            Some((key, value)) => refused(format!("`{key}` = {value} is not supported")),
            None if self.settings.max_seq_len.is_none() => self.add_tokenizer(folder),
            None => Ok(()),
        }
    }

    /// The longest text, where no file of sentence-transformers says it.
    fn add_tokenizer(&mut self, folder: &Path) -> Result<()> {
        self.settings.max_seq_len = longest_text(folder)?;
        Ok(())
    }

    fn add_model(&mut self, folder: &Path) -> Result<()> {
        /// The keys that have an influence on vectors.
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            prompts: BTreeMap<String, Option<String>>,
            #[serde(default)]
            default_prompt_name: Option<String>,
            #[serde(default)]
            truncate_dim: Option<usize>,
        }
        let path = folder.join(MODEL);
        if !path.exists() {
            return Ok(());
        }
        let Config { prompts, default_prompt_name, truncate_dim } = of_json(&path)?;
        // These are empty where a folder does not say them.
        let has =
            |name: &String| prompts.contains_key(name) || ["query", "document"].contains(&&**name);
        if let Some(name) = default_prompt_name.as_ref().filter(|name| !has(name)) {
            let rule = format!("`default_prompt_name` = \"{name}\" is not one of its `prompts`");
            return Err(Error::unusable(&path, &rule));
        }
        self.prompts =
            prompts.into_iter().filter_map(|(name, prompt)| Some((name, prompt?))).collect();
        self.default_prompt = default_prompt_name.filter(|name| self.prompts.contains_key(name));
        self.settings.prompt = self
            .default_prompt
            .as_ref()
            .map_or_else(String::new, |name| self.prompts[name].clone());
        self.settings.truncate_dim = truncate_dim;
        Ok(())
    }
}

impl Module {
    /// The name of a module of sentence-transformers; of another package, the whole path of its class.
    fn name(&self) -> &str {
        match self.class.strip_prefix("sentence_transformers.") {
            Some(class) => class.rsplit('.').next().unwrap_or(class),
            None => &self.class,
        }
    }
}

/// The most tokens of a text that `tokenizer_config.json` states.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn longest_text(folder: &Path) -> Result<Option<usize>> {
    let path = folder.join(TOKENIZER);
    let config: Map<String, Value> = if path.exists() { of_json(&path)? } else { Map::new() };
    // A number beyond any integer stands for no limit.
    let limit = config.get("model_max_length").and_then(Value::as_u64);
    Ok(limit.and_then(|limit| limit.try_into().ok()))
}

/// The side on which `tokenizer_config.json` truncates texts.
fn truncated_side(folder: &Path) -> Result<Side> {
    let path = folder.join(TOKENIZER);
    let config: Map<String, Value> = if path.exists() { of_json(&path)? } else { Map::new() };
    match config.get("truncation_side").map(|side| side.as_str()) {
        None | Some(Some("right")) => Ok(Side::Right),
        Some(Some("left")) => Ok(Side::Left),
        Some(_) => {
            Err(Error::unusable(&path, &"`truncation_side` is neither \"left\" nor \"right\""))
        }
    }
}

/// Removes a key with a number of tokens; `None` if there is none or null.
fn length(config: &mut Map<String, Value>, key: &str, path: &Path) -> Result<Option<usize>> {
    match config.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|length| usize::try_from(length).ok()) {
            Some(length) if length > 0 => Ok(Some(length)),
            _ => {
                let rule = format!("`{key}` = {value} is not a positive integer");
                Err(Error::unusable(path, &rule))
            }
        },
    }
}

/// Whether a value asks for nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(table) => table.is_empty(),
        _ => false,
    }
}

/// The folder `name` in `folder`, named by the file `by`.
fn inside(folder: &Path, name: &str, by: &Path) -> Result<PathBuf> {
    let mut components = Path::new(name).components();
    if components.all(|component| matches!(component, Component::Normal(_))) {
        return Ok(folder.join(name));
    }
    Err(Error::unusable(by, &format!("its path `{name}` leaves the folder")))
}

fn of_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&read_json_text(path)?).map_err(Error::json(path))
}
