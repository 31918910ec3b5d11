//! `generation_config.json`: what `transformers` heeds when a model continues a text.
//!
//! ```text
//! bos_token_id      the token that an empty text begins with
//! eos_token_id      the token after a text
//! pad_token_id      padding
//! suppress_tokens   tokens that are never written
//! ```
//!
//! Of these, `suppress_tokens` is heeded here as well. A folder that has the file is exported with the same.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::weight_files::read_json_text;
use crate::error::{Error, Result};

/// The file.
pub(crate) const FILE: &str = "generation_config.json";
/// The key with the tokens that are never written.
pub(crate) const SUPPRESS: &str = "suppress_tokens";

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GenerationConfig {
    pub(crate) keys: Map<String, Value>,
    /// `suppress_tokens`, in order.
    suppressed: Vec<u32>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `folder`; `None` if the folder has no such file. Only `suppress_tokens` has an
    /// effect; its ids must be below `vocab_size`. The other keys are kept as they are.
    ///
    /// # Errors
    /// If `suppress_tokens` is no list of tokens, or a list of all.
    pub(crate) fn read(folder: &Path, vocab_size: usize) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let keys: Map<String, Value> =
            serde_json::from_str(&read_json_text(&path)?).map_err(Error::json(&path))?;
        let suppressed = suppressed(keys.get(SUPPRESS), vocab_size);
        let suppressed = suppressed.map_err(|rule| Error::unusable(&path, &rule))?;
        Ok(Some(Self { keys, suppressed }))
    }

    /// The ids of `suppress_tokens`.
    pub(crate) fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }
}

/// The ids of `suppress_tokens`, or why they cannot be used.
fn suppressed(value: Option<&Value>, vocab_size: usize) -> Result<Vec<u32>, String> {
    let list = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(format!("`{SUPPRESS}` = {other} must be a list of token ids")),
    };
    let id = |value: &Value| {
        let id = value.as_u64().filter(|id| *id < vocab_size as u64);
        id.map(|id| id as u32).ok_or_else(|| {
            let largest = vocab_size.saturating_sub(1);
            format!("`{SUPPRESS}` has {value}, and the ids of this model are 0 to {largest}")
        })
    };
    let ids = list.iter().map(id).collect::<Result<BTreeSet<u32>, String>>()?;
    if ids.len() >= vocab_size {
        return Err(format!("`{SUPPRESS}` has all {vocab_size} tokens: one at least must be left"));
    }
    Ok(ids.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(content: &str) -> Result<Option<GenerationConfig>, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), content).unwrap();
        GenerationConfig::read(folder.path(), 5).map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_that_are_never_written_are_read_and_other_keys_are_kept() {
        let cases: [(Value, &[u32]); 4] = [
            (json!({}), &[]),
            (json!({ "suppress_tokens": null }), &[]),
            (json!({ "suppress_tokens": [] }), &[]),
            (json!({ "suppress_tokens": [4, 0, 4], "top_k": "many", "sparkle": 7 }), &[0, 4]),
        ];
        for (content, expected) in cases {
            let config = read(&content.to_string()).unwrap().unwrap();
            assert_eq!(config.suppressed(), expected, "{content}");
            assert_eq!(Value::Object(config.keys), content);
        }
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(GenerationConfig::read(folder.path(), 5).unwrap(), None);
    }

    #[test]
    fn lists_that_cannot_be_used_are_refused_by_file_key_and_value() {
        for (value, rule) in [
            (json!(3), "`suppress_tokens` = 3 must be a list of token ids"),
            (json!("all"), "`suppress_tokens` = \"all\" must be a list of token ids"),
            (json!([5]), "`suppress_tokens` has 5, and the ids of this model are 0 to 4"),
            (json!([0, -1]), "`suppress_tokens` has -1, and"),
            (json!([0.5]), "`suppress_tokens` has 0.5, and"),
            (json!([null]), "`suppress_tokens` has null, and"),
            (json!([0, 1, 2, 3, 4]), "`suppress_tokens` has all 5 tokens"),
        ] {
            let error = read(&json!({ "suppress_tokens": value }).to_string()).unwrap_err();
            assert!(error.contains(rule) && error.contains("generation_config.json`"), "{error}");
        }
        for broken in ["", "[1]", "{"] {
            assert!(read(broken).unwrap_err().contains("generation_config.json`"), "{broken}");
        }
    }
}
