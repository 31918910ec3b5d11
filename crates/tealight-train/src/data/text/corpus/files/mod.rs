//! `[task.corpus] kind = "files"`: text and JSON lines, plain or compressed.
//!
//! Files are streamed, one part of a document at a time, so memory does not depend on their size. An
//! invalid line is an error with its file and number; only blank lines are skipped.

mod assembly;
mod config;
pub(crate) mod kind;
mod lines;
pub(crate) mod paths;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, OnceLock};

use serde_json::json;

use self::assembly::DocumentAssembler;
pub use self::config::{Config, Unit};
use self::kind::{FileKind, Format};
use self::lines::{Line, Lines};
use crate::data::compressed;
use crate::data::file::DataFile;
use crate::data::fingerprint::Fnv128;
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::data::text::corpus::{Corpus, Document, Documents};
use crate::error::{Error, Result};
use crate::storage::encoding::Encoding;

const PATHS: &str = "task.corpus.paths";
const VALIDATION_PATHS: &str = "task.corpus.validation_paths";
/// Files whose encoding is told.
const MAX_NOTES: usize = 3;

/// A corpus of files.
#[derive(Debug)]
pub struct Files {
    config: Config,
    inputs: Vec<InputFile>,
}

/// A file of the corpus.
#[derive(Debug)]
struct InputFile {
    path: Arc<Path>,
    kind: FileKind,
    /// The split of all its documents; `None` if they are assigned one by one.
    split: Option<Split>,
    /// The hash of its bytes, once they have been read.
    hash: OnceLock<u128>,
    /// Known once it has been read.
    encoding: OnceLock<Encoding>,
}

impl InputFile {
    fn n_bytes(&self) -> Result<u64> {
        fs::metadata(&self.path).map(|data| data.len()).map_err(Error::io("read", &self.path))
    }

    /// Hashes the bytes on the disk; `progress` receives the number of bytes so far.
    fn hash(&self, progress: &mut dyn FnMut(u64)) -> Result<u128> {
        let hash = compressed::hash(&self.path, progress)?;
        Ok(*self.hash.get_or_init(|| hash))
    }

    /// The number of characters after decompression.
    fn n_characters(&self) -> Result<u64> {
        let mut lines = Lines::open(&self.path, self.kind.compression)?;
        let mut n = 0;
        while let Some(line) = lines.next()? {
            n += line.text.chars().count() as u64;
        }
        Ok(n)
    }

    /// The setting with the file's path.
    fn key(&self) -> &'static str {
        if self.split == Some(Split::Validation) { VALIDATION_PATHS } else { PATHS }
    }

    /// An error about the whole file.
    fn error(&self, rule: &str) -> Error {
        Error::config([self.key()], format!("`{}` {rule}", self.path.display()))
    }
}

impl Files {
    /// Finds the files; their text is not read yet.
    pub fn open(config: &Config) -> Result<Self> {
        config.validate()?;
        // Files are compared by their canonical paths, because links and `..` can lead to the same file.
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
        let input = |split| {
            move |(path, kind): (PathBuf, FileKind)| InputFile {
                path: path.into(),
                kind,
                split,
                hash: OnceLock::new(),
                encoding: OnceLock::new(),
            }
        };
        let train = (!held_out.is_empty()).then_some(Split::Train);
        let held_out = held_out.into_iter().map(input(Some(Split::Validation)));
        let inputs = files.into_iter().map(input(train)).chain(held_out).collect();
        Ok(Self { config: config.clone(), inputs })
    }

    fn n_bytes(&self) -> Result<u64> {
        self.inputs.iter().map(InputFile::n_bytes).sum()
    }
}

fn refuse_json_lines(files: &[(PathBuf, FileKind)]) -> Result<()> {
    let json_lines = files.iter().find(|(_, kind)| kind.format == Format::JsonLines);
    let Some((path, _)) = json_lines else { return Ok(()) };
    let (key, path) = ("task.corpus.validation_tail", path.display());
    let message = format!("`{key}` does not apply to `{path}`, in which each line is a document");
    Err(Error::config([key, PATHS], message))
}

impl Corpus for Files {
    fn documents(&self) -> Result<Box<dyn Documents + '_>> {
        let (config, inputs, total) = (&self.config, self.inputs.iter(), self.n_bytes()?);
        Ok(Box::new(FileDocuments { config, inputs, current: None, done: 0, total }))
    }

    /// The hash of the bytes on the disk and of the settings that define a document, not of the paths.
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let Config { documents, validation_tail, .. } = &self.config;
        let settings = json!([documents, self.config.field(), validation_tail]);
        let mut hash = Fnv128::default();
        hash.write(settings.to_string().as_bytes());
        let (mut done, total) = (0, self.n_bytes()?);
        for input in &self.inputs {
            let file_hash = match input.hash.get() {
                Some(hash) => *hash,
                None => input.hash(&mut |n| progress(Progress { done: done + n, total }))?,
            };
            hash.write(&file_hash.to_le_bytes());
            hash.write(format!("{:?} {:?}", input.kind, input.split).as_bytes());
            done += input.n_bytes()?;
        }
        Ok(hash.finish())
    }

    fn files(&self) -> Vec<DataFile> {
        let file = |input: &InputFile| {
            Some(DataFile::new(input.key(), &input.path, *input.hash.get()? as u64))
        };
        self.inputs.iter().filter_map(file).collect()
    }

    fn notes(&self) -> Vec<String> {
        let note = |input: &InputFile| {
            let note = input.encoding.get()?.note()?;
            Some(format!("`{}`: {note}", input.path.display()))
        };
        let mut notes: Vec<String> = self.inputs.iter().filter_map(note).collect();
        let n = notes.len();
        if n > MAX_NOTES {
            notes.truncate(MAX_NOTES);
            notes.push(format!(
                "{} more files are read in other encodings than UTF-8",
                n - MAX_NOTES
            ));
        }
        notes
    }
}

/// The documents of all files, one file after another.
struct FileDocuments<'a> {
    config: &'a Config,
    /// The files after the current one.
    inputs: slice::Iter<'a, InputFile>,
    /// `None` before the first file, after the last one or an error.
    current: Option<OpenFile<'a>>,
    /// Bytes of the files that have been read completely.
    done: u64,
    total: u64,
}

/// A file that is being read.
struct OpenFile<'a> {
    config: &'a Config,
    input: &'a InputFile,
    lines: Lines,
    assembler: DocumentAssembler,
    /// Characters before the tail that is held out.
    before_tail: Option<u64>,
    is_empty: bool,
    is_finished: bool,
}

impl<'a> OpenFile<'a> {
    fn open(input: &'a InputFile, config: &'a Config) -> Result<Self> {
        let mut split = input.split;
        let before_tail = match config.validation_tail {
            None => None,
            Some(share) => {
                split = Some(Split::Train);
                Some((input.n_characters()? as f64 * (1. - share)) as u64)
            }
        };
        Ok(Self {
            config,
            input,
            lines: Lines::open(&input.path, input.kind.compression)?,
            assembler: DocumentAssembler::new(input.path.clone(), split),
            before_tail,
            is_empty: true,
            is_finished: false,
        })
    }

    /// The next part of a document; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<Document>> {
        loop {
            if let Some(document) = self.assembler.pop() {
                self.is_empty = false;
                return Ok(Some(document));
            }
            if self.is_finished {
                // The file is not read again: a line that is added now is not part of its hash.
                let is_empty = || self.input.error("is empty: it holds no document");
                return if self.is_empty { Err(is_empty()) } else { Ok(None) };
            }
            match self.lines.next()? {
                Some(line) => self.line(line)?,
                None => self.finish()?,
            }
        }
    }

    fn line(&mut self, line: Line) -> Result<()> {
        if self.input.kind.format == Format::JsonLines {
            return self.assembler.json_line(&line, self.config.field());
        }
        let line = self.split_tail(line, self.config.documents);
        self.assembler.text_line(&line, self.config.documents);
        Ok(())
    }

    /// If the held-out tail begins within the line, adds the text before it to the training document and
    /// returns the text after it.
    fn split_tail(&mut self, mut line: Line, unit: Unit) -> Line {
        let Some(left) = self.before_tail else { return line };
        let n = line.text.chars().count() as u64;
        if n < left {
            self.before_tail = Some(left - n);
            return line;
        }
        let at = line.text.char_indices().nth(left as usize).map_or(line.text.len(), |(at, _)| at);
        let text = line.text.split_off(at);
        self.assembler.text_line(&line, unit);
        self.assembler.start_split(Split::Validation);
        self.before_tail = None;
        Line { text, ..line }
    }

    fn finish(&mut self) -> Result<()> {
        self.assembler.finish_json(self.config.field())?;
        self.assembler.finish();
        self.is_finished = true;
        if let Some(encoding) = self.lines.encoding.get() {
            self.input.encoding.get_or_init(|| *encoding);
        }
        let hash = self.lines.progress.hash();
        if self.input.hash.get().is_some_and(|known| *known != hash) {
            return Err(self.input.error("changed while it was being read"));
        }
        Ok(())
    }
}

impl FileDocuments<'_> {
    fn advance(&mut self) -> Result<Option<Document>> {
        loop {
            if let Some(file) = &mut self.current {
                if let Some(document) = file.next()? {
                    return Ok(Some(document));
                }
                self.done += file.lines.progress.bytes();
            }
            let next = self.inputs.next().map(|input| OpenFile::open(input, self.config));
            self.current = next.transpose()?;
            if self.current.is_none() {
                return Ok(None);
            }
        }
    }
}

impl Iterator for FileDocuments<'_> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        let document = self.advance().transpose();
        if matches!(document, Some(Err(_))) {
            self.inputs = slice::Iter::default();
            self.current = None;
        }
        document
    }
}

impl Documents for FileDocuments<'_> {
    fn progress(&self) -> Progress {
        let current = self.current.as_ref().map_or(0, |file| file.lines.progress.bytes());
        Progress { done: self.done + current, total: self.total }
    }
}

#[cfg(test)]
mod tests;
