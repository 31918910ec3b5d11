//! Assembles lines into documents, and divides long documents into parts.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::config::Unit;
use super::lines::Line;
use crate::data::json_line;
use crate::data::split::Split;
use crate::data::text::corpus::{Document, Origin, Part};
use crate::error::Result;

/// The maximal bytes of a part: large enough to tokenise efficiently, small enough for all threads to share
/// a file.
pub(super) const MAX_PART: usize = 1 << 16;
/// The maximal bytes of a line of `.jsonl`, which is parsed as a whole.
const MAX_JSON_LINE: usize = 1 << 26;

/// Collects the text of a document and emits its parts as soon as they are full.
///
/// A part ends before a space between two words: tokenizers begin a new token there, so that the parts have the same
/// tokens as the whole. Without such a space (Japanese), it ends before a line break, else between two characters,
/// where the tokens may differ from the tokens of the whole.
pub(super) struct DocumentAssembler {
    path: Arc<Path>,
    split: Option<Split>,
    text: String,
    /// An incomplete line of JSON.
    json: String,
    /// The line on which the document begins.
    line: u64,
    part: Part,
    ready: VecDeque<Document>,
}

impl DocumentAssembler {
    pub(super) fn new(path: Arc<Path>, split: Option<Split>) -> Self {
        let (text, json, ready) = (String::new(), String::new(), VecDeque::new());
        Self { path, split, text, json, line: 1, part: Part::First, ready }
    }

    /// The next complete part.
    pub(super) fn pop(&mut self) -> Option<Document> {
        self.ready.pop_front()
    }

    /// Ends the document and assigns the following ones to `split`.
    pub(super) fn start_split(&mut self, split: Split) {
        self.finish();
        self.split = Some(split);
    }

    /// Appends text from `line` to the document.
    pub(super) fn push(&mut self, text: &str, line: u64) {
        if self.is_at_start() {
            self.line = line;
        }
        self.text.push_str(text);
        if self.text.len() <= MAX_PART {
            return;
        }
        let text = std::mem::take(&mut self.text);
        let mut rest = text.as_str();
        while rest.len() > MAX_PART {
            let (part, after) = rest.split_at(end_of_part(rest));
            self.emit(part.to_owned());
            rest = after;
        }
        rest.clone_into(&mut self.text);
    }

    fn is_at_start(&self) -> bool {
        self.text.is_empty() && self.part == Part::First
    }

    /// Ends the document. A document of white space alone is dropped.
    pub(super) fn finish(&mut self) {
        let text = std::mem::take(&mut self.text);
        let is_blank = text.trim().is_empty();
        if !is_blank || (self.part == Part::Further && !text.is_empty()) {
            self.emit(text);
        }
        self.part = Part::First;
    }

    fn emit(&mut self, text: String) {
        let document = Document { text, origin: self.origin(), part: self.part, split: self.split };
        self.ready.push_back(document);
        self.part = Part::Further;
    }

    fn origin(&self) -> Origin {
        Origin { path: self.path.clone(), line: self.line }
    }

    /// Adds a line of a text file.
    pub(super) fn text_line(&mut self, line: &Line, unit: Unit) {
        let is_whole = line.text.ends_with('\n');
        match unit {
            Unit::Line => {
                self.push(line.text.trim_end_matches('\n'), line.number);
                if is_whole {
                    self.finish();
                }
            }
            Unit::Paragraph if line.begins && line.text.trim().is_empty() => self.finish(),
            Unit::Paragraph => {
                if line.begins && !self.is_at_start() {
                    self.push(" ", line.number);
                }
                let text = line.text.trim_end_matches('\n');
                self.push(if line.begins { text.trim_start() } else { text }, line.number);
            }
            Unit::File => self.push(&line.text, line.number),
        }
    }

    /// Adds a line or fragment of `.jsonl`.
    pub(super) fn json_line(&mut self, line: &Line, field: &str) -> Result<()> {
        self.line = line.number;
        if self.json.len() + line.text.len() > MAX_JSON_LINE {
            let rule = format!("the line is longer than {} MiB", MAX_JSON_LINE >> 20);
            return Err(self.origin().error(rule));
        }
        self.json.push_str(&line.text);
        if line.text.ends_with('\n') { self.finish_json(field) } else { Ok(()) }
    }

    /// Ends the line of `.jsonl`, whose `field` is a document.
    pub(super) fn finish_json(&mut self, field: &str) -> Result<()> {
        let json = std::mem::take(&mut self.json);
        if !json.trim().is_empty() {
            let text = json_text(&json, field).map_err(|rule| self.origin().error(rule))?;
            self.push(&text, self.line);
            self.finish();
        }
        Ok(())
    }
}

/// The text in a field of a JSON object, or the error.
fn json_text(json: &str, field: &str) -> Result<String, String> {
    let mut object = json_line::object(json)?;
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("the field `{field}` is not a string")),
        None => {
            let names: Vec<&str> = object.keys().map(String::as_str).collect();
            Err(format!("there is no field `{field}`; there are: {}", names.join(", ")))
        }
    }
}

/// The end of the first part of a text longer than [`MAX_PART`], preferably in the second half of the part.
fn end_of_part(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_space = |at: usize| bytes[at].is_ascii_whitespace();
    let places = || (MAX_PART / 2..MAX_PART).rev();
    let space = places().find(|&at| bytes[at] == b' ' && !is_space(at - 1) && !is_space(at + 1));
    let line_break = || places().find(|&at| bytes[at] == b'\n' && !is_space(at + 1));
    space.or_else(line_break).unwrap_or_else(|| {
        (0..=MAX_PART).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(MAX_PART)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(unit: Unit, lines: &[&str]) -> Vec<(String, u64)> {
        let mut assembly = DocumentAssembler::new(Path::new("a.txt").into(), None);
        for (number, text) in (1..).zip(lines) {
            let text = (*text).to_owned();
            assembly.text_line(&Line { text, number, begins: true }, unit);
        }
        assembly.finish();
        let documents = std::iter::from_fn(|| assembly.pop());
        documents.map(|document| (document.text, document.origin.line)).collect()
    }

    fn owned(documents: &[(&str, u64)]) -> Vec<(String, u64)> {
        documents.iter().map(|&(text, line)| (text.to_owned(), line)).collect()
    }

    #[test]
    fn lines_paragraphs_and_files_are_documents() {
        let lines = ["\n", "one\n", "  two\n", " \n", "\n", "three \n", "four"];
        let expected = [("one", 2), ("  two", 3), ("three ", 6), ("four", 7)];
        assert_eq!(documents(Unit::Line, &lines), owned(&expected));
        let expected = [("one two", 2), ("three  four", 6)];
        assert_eq!(documents(Unit::Paragraph, &lines), owned(&expected));
        assert_eq!(documents(Unit::File, &lines), owned(&[(&lines.concat(), 1)]));
        assert_eq!(documents(Unit::File, &["\n", " \n"]), []);
    }

    #[test]
    fn parts_are_cut_before_a_word_and_lose_nothing() {
        let words: String = (0..30_000)
            .flat_map(|n| ["word".to_owned(), n.to_string(), " \n".to_owned()])
            .collect();
        let mut assembly = DocumentAssembler::new(Path::new("a.txt").into(), None);
        for text in [&words[..100_000], &words[100_000..100_001], &words[100_001..]] {
            assembly.push(text, 3);
        }
        assembly.finish();
        assembly.push("another", 5);
        assembly.finish();
        let parts: Vec<Document> = std::iter::from_fn(|| assembly.pop()).collect();
        let (last, parts) = parts.split_last().unwrap();
        assert_eq!((last.text.as_str(), last.origin.line, last.part), ("another", 5, Part::First));
        assert!(parts.len() > words.len() / MAX_PART);
        assert_eq!(parts[0].part, Part::First);
        assert!(parts[1..].iter().all(|part| part.part == Part::Further && part.origin.line == 3));
        assert!(parts[1..].iter().all(|part| part.text.starts_with("\nword")));
        assert!(parts.iter().all(|part| part.text.len() <= MAX_PART));
        assert!(parts.iter().map(|part| part.text.as_str()).collect::<String>() == words);
    }

    #[test]
    fn a_part_ends_before_a_single_space_rather_than_anywhere_else() {
        let fill = |end: &str| end.repeat(MAX_PART)[..MAX_PART - 20].to_owned();
        let with = |end: &str| fill("x") + end + &"y".repeat(40);
        assert_eq!(end_of_part(&with("a b\nc")), MAX_PART - 19);
        assert_eq!(end_of_part(&with("a  b\n\nc")), MAX_PART - 15);
        assert_eq!(end_of_part(&with("")), MAX_PART);
        let japanese = "晴".repeat(MAX_PART);
        assert_eq!(end_of_part(&japanese), MAX_PART / 3 * 3);
    }

    #[test]
    fn what_is_wrong_with_a_line_of_json_is_said() {
        assert_eq!(json_text(r#"{"a": 1, "text": "é\n"}"#, "text").unwrap(), "é\n");
        let message = |json| json_text(json, "text").unwrap_err();
        let rule = "this is not JSON: EOF while parsing a value at column 8";
        assert_eq!(message("{\"text\": \n"), rule);
        assert_eq!(message(r#"{"text": 7}"#), "the field `text` is not a string");
        assert_eq!(
            message(r#"{"title": "", "body": ""}"#),
            "there is no field `text`; there are: title, body"
        );
    }
}
