//! A folder of `transformers`: `config.json`, and files of tensors (module `weight_files`).
//! [`tealight_model::hf`] interprets their content.
//!
//! Every file is checked before its content is used, and errors name the file: the size of texts is limited,
//! the offsets of tensors must fit the file, and the sizes in `config.json` must fit the tensors before
//! anything of those sizes is allocated.

use std::path::Path;

use serde_json::{Map, Value, json};
use tealight_model::hf::{self, Description, Expressed, HfError};
use tealight_model::{BuildError, ModelSpec};

use super::weight_files::{WeightFiles, read_json_text};
use super::without_backtrace;
use crate::config::limits;
use crate::data::text::tokenizer::{self, Tokenizer};
use crate::error::{Error, Result};
use crate::storage::files;
use crate::storage::tensors::{self, NamedTensors};

/// The file with the description of the model.
pub const CONFIG: &str = "config.json";
/// The file with the tensors that is written.
const MODEL: &str = "model.safetensors";

/// A model of `transformers`.
#[derive(Debug)]
pub struct HfFolder {
    /// The content of its `config.json`.
    pub description: Description,
    /// What kind of model it is: that of its `description`, but an encoder if the files hold no head of a masked language
    /// model, as `BertModel` saved by sentence-transformers has none.
    pub spec: ModelSpec,
    /// All parameters of the model, under Tealight's names, in f32.
    pub weights: NamedTensors,
    /// What a language model's files have of a classification head, such as BERT's pooler.
    pub classification_head: NamedTensors,
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
        let text = read_json_text(&config)?;
        let files = WeightFiles::open(path);
        let shapes = files.as_ref().map(WeightFiles::shapes).unwrap_or_default();
        let description = hf::describe_folder(&text, &shapes).map_err(in_file(&config))?;
        let files = files?;
        limits::check_model(&description.config).map_err(|error| super::in_file(error, &config))?;
        let (origin, left_out) = (files.origin.clone(), files.left_out());
        let weights = description.rename(files.read()?).map_err(in_file(&origin))?;
        let spec = match description.spec {
            ModelSpec::MaskedLm(spec) if !weights.has_masked_lm_head() => ModelSpec::Encoder(spec),
            spec => spec,
        };
        // Built once, which checks the settings and requests each parameter.
        let built = weights.restricted_to(|vb| spec.request_parameters(&description.config, vb));
        let weights = built.map_err(|error| match error {
            BuildError::Config(fault) => Error::unusable(&config, &fault),
            BuildError::Candle(error) => Error::unusable(&origin, &explained(&error, &left_out)),
        })?;
        let notes = [&description.notes[..], weights.notes()].concat();
        let classification_head = weights.classification_head().clone();
        let weights = weights.into_tensors();
        Ok(Self { description, spec, weights, classification_head, notes })
    }
}

/// The message of a model that cannot be built, with the reason if it lacks a tensor that was `left_out`.
fn explained(error: &candle_core::Error, left_out: &[String]) -> String {
    let message = without_backtrace(error);
    // A file may leave out the prefix of the backbone.
    let is_named = |name: &String| {
        ["`", "."].iter().any(|before| message.contains(&format!("{before}{name}`")))
    };
    if left_out.iter().any(is_named) {
        return format!("{message}: in the file, its numbers are not f16, bf16, f32 or f64");
    }
    message
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

/// The files of [`files()`] without those of the parameters.
pub(crate) fn description(
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

fn in_file(path: &Path) -> impl FnOnce(HfError) -> Error {
    move |error| Error::unusable(path, &error)
}

/// `tokenizer.json`, and two files that name the special tokens and what the model reads. Without `model_input_names`,
/// versions of `transformers` differ in whether they pass token types.
fn tokenizer_files(expressed: &Expressed, tokenizer: &Tokenizer) -> Result<Vec<(String, Vec<u8>)>> {
    let special_tokens = tokenizer.roles();
    let n_types = expressed.config.get("type_vocab_size").and_then(Value::as_u64);
    let types = n_types.is_some_and(|n| n > 1).then_some("token_type_ids");
    let inputs: Vec<_> = ["input_ids"].into_iter().chain(types).chain(["attention_mask"]).collect();
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": expressed.seq_len,
        "clean_up_tokenization_spaces": false,
        "model_input_names": inputs,
    });
    let mut settings = settings.as_object().cloned().unwrap_or_default();
    // Version 4 of `transformers` overwrites that of `tokenizer.json` with this one, which is false where it is absent.
    if tokenizer.prefix_space() == Some(true) {
        settings.insert("add_prefix_space".to_owned(), true.into());
    }
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
