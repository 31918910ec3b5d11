//! A survey of sentences with tags.

use std::collections::BTreeMap;
use std::path::Path;

use super::DATA;
use crate::data::table::ending;
use crate::data::tags::scheme::Scheme;
use crate::data::tags::{Content, Wanted, read};
use crate::error::Result;

/// Names of the fields of words and of tags in objects.
const WORDS: [&str; 3] = ["tokens", "words", "token"];
const TAGS: [&str; 5] = ["ner_tags", "tags", "labels", "ner", "pos_tags"];

/// What a file of tags holds.
#[derive(Clone, Debug)]
pub struct Tagged {
    /// The number of sentences.
    pub n: usize,
    /// The words of the longest.
    pub most_words: usize,
    /// The letters and spaces of all.
    pub n_bytes: usize,
    /// The scheme of the tags; `None` of texts with entities.
    pub scheme: Option<Scheme>,
    /// How often each type occurs.
    pub types: BTreeMap<String, usize>,
    /// The fields of words and tags, if they are not those that are read by default.
    pub fields: Option<[String; 2]>,
}

/// Looks into the file at `path`.
///
/// # Errors
/// If it is no file of tags; with what is wrong at its usual fields.
pub fn tags(path: &Path) -> Result<Tagged> {
    let usual = Wanted::default();
    let has_fields = matches!(&*ending(path), "jsonl" | "ndjson" | "json");
    let others = WORDS.iter().filter(|_| has_fields);
    let others = others.flat_map(|words| TAGS.map(|tags| [*words, tags]));
    let (sentences, fields) = match read(DATA, path, &usual, None) {
        Ok(sentences) => (sentences, None),
        Err(error) => {
            let found = others.into_iter().find_map(|[words, tags]| {
                let wanted = Wanted { words, tags, ..usual };
                Some((
                    read(DATA, path, &wanted, None).ok()?,
                    Some([words, tags].map(str::to_owned)),
                ))
            });
            found.ok_or(error)?
        }
    };
    let (mut types, mut most_words, mut n_bytes) = (BTreeMap::new(), 0, 0);
    for sentence in &sentences.all {
        let (n_words, entities) = match &sentence.content {
            Content::Words { words, tags } => {
                (words.len(), sentences.scheme.unwrap_or(Scheme::Iob2).entities(tags))
            }
            Content::Text { text, entities } => (super::n_words(text), entities.clone()),
        };
        most_words = most_words.max(n_words);
        n_bytes += sentence.text().len();
        for entity in entities {
            *types.entry(entity.label).or_default() += 1;
        }
    }
    let (n, scheme) = (sentences.all.len(), sentences.scheme);
    Ok(Tagged { n, most_words, n_bytes, scheme, types, fields })
}
