//! A text, in one file or many, for language models.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::{DATA, refused};
use crate::data::compressed::{self, Compression};
use crate::data::json_line;
use crate::data::text::corpus::files::kind::Format;
use crate::data::text::corpus::files::paths::expand;
use crate::error::{Error, Result};

/// Bytes that are read of a file, and how many files.
const SAMPLE: u64 = 1 << 20;
const MAX_FILES: usize = 8;
/// Compressed text has about so many times as many bytes.
const RATIO: f64 = 3.;

/// A text.
#[derive(Clone, Debug, PartialEq)]
pub struct Corpus {
    /// The number of its files.
    pub n_files: usize,
    /// About how many bytes it has, decompressed.
    pub bytes: f64,
    /// The field of `.jsonl` with the text; `None` of plain text.
    pub field: Option<String>,
    /// How many different characters the beginning has.
    pub n_characters: usize,
    /// Whether blank lines separate its paragraphs.
    pub has_paragraphs: bool,
    /// Whether spaces separate its words.
    pub has_spaces: bool,
}

/// Looks into a file of text, or a folder of such files: `.txt` or `.jsonl`, plain or compressed.
pub fn corpus(path: &Path) -> Result<Corpus> {
    let files = expand(DATA, &[path.to_owned()], &mut BTreeSet::new())?;
    let (first, kind) = &files[0];
    let is_json = |format| format == Format::JsonLines;
    let mut bytes = 0.;
    for (file, other) in &files {
        if other.format != kind.format {
            let rule =
                format!("holds .txt and .jsonl files, such as `{}`: give one kind", file.display());
            return Err(refused(path, &rule));
        }
        let size = fs::metadata(file).map_err(Error::io("read", file))?.len() as f64;
        bytes += if other.compression == Compression::None { size } else { RATIO * size };
    }
    let mut sample = String::new();
    for (file, kind) in files.iter().take(MAX_FILES) {
        let mut start = Vec::new();
        let (reader, _, _) = compressed::open_text(file, kind.compression)?;
        reader.take(SAMPLE).read_to_end(&mut start).map_err(Error::io("read", file))?;
        // The sample may end within a character.
        sample += &String::from_utf8_lossy(&start);
    }
    let (field, text) = if is_json(kind.format) {
        let (field, text) = text_of(&sample).map_err(|rule| Error::line(first, 1, rule))?;
        (Some(field), text)
    } else {
        (None, sample)
    };
    if text.trim().is_empty() {
        return Err(refused(path, "holds no text"));
    }
    let characters: BTreeSet<char> = text.chars().collect();
    let n_spaces = text.chars().filter(|c| c.is_whitespace()).count();
    Ok(Corpus {
        n_files: files.len(),
        bytes,
        field,
        n_characters: characters.len(),
        has_paragraphs: text.contains("\n\n") || text.contains("\n\r\n"),
        has_spaces: n_spaces * 20 >= text.chars().count(),
    })
}

/// The field with the longest texts (`text`, if there is one), and its texts. The last line may be cut off.
fn text_of(sample: &str) -> Result<(String, String), String> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for (at, line) in sample.lines().filter(|line| !line.trim().is_empty()).enumerate() {
        let object = match json_line::object(line) {
            Err(rule) if at == 0 => return Err(rule),
            Err(_) => continue,
            Ok(object) => object,
        };
        for (name, value) in object {
            if let Value::String(text) = value {
                let all = texts.entry(name).or_default();
                all.push_str(&text);
                all.push('\n');
            }
        }
    }
    if let Some(text) = texts.remove("text") {
        return Ok(("text".to_owned(), text));
    }
    let longest = texts.into_iter().max_by_key(|(_, text)| text.len());
    longest.ok_or_else(|| "there is no field with a text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(name: &str, content: &str) -> Result<Corpus> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        corpus(&path)
    }

    #[test]
    fn plain_text_has_paragraphs_characters_and_spaces() {
        let found = survey("a.txt", "aa bb cc\n\ndd").unwrap();
        assert_eq!((found.n_files, found.bytes, found.field), (1, 12., None));
        assert_eq!((found.n_characters, found.has_paragraphs, found.has_spaces), (6, true, true));
        assert!(!survey("a.txt", &"雨の日は晴れた".repeat(30)).unwrap().has_spaces);
    }

    #[test]
    fn the_field_with_the_text_is_found() {
        let found =
            survey("a.jsonl", "{\"id\":\"7\",\"body\":\"a b\"}\n{\"body\":\"c\",\"n\":3}\n");
        assert_eq!(found.unwrap().field.as_deref(), Some("body"));
        let found = survey("a.jsonl", "{\"text\":\"a\",\"other\":\"longer\"}").unwrap();
        assert_eq!(found.field.as_deref(), Some("text"));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        for (name, content) in
            [("a.txt", " \n"), ("a.jsonl", "{\"n\":1}"), ("a.csv", "a,b"), ("a.jsonl", "x")]
        {
            assert!(survey(name, content).is_err(), "{name} {content}");
        }
    }
}
