//! `[task.corpus] kind = "files"`: text and JSON lines, as they are or compressed.
//!
//! Files are read as streams, one part of a document after another: memory does not depend on their
//! size. What is wrong in them is an error with file and line, and nothing is skipped but what is
//! blank.

mod assembly;
mod config;
mod kind;
mod lines;
mod paths;
mod reader;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::json;

use self::assembly::Assembly;
pub use self::config::{Config, Unit};
use self::kind::{FileKind, Format};
use self::lines::{Line, Lines};
use crate::data::DataFile;
use crate::data::Split;
use crate::data::fingerprint::Fnv128;
use crate::data::text::corpus::{Corpus, Document, Documents, Progress};
use crate::error::{Error, Result};

const PATHS: &str = "task.corpus.paths";
const VALIDATION_PATHS: &str = "task.corpus.validation_paths";

/// The documents of files.
#[derive(Debug)]
pub struct Files {
    config: Config,
    inputs: Vec<Input>,
}

/// A file, and what is known of it before its documents are read.
#[derive(Debug)]
struct Input {
    path: Arc<Path>,
    kind: FileKind,
    /// The side that all its documents are on.
    split: Option<Split>,
    /// What its bytes hash to, once they have been read.
    hash: OnceLock<u128>,
}

impl Input {
    fn new(path: PathBuf, kind: FileKind, split: Option<Split>) -> Self {
        Self { path: path.into(), kind, split, hash: OnceLock::new() }
    }

    fn bytes(&self) -> Result<u64> {
        fs::metadata(&self.path).map(|data| data.len()).map_err(Error::io("read", &self.path))
    }

    /// Hashes the bytes as they are on the disk; `progress` is told how many.
    fn hash(&self, progress: &mut dyn FnMut(u64)) -> Result<u128> {
        let (mut reader, tally) = reader::open(&self.path, kind::Compression::None)?;
        loop {
            let n = reader.fill_buf().map_err(Error::io("read", &self.path))?.len();
            if n == 0 {
                let hash = tally.hash();
                return Ok(*self.hash.get_or_init(|| hash));
            }
            reader.consume(n);
            progress(tally.bytes());
        }
    }

    /// Characters, after decompression.
    fn n_characters(&self) -> Result<u64> {
        let mut lines = Lines::open(self)?;
        let mut n = 0;
        while let Some(line) = lines.next()? {
            n += line.text.chars().count() as u64;
        }
        Ok(n)
    }

    fn has_nothing(&self) -> Error {
        self.wrong("is empty: it holds no document")
    }

    /// The setting that names the file.
    fn key(&self) -> &'static str {
        if self.split == Some(Split::Validation) { VALIDATION_PATHS } else { PATHS }
    }

    /// What is wrong with the file as a whole.
    fn wrong(&self, rule: &str) -> Error {
        Error::config([self.key()], format!("`{}` {rule}", self.path.display()))
    }
}

impl Files {
    /// Finds the files; their text is not read yet.
    pub fn open(config: &Config) -> Result<Self> {
        config.validate()?;
        // By what they are and not by what they are called: links and `..` lead to the same text.
        let mut seen = BTreeSet::new();
        let held_out = paths::expand(VALIDATION_PATHS, &config.validation_paths, &mut seen)?;
        let files = paths::expand(PATHS, &config.paths, &mut seen)?;
        if files.is_empty() {
            let keys = [VALIDATION_PATHS, PATHS];
            let message = format!("`{VALIDATION_PATHS}` leaves nothing of `{PATHS}` to train on");
            return Err(Error::config(keys, message));
        }
        if config.validation_tail.is_some() {
            refuse_json_lines(&files)?;
        }
        let train = if held_out.is_empty() { None } else { Some(Split::Train) };
        let files = files.into_iter().map(|(path, kind)| Input::new(path, kind, train));
        let held_out = held_out.into_iter();
        let held_out = held_out.map(|(path, kind)| Input::new(path, kind, Some(Split::Validation)));
        Ok(Self { config: config.clone(), inputs: files.chain(held_out).collect() })
    }

    fn total(&self) -> Result<u64> {
        self.inputs.iter().map(Input::bytes).sum()
    }
}

fn refuse_json_lines(files: &[(PathBuf, FileKind)]) -> Result<()> {
    match files.iter().find(|(_, kind)| kind.format == Format::JsonLines) {
        None => Ok(()),
        Some((path, _)) => {
            let key = "task.corpus.validation_tail";
            let path = path.display();
            let message = format!("`{key}` cuts text, and each line of `{path}` is a document");
            Err(Error::config([key, PATHS], message))
        }
    }
}

impl Corpus for Files {
    fn documents(&self) -> Result<Box<dyn Documents + '_>> {
        let total = self.total()?;
        Ok(Box::new(FileDocuments { files: self, next: 0, reading: None, done: 0, total }))
    }

    /// Of the bytes on the disk and the settings that decide what a document is, not of the names.
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let Config { documents, validation_tail, .. } = &self.config;
        let settings = json!([documents, self.config.field(), validation_tail]);
        let mut hash = Fnv128::default();
        hash.write(settings.to_string().as_bytes());
        let (mut done, total) = (0, self.total()?);
        for input in &self.inputs {
            let of_file = match input.hash.get() {
                Some(hash) => *hash,
                None => input.hash(&mut |n| progress(Progress { done: done + n, total }))?,
            };
            hash.write(&of_file.to_le_bytes());
            hash.write(format!("{:?} {:?}", input.kind, input.split).as_bytes());
            done += input.bytes()?;
        }
        Ok(hash.finish())
    }

    fn files(&self) -> Vec<DataFile> {
        let file = |input: &Input| {
            Some(DataFile::new(input.key(), &input.path, *input.hash.get()? as u64))
        };
        self.inputs.iter().filter_map(file).collect()
    }
}

/// The documents of all files, one file after another.
struct FileDocuments<'a> {
    files: &'a Files,
    next: usize,
    reading: Option<Reading<'a>>,
    /// Bytes of the files that have been read to their ends.
    done: u64,
    total: u64,
}

/// A file that is being read.
struct Reading<'a> {
    input: &'a Input,
    lines: Lines,
    assembly: Assembly,
    /// A line of JSON that is not whole yet.
    json: String,
    /// Where it begins.
    json_line: u64,
    /// Characters up to the part that is held out.
    before_tail: Option<u64>,
    is_empty: bool,
    is_finished: bool,
}

impl<'a> Reading<'a> {
    fn open(input: &'a Input, config: &Config) -> Result<Self> {
        let mut split = input.split;
        let before_tail = match config.validation_tail {
            None => None,
            Some(share) => {
                split = Some(Split::Train);
                Some((input.n_characters()? as f64 * (1. - share)) as u64)
            }
        };
        Ok(Self {
            input,
            lines: Lines::open(input)?,
            assembly: Assembly::new(input.path.clone(), split),
            json: String::new(),
            json_line: 1,
            before_tail,
            is_empty: true,
            is_finished: false,
        })
    }

    /// The next part of a document; `None` at the end of the file.
    fn next(&mut self, config: &Config) -> Result<Option<Document>> {
        loop {
            if let Some(document) = self.assembly.pop() {
                self.is_empty = false;
                return Ok(Some(document));
            }
            if self.is_finished {
                return if self.is_empty { Err(self.input.has_nothing()) } else { Ok(None) };
            }
            match self.lines.next()? {
                Some(line) => self.line(line, config)?,
                None => self.finish(config)?,
            }
        }
    }

    fn line(&mut self, line: Line, config: &Config) -> Result<()> {
        match self.input.kind.format {
            Format::JsonLines => {
                self.json_line = line.number;
                self.assembly.json_line(&line, config.field(), &mut self.json)
            }
            Format::Text => {
                let line = self.cut(line, config.documents);
                self.assembly.text_line(&line, config.documents);
                Ok(())
            }
        }
    }

    /// Where the part that is held out begins within the line, gives away what is before and returns
    /// what is behind.
    fn cut(&mut self, mut line: Line, unit: Unit) -> Line {
        let Some(left) = self.before_tail else { return line };
        let n = line.text.chars().count() as u64;
        if n < left {
            self.before_tail = Some(left - n);
            return line;
        }
        let at = line.text.char_indices().nth(left as usize).map_or(line.text.len(), |(at, _)| at);
        let text = line.text.split_off(at);
        self.assembly.text_line(&line, unit);
        self.assembly.turn_to(Split::Validation);
        self.before_tail = None;
        Line { text, ..line }
    }

    fn finish(&mut self, config: &Config) -> Result<()> {
        self.assembly.json_object(self.json_line, config.field(), &mut self.json)?;
        self.assembly.finish();
        self.is_finished = true;
        let hash = self.lines.tally().hash();
        match self.input.hash.get() {
            Some(known) if *known != hash => {
                Err(self.input.wrong("changed while it was being read"))
            }
            _ => Ok(()),
        }
    }
}

impl FileDocuments<'_> {
    fn advance(&mut self) -> Result<Option<Document>> {
        loop {
            let reading = match &mut self.reading {
                Some(reading) => reading,
                None => match self.files.inputs.get(self.next) {
                    None => return Ok(None),
                    Some(input) => {
                        self.next += 1;
                        self.reading.insert(Reading::open(input, &self.files.config)?)
                    }
                },
            };
            if let Some(document) = reading.next(&self.files.config)? {
                return Ok(Some(document));
            }
            self.done += reading.lines.tally().bytes();
            self.reading = None;
        }
    }
}

impl Iterator for FileDocuments<'_> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        let document = self.advance().transpose();
        if matches!(document, Some(Err(_))) {
            self.next = self.files.inputs.len();
            self.reading = None;
        }
        document
    }
}

impl Documents for FileDocuments<'_> {
    fn progress(&self) -> Progress {
        let reading = self.reading.as_ref().map_or(0, |reading| reading.lines.tally().bytes());
        Progress { done: self.done + reading, total: self.total }
    }
}

#[cfg(test)]
mod tests;
