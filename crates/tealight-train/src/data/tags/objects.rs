//! Sentences as JSON objects: words with their tags, or a text with the characters of its entities.

use std::path::Path;

use serde_json::{Map, Value};

use super::scheme::Entity;
use super::{Content, Sentence, Wanted};
use crate::data::shown::on_one_line;
use crate::data::table::{Cell, Cells, Table};
use crate::error::{Error, Result};

/// Another name of the field `entities`, as in Prodigy and spaCy.
const SPANS: &str = "spans";

/// The sentences of the file at `path` in the setting or argument `key`, and what a user should know about how they were
/// read.
pub(super) fn read(
    key: &str,
    path: &Path,
    wanted: &Wanted<'_>,
) -> Result<(Vec<Sentence>, Vec<String>)> {
    let table = Table::open(key, path)?;
    let mut sentences = Vec::new();
    table.each(|origin, row| {
        let content = row.and_then(|cells| {
            let Cells::Json(object) = cells else { return Err("this is no object".to_owned()) };
            content(object, wanted)
        });
        let content = content.map_err(|rule| origin.error(rule))?;
        sentences.push(Sentence { content, document: sentences.len(), origin });
        Ok(())
    })?;
    let prefix = format!("`{}`: ", path.display());
    let notes = table.notes.into_iter();
    let notes = notes.map(|note| note.strip_prefix(&prefix).map_or(note.clone(), str::to_owned));
    Ok((sentences, notes.collect()))
}

fn content(object: &Map<String, Value>, wanted: &Wanted<'_>) -> Result<Content, String> {
    let get = |name: &str| Cells::Json(object).get(name);
    if let Some(Cell::Json(Value::Array(words))) = get(wanted.words) {
        return of_words(words, get(wanted.tags), wanted);
    }
    let Some(Cell::Json(Value::String(text))) = get(wanted.text) else {
        return Err(format!(
            "it has neither a list `{}` of words nor a text `{}`",
            wanted.words, wanted.text
        ));
    };
    let entities = get(wanted.entities).or_else(|| get(SPANS));
    let entities = match entities {
        Some(Cell::Json(Value::Array(entities))) => {
            let n_chars = text.chars().count();
            entities.iter().map(|one| entity(one, n_chars)).collect::<Result<Vec<_>, _>>()?
        }
        _ if !wanted.needs_tags => Vec::new(),
        _ => {
            return Err(format!("it has no list `{}` of the text's entities", wanted.entities));
        }
    };
    Ok(Content::Text { text: text.clone(), entities: in_order(entities)? })
}

fn of_words(
    words: &[Value],
    tags: Option<Cell<'_>>,
    wanted: &Wanted<'_>,
) -> Result<Content, String> {
    let name = wanted.words;
    let words = words.iter().map(|word| match word {
        Value::String(word) => Ok(word.clone()),
        other => Err(format!("`{name}` has {other}, which is no text")),
    });
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let name = wanted.tags;
    let Some(Cell::Json(Value::Array(tags))) = tags else {
        if wanted.needs_tags {
            return Err(format!("it has no list `{name}` of tags"));
        }
        return Ok(Content::Words { words, tags: Vec::new() });
    };
    if tags.len() != words.len() {
        return Err(format!(
            "`{name}` has {} tags, and `{}` has {} words",
            tags.len(),
            wanted.words,
            words.len()
        ));
    }
    let tag = |tag: &Value| match tag {
        Value::String(tag) => Ok(tag.clone()),
        Value::Number(number) => {
            let names = wanted.labels.ok_or_else(|| {
                format!(
                    "`{name}` has the number {number}, and `task.labels` does not name the tags"
                )
            })?;
            let named = number.as_u64().and_then(|at| names.get(usize::try_from(at).ok()?));
            named.cloned().ok_or_else(|| {
                format!("`{name}` has the number {number}, and `task.labels` has {}", names.len())
            })
        }
        other => Err(format!("`{name}` has {other}, which is no tag")),
    };
    let tags = tags.iter().map(tag).collect::<Result<Vec<_>, _>>()?;
    match tags.iter().position(String::is_empty) {
        Some(at) => Err(format!("tag {} of `{name}` is empty", at + 1)),
        None => Ok(Content::Words { words, tags }),
    }
}

/// `{"start": 0, "end": 5, "label": "PER"}` or `[0, 5, "PER"]`, in characters.
fn entity(value: &Value, n_chars: usize) -> Result<Entity, String> {
    let parts = match value {
        Value::Array(parts) => [parts.first(), parts.get(1), parts.get(2)],
        _ => ["start", "end", "label"].map(|name| value.get(name)),
    };
    let number = |part: Option<&Value>| part.and_then(Value::as_u64)?.try_into().ok();
    let (Some(start), Some(end), Some(Value::String(label))) =
        (number(parts[0]), number(parts[1]), parts[2])
    else {
        return Err(format!("{value} is no entity with `start`, `end` and `label`"));
    };
    let (start, end): (usize, usize) = (start, end);
    if start >= end || end > n_chars {
        return Err(format!(
            "the entity \"{}\" is at {start} to {end}, and the text has {n_chars} characters",
            on_one_line(label)
        ));
    }
    if label.trim().is_empty() {
        return Err(format!("the entity at {start} to {end} has an empty label"));
    }
    Ok(Entity { label: label.clone(), start, end })
}

/// Refuses entities that overlap.
fn in_order(mut entities: Vec<Entity>) -> Result<Vec<Entity>, String> {
    entities.sort_by_key(|one| (one.start, one.end));
    match entities.windows(2).find(|two| two[1].start < two[0].end) {
        None => Ok(entities),
        Some(two) => {
            let [one, other] = [&two[0], &two[1]].map(|one| {
                format!("\"{}\" at {} to {}", on_one_line(&one.label), one.start, one.end)
            });
            Err(format!("the entities {one} and {other} overlap"))
        }
    }
}

/// # Errors
/// That a table of another kind is no file of tags.
pub(super) fn refused(key: &str, path: &Path) -> Error {
    Error::config(
        [key],
        format!(
            "`{}` is no file of tags: those are .jsonl and .json, or words and tags in columns, such as .conll, .txt and \
             .tsv, plain, .gz or .zst",
            path.display()
        ),
    )
}
