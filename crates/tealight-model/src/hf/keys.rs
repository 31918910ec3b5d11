//! A `config.json` that is read key by key. Keys that remain at the end are unknown.

use serde_json::{Map, Value};

use super::{HfError, HfResult};
use crate::config::{MAX_LAYERS, MAX_SIZE};
use crate::layers::feed_forward::Activation;

/// Keys without effect on the forward pass of a language model: metadata, settings of other heads, and of
/// text generation; separated by white space.
const IRRELEVANT: &str = "
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _name_or_path _num_labels architectures attn_implementation auto_map begin_suppress_tokens
    bad_words_ids chunk_size_feed_forward classifier_dropout classifier_pooling cls_token_id decoder_start_token_id
    directionality diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label label2id language length_penalty mask_token_id max_length
    min_length name no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_past output_scores
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
    pooler_type prefix problem_type remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers_version
    seq_classif_dropout typical_p unk_token_id use_bfloat16 use_cache
";

/// The number of characters of a value that a message shows.
const MAX_SHOWN: usize = 60;

/// The activation that has this name in `transformers`.
pub(super) fn activation(name: &str) -> Option<Activation> {
    Some(match name {
        "gelu" | "gelu_python" => Activation::Gelu,
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        "sigmoid" => Activation::Sigmoid,
        _ => return None,
    })
}

/// The name of an activation in `transformers`.
pub(super) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
        Activation::Relu => "relu",
        Activation::Silu => "silu",
        Activation::Sigmoid => "sigmoid",
    }
}

/// The keys of a `config.json`, or of a table in it, that have not been read yet.
#[derive(Default)]
pub(super) struct Keys {
    map: Map<String, Value>,
    /// The path of the table, with a dot at its end.
    path: String,
    notes: Vec<String>,
}

impl Keys {
    pub(super) fn parse(text: &str) -> HfResult<Self> {
        // Python writes `Infinity`, which JSON does not have; newer versions of transformers write a table.
        let with_tables = || text.replace(" Infinity", " {\"__float__\": \"Infinity\"}");
        let map = serde_json::from_str(text)
            .or_else(|error| serde_json::from_str(&with_tables()).map_err(|_| error))
            .map_err(|error| HfError::Config(format!("it is not a JSON object: {error}")))?;
        Ok(Self { map, path: String::new(), notes: Vec::new() })
    }

    /// Reads the table `key` with `read`, if it is neither absent nor `null`. Its other keys are noted.
    pub(super) fn table<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Self) -> HfResult<T>,
    ) -> HfResult<Option<T>> {
        let map = |value: &Value| value.as_object().cloned().map(Some);
        let Some(map) = self.read(key, "must be a table", map, None)? else { return Ok(None) };
        let mut table = Self { map, path: format!("{}{key}.", self.path), notes: Vec::new() };
        let value = read(&mut table)?;
        table.note_unknown();
        self.notes.extend(table.notes);
        Ok(Some(value))
    }

    /// A count or a width.
    pub(super) fn size(&mut self, key: &str, default: usize) -> HfResult<usize> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// A count or a width that may be `null`, or absent.
    pub(super) fn optional_size(&mut self, key: &str) -> HfResult<Option<usize>> {
        self.size_up_to(key, MAX_SIZE)
    }

    /// A number of layers.
    pub(super) fn n_layers(&mut self, key: &str, default: usize) -> HfResult<usize> {
        Ok(self.optional_n_layers(key)?.unwrap_or(default))
    }

    /// A number of layers that may be `null`, or absent.
    pub(super) fn optional_n_layers(&mut self, key: &str) -> HfResult<Option<usize>> {
        self.size_up_to(key, MAX_LAYERS)
    }

    /// A size of at most `max`, so that whoever reads it may allocate as much.
    fn size_up_to(&mut self, key: &str, max: usize) -> HfResult<Option<usize>> {
        let number = |value: &Value| value.as_u64().map(Some);
        let Some(size) = self.read(key, "must be a whole number", number, None)? else {
            return Ok(None);
        };
        match usize::try_from(size) {
            Ok(size) if size <= max => Ok(Some(size)),
            _ => {
                let path = &self.path;
                Err(HfError::Config(format!("`{path}{key}` = {size} must be at most {max}")))
            }
        }
    }

    /// A length that two axes share, or a list of both: rows, then columns.
    pub(super) fn pair(&mut self, key: &str, default: usize) -> HfResult<[usize; 2]> {
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|n| *n <= MAX_SIZE);
        let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
            Some([rows, columns]) => Some([size(rows)?, size(columns)?]),
            Some(_) => None,
            None => Some([size(value)?; 2]),
        };
        self.read(
            key,
            &format!("must be a whole number of at most {MAX_SIZE}, or a list of two"),
            pair,
            [default; 2],
        )
    }

    /// Whether the value is `null`.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.map.get(key) == Some(&Value::Null)
    }

    pub(super) fn is_absent(&self, key: &str) -> bool {
        !self.map.contains_key(key)
    }

    pub(super) fn number(&mut self, key: &str, default: f64) -> HfResult<f64> {
        self.read(key, "must be a number", Value::as_f64, default)
    }

    /// A number without a default.
    pub(super) fn required_number(&mut self, key: &str) -> HfResult<f64> {
        self.optional_number(key)?.ok_or_else(|| self.missing(key))
    }

    /// A count or a width without a default.
    pub(super) fn required_size(&mut self, key: &str) -> HfResult<usize> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    fn missing(&self, key: &str) -> HfError {
        HfError::Config(format!("`{}{key}` is missing", self.path))
    }

    /// A number that may be `null`, or absent.
    pub(super) fn optional_number(&mut self, key: &str) -> HfResult<Option<f64>> {
        self.read(key, "must be a number", |value| value.as_f64().map(Some), None)
    }

    /// A table that may be `null`, or absent.
    pub(super) fn object(&mut self, key: &str) -> HfResult<Option<Map<String, Value>>> {
        self.read(key, "must be an object", |value| value.as_object().cloned().map(Some), None)
    }

    /// Whether the key is a list that contains this word. The key remains unread.
    pub(super) fn lists(&self, key: &str, word: &str) -> bool {
        let list = self.map.get(key).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|item| item == word))
    }

    pub(super) fn flag(&mut self, key: &str, default: bool) -> HfResult<bool> {
        self.read(key, "must be true or false", Value::as_bool, default)
    }

    pub(super) fn word(&mut self, key: &str, default: &str) -> HfResult<String> {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        self.read(key, "must be a string", word, default.to_owned())
    }

    /// A list of strings that may be `null`, or absent.
    pub(super) fn words(&mut self, key: &str) -> HfResult<Option<Vec<String>>> {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let words = |value: &Value| value.as_array()?.iter().map(word).collect::<Option<Vec<_>>>();
        self.read(key, "must be a list of strings", |value| words(value).map(Some), None)
    }

    /// A token id, `null`, or a list of ids, of which the first is used.
    pub(super) fn id(&mut self, key: &str, default: Option<u32>) -> HfResult<Option<u32>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let read = |value: &Value| match value {
            Value::Array(ids) => Some(ids.first().and_then(id)),
            value => id(value).map(Some),
        };
        match self.map.get(key) {
            // `self.read` would return the default for `null`.
            Some(Value::Null) => {
                self.ignore(key);
                Ok(None)
            }
            _ => self.read(key, "must be the id of a token", read, default),
        }
    }

    /// An activation, under any of the names that `transformers` has for it.
    pub(super) fn activation(&mut self, key: &str, default: &str) -> HfResult<Activation> {
        let word = self.word(key, default)?;
        activation(&word).ok_or_else(|| {
            let path = &self.path;
            HfError::Config(format!("`{path}{key}` = \"{word}\" is not a supported activation"))
        })
    }

    /// Dropout rates that are one setting here: the value of `keys[0]`, with a note if others differ. Absent
    /// ones are 0.1.
    pub(super) fn dropout(&mut self, keys: &[&str]) -> HfResult<f64> {
        self.dropout_with_default(keys, 0.1)
    }

    /// As [`Self::dropout`], with another `default`.
    pub(super) fn dropout_with_default(&mut self, keys: &[&str], default: f64) -> HfResult<f64> {
        let rates: Vec<f64> =
            keys.iter().map(|key| self.number(key, default)).collect::<HfResult<_>>()?;
        for (key, rate) in keys.iter().zip(&rates) {
            if *rate != rates[0] {
                self.note(format!(
                    "`{key}` = {rate} is ignored: `{}` = {} is used as the dropout rate of all layers",
                    keys[0], rates[0]
                ));
            }
        }
        Ok(rates[0])
    }

    /// Refuses any value of `key` but `expected` and `null`, because `why`.
    pub(super) fn require(
        &mut self,
        key: &str,
        expected: impl Into<Value>,
        why: &str,
    ) -> HfResult<()> {
        match self.map.shift_remove(key) {
            Some(value) if value != Value::Null && value != expected.into() => {
                Err(self.unsupported(key, &short(&value), why))
            }
            _ => Ok(()),
        }
    }

    /// The error that the `value` of `key` is not supported, because `why`.
    pub(super) fn unsupported(&self, key: &str, value: &str, why: &str) -> HfError {
        HfError::Config(format!("`{}{key}` = {value} is not supported: {why}", self.path))
    }

    /// Marks a key without effect as read.
    pub(super) fn ignore(&mut self, key: &str) {
        self.map.shift_remove(key);
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Checks the keys that all families share, and returns the notes.
    pub(super) fn finish(mut self) -> HfResult<Vec<String>> {
        self.require("quantization_config", Value::Null, "quantised weights cannot be loaded")?;
        for key in ["pruned_heads", "adapters"] {
            let empty = matches!(self.map.get(key), Some(Value::Object(map)) if map.is_empty());
            if empty {
                self.ignore(key);
            }
            self.require(key, Value::Null, "pruned heads and adapters cannot be loaded")?;
        }
        for key in IRRELEVANT.split_whitespace() {
            self.ignore(key);
        }
        self.note_unknown();
        Ok(self.notes)
    }

    fn note_unknown(&mut self) {
        for (key, value) in &self.map {
            let path = &self.path;
            self.notes.push(format!("`{path}{key}` = {} is unknown and ignored", short(value)));
        }
    }

    fn read<T>(
        &mut self,
        key: &str,
        rule: &str,
        read: impl FnOnce(&Value) -> Option<T>,
        default: T,
    ) -> HfResult<T> {
        match self.map.shift_remove(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => {
                let path = &self.path;
                let message =
                    || HfError::Config(format!("`{path}{key}` = {} {rule}", short(&value)));
                read(&value).ok_or_else(message)
            }
        }
    }
}

/// A value shortened for a message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
