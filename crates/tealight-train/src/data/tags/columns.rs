//! Words and tags in columns, a word on each line, as CoNLL-2003 and CoNLL-U have them.

use std::path::Path;
use std::sync::Arc;

use super::{Content, Sentence, Wanted};
use crate::data::compressed;
use crate::data::text::corpus::Origin;
use crate::error::{Error, Result};
use crate::storage::encoding::Decoded;

/// What the first word of a line between two documents begins with.
const DOCUMENT: &str = "-DOCSTART-";
/// The columns of CoNLL-U.
const N_OF_CONLL_U: usize = 10;
/// Of CoNLL-U, the word and its part of speech.
const OF_CONLL_U: [i64; 2] = [1, 3];

/// A line with a word.
struct Line<'a> {
    number: usize,
    fields: Vec<&'a str>,
}

/// The sentences of the file at `path` in the setting or argument `key`, and what a user should know about how they were
/// read.
pub(super) fn read(
    key: &str,
    path: &Path,
    wanted: &Wanted<'_>,
) -> Result<(Vec<Sentence>, Vec<String>)> {
    let Decoded { text, faults, encoding } = compressed::decoded(key, path)?;
    if let Some((&line, fault)) = faults.first_key_value() {
        return Err(Error::line(path, line, fault));
    }
    let shared: Arc<Path> = path.into();
    let has_tabs = text.contains('\t');
    let is_conll_u = is_conll_u(&text);
    let columns = wanted.columns.unwrap_or(if is_conll_u { OF_CONLL_U } else { [0, -1] });
    let (mut sentences, mut lines, mut document) = (Vec::new(), Vec::<Line<'_>>::new(), 0);
    let mut n_columns = None;
    for (number, line) in (1..).zip(text.lines()) {
        let is_comment = is_conll_u && line.starts_with('#') && !line.contains('\t');
        let fields: Vec<&str> = if has_tabs {
            line.split('\t').map(str::trim).collect()
        } else {
            line.split_whitespace().collect()
        };
        if is_comment || is_conll_u && is_place_between(fields[0]) {
            continue;
        }
        let begins_document = fields.first().is_some_and(|first| first.starts_with(DOCUMENT));
        if line.trim().is_empty() || begins_document {
            sentences.extend(sentence(&shared, &mut lines, columns, wanted, document)?);
            document += usize::from(begins_document);
            continue;
        }
        let n = fields.len();
        match *n_columns.get_or_insert(n) {
            first if first == n => {}
            first => {
                let rule = format!("there are {n} columns, and the lines before have {first}");
                return Err(Error::line(path, number, rule));
            }
        }
        lines.push(Line { number, fields });
    }
    sentences.extend(sentence(&shared, &mut lines, columns, wanted, document)?);
    let of = |columns: Option<usize>| columns.unwrap_or(0);
    let notes = encoding
        .note()
        .map(str::to_owned)
        .into_iter()
        .chain(is_conll_u.then(|| format!("read as CoNLL-U, of {} columns", of(n_columns))));
    Ok((sentences, notes.collect()))
}

/// Whether a comment, or nothing, stands before lines of ten columns whose first counts from 1.
fn is_conll_u(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("# "));
    first.is_some_and(|line| {
        let fields: Vec<_> = line.split('\t').collect();
        fields.len() == N_OF_CONLL_U && (fields[0] == "1" || fields[0].starts_with("1-"))
    })
}

/// Whether a line of CoNLL-U is one of several words together (`1-2`), or of a word that is not written (`8.1`).
fn is_place_between(field: &str) -> bool {
    let mut parts = field.split(['-', '.']);
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    is_number(parts.next()) && is_number(parts.next()) && parts.next().is_none()
}

/// The sentence of these lines, which are taken; `None` of none.
fn sentence(
    path: &Arc<Path>,
    lines: &mut Vec<Line<'_>>,
    columns: [i64; 2],
    wanted: &Wanted<'_>,
    document: usize,
) -> Result<Option<Sentence>> {
    let Some(first) = lines.first() else { return Ok(None) };
    let origin = Origin { path: path.clone(), line: first.number as u64 };
    let (mut words, mut tags) = (Vec::new(), Vec::new());
    for Line { number, fields } in lines.drain(..) {
        let field = |column: i64| {
            let places = column.unsigned_abs() as usize;
            let at = if column < 0 { fields.len().checked_sub(places)? } else { places };
            Some((at, *fields.get(at)?))
        };
        let wrong = |rule: String| Err(Error::line(path, number, rule));
        let n = fields.len();
        let Some((at, word)) = field(columns[0]) else {
            return wrong(format!("there is no column {} for the word: there are {n}", columns[0]));
        };
        match field(columns[1]) {
            Some((other, tag)) if other != at && !tag.is_empty() => tags.push(tag.to_owned()),
            _ if !wanted.needs_tags => {}
            Some((other, _)) if other != at => return wrong("the tag is empty".to_owned()),
            _ => {
                return wrong(format!(
                    "there is no column for the tag beside that of the word: there is 1 column, or the column {} is missing",
                    columns[1]
                ));
            }
        }
        words.push(word.to_owned());
    }
    if tags.len() < words.len() {
        tags.clear();
    }
    Ok(Some(Sentence { content: Content::Words { words, tags }, origin, document }))
}
