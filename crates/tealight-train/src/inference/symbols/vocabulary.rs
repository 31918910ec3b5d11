//! The vocabulary: text → ids → text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::level::Level;
use crate::error::{Error, Result};
use crate::storage::files::{read_json, to_json};

/// Padding, which attention masks and the decoder never writes.
pub(crate) const PAD: u32 = 0;
/// Mark before the first token of a target.
pub(crate) const BEGIN: u32 = 1;
/// Mark after the last token.
pub(crate) const END: u32 = 2;
/// Number of these special ids.
const N_SPECIAL: usize = 3;

/// The name of its file in a run's directory or an exported folder.
const FILE: &str = "vocabulary.json";
/// The version of the written file, and the newest that is read.
const FORMAT_VERSION: u64 = 1;

/// The tokens of sources and targets. Ids 0, 1 and 2 are padding, beginning and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    pub(crate) level: Level,
    tokens: Vec<String>,
    ids: BTreeMap<String, u32>,
}

/// `vocabulary.json`
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format_version: u64,
    level: Level,
    /// In the order of their ids, from 3.
    tokens: Vec<String>,
}

impl Vocabulary {
    /// The different tokens of `texts`, in ascending order.
    pub(crate) fn from_texts<'a>(level: Level, texts: impl IntoIterator<Item = &'a str>) -> Self {
        let tokens: BTreeSet<&str> =
            texts.into_iter().flat_map(|text| level.tokens(text)).collect();
        Self::new(level, tokens.into_iter().map(str::to_owned).collect())
    }

    fn new(level: Level, tokens: Vec<String>) -> Self {
        let ids = tokens.iter().cloned().zip(N_SPECIAL as u32..).collect();
        Self { level, tokens, ids }
    }

    /// Whether `folder`, that of a run or an exported one, has a vocabulary.
    pub(crate) fn is_in(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    /// The vocabulary in `folder`.
    pub fn read(folder: &Path) -> Result<Self> {
        let Stored { level, tokens, .. } = read_json(&folder.join(FILE), FORMAT_VERSION)?;
        Ok(Self::new(level, tokens))
    }

    /// The name and the content of its file.
    pub(crate) fn file(&self) -> Result<(&'static str, Vec<u8>)> {
        let (level, tokens) = (self.level, self.tokens.clone());
        let stored = Stored { format_version: FORMAT_VERSION, level, tokens };
        Ok((FILE, to_json(Path::new(FILE), &stored)?))
    }

    /// Number of ids.
    pub(crate) fn size(&self) -> usize {
        N_SPECIAL + self.tokens.len()
    }

    /// The ids of a text's tokens; an error names the first token that is not in the vocabulary.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let id = |token: &str| {
            let known = self.ids.get(token).copied();
            known.ok_or_else(|| {
                let [a, b] = [token, text].map(|text| text.escape_debug().collect::<String>());
                let message = format!("`{a}` in \"{b}\" is not in the model's vocabulary");
                Error::input(message)
            })
        };
        self.level.tokens(text).into_iter().map(id).collect()
    }

    /// A name for each id, for attention maps.
    pub(crate) fn names(&self, ids: &[u32]) -> Vec<String> {
        let name = |&id: &u32| match id {
            PAD => "<pad>".to_owned(),
            BEGIN => "<begin>".to_owned(),
            END => "<end>".to_owned(),
            id => self.decode(&[id]),
        };
        ids.iter().map(name).collect()
    }

    /// The text of ids; ids without a token are skipped.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let token = |&id: &u32| {
            let at = (id as usize).checked_sub(N_SPECIAL)?;
            self.tokens.get(at).map(String::as_str)
        };
        let tokens: Vec<&str> = ids.iter().filter_map(token).collect();
        self.level.text(&tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_and_decoding_are_inverse() {
        for (level, text) in [(Level::Characters, "größe 🌧"), (Level::Words, "one two  one")] {
            let vocabulary = Vocabulary::from_texts(level, [text, "a b"]);
            let ids = vocabulary.encode(text).unwrap();
            assert!(ids.iter().all(|&id| (3..vocabulary.size() as u32).contains(&id)));
            assert_eq!(
                vocabulary.decode(&ids),
                text.split_whitespace().collect::<Vec<_>>().join(" ")
            );
            assert_eq!(vocabulary.decode(&[PAD, BEGIN, END, 999]), "");
        }
    }

    #[test]
    fn a_token_that_is_not_known_is_named() {
        let vocabulary = Vocabulary::from_texts(Level::Characters, ["abc"]);
        let message = vocabulary.encode("ab\u{7}").unwrap_err().to_string();
        assert_eq!(message, "`\\u{7}` in \"ab\\u{7}\" is not in the model's vocabulary");
    }

    #[test]
    fn a_run_keeps_its_vocabulary() {
        let directory = tempfile::tempdir().unwrap();
        let vocabulary = Vocabulary::from_texts(Level::Words, ["a tab\there", "ö"]);
        assert!(!Vocabulary::is_in(directory.path()));
        let (name, content) = vocabulary.file().unwrap();
        std::fs::write(directory.path().join(name), content).unwrap();
        assert_eq!(Vocabulary::read(directory.path()).unwrap(), vocabulary);
    }
}
