//! Tokenises a corpus, batch by batch.

use std::fs::{self, File, OpenOptions};
use std::io::{Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::write::Writer;
use crate::data::text::corpus::{Corpus, Document, Documents, Progress};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::storage::files;

/// Bytes of text that are tokenised at once, on all threads.
const BATCH: usize = 1 << 22;
/// The most parts of documents in them.
const MAX_PARTS: usize = 1 << 14;

/// Writes the tokens into a file that bears its name once it is complete.
pub(super) fn file(
    path: &Path,
    corpus: &dyn Corpus,
    tokenizer: &Tokenizer,
    key: u128,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let aside = aside(path, std::process::id());
    let side = SideFile(aside.with_extension("entries"));
    let read_write = |path: &Path| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        options.open(path).map_err(Error::io("create", path))
    };
    let mut write = |body: File, entries: File| -> Result<()> {
        let writer = Writer::new(body, entries, tokenizer.vocab_size(), key);
        let writer = writer.map_err(Error::io("write", &aside))?;
        let file = tokenise(corpus, tokenizer, writer, &aside, progress)?;
        file.sync_all().map_err(Error::io("write", &aside))
    };
    match write(read_write(&aside)?, read_write(&side.0)?) {
        Ok(()) => files::rename(&aside, path),
        Err(error) => {
            // What is wrong has been found; that a leftover stays as well is not worth telling.
            let _ = files::remove_if_there(&aside);
            Err(error)
        }
    }
}

/// Where a process writes a file: where files cannot be locked, another one may be writing the same.
fn aside(path: &Path, process: u32) -> PathBuf {
    files::aside(&path.with_extension(format!("{process}.tokens")))
}

/// Removes what processes that were killed have left of a file. Nobody else may be writing it.
pub(super) fn remove_leftovers(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let beginning = format!(".{}.", path.file_stem().unwrap_or_default().display());
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        if entry.file_name().to_string_lossy().starts_with(&beginning) {
            files::remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

/// A file that nobody needs once its writer is gone.
struct SideFile(PathBuf);

impl Drop for SideFile {
    fn drop(&mut self) {
        let _ = files::remove_if_there(&self.0);
    }
}

/// The same bytes in memory.
pub(super) fn memory(
    corpus: &dyn Corpus,
    tokenizer: &Tokenizer,
    key: u128,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<u8>> {
    let path = Path::new("memory");
    let writer = Writer::new(Cursor::default(), Cursor::default(), tokenizer.vocab_size(), key);
    let writer = writer.map_err(Error::io("write", path))?;
    tokenise(corpus, tokenizer, writer, path, progress).map(Cursor::into_inner)
}

fn tokenise<W: Read + Write + Seek>(
    corpus: &dyn Corpus,
    tokenizer: &Tokenizer,
    mut writer: Writer<W>,
    path: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<W> {
    let mut documents = corpus.documents()?;
    let mut batch = read(&mut *documents)?;
    if batch.is_empty() {
        return Err(Error::config(["task.corpus"], "the corpus has no document"));
    }
    while !batch.is_empty() {
        // The next batch is read, and decompressed, while this one is tokenised.
        let (ids, next) = rayon::join(|| encode(tokenizer, &batch), || read(&mut *documents));
        for (ids, document) in ids?.iter().zip(&batch) {
            writer.push(ids, document).map_err(Error::io("write", path))?;
        }
        batch = next?;
        progress(documents.progress());
    }
    writer.finish().map_err(Error::io("write", path))
}

fn read(documents: &mut dyn Documents) -> Result<Vec<Document>> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH && batch.len() < MAX_PARTS {
        let Some(document) = documents.next().transpose()? else { break };
        bytes += document.text.len();
        batch.push(document);
    }
    Ok(batch)
}

fn encode(tokenizer: &Tokenizer, batch: &[Document]) -> Result<Vec<Vec<u32>>> {
    let texts: Vec<&str> = batch.iter().map(|document| document.text.as_str()).collect();
    tokenizer.encode_all_plain(&texts).map_err(|error| {
        // Which of them it was is found by trying, which only an error has to pay for.
        let wrong = batch.iter().find_map(|Document { text, origin, .. }| {
            tokenizer.encode_plain(text).err().map(|error| origin.wrong(error.to_string()))
        });
        wrong.unwrap_or(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_write_beside_each_other_and_what_they_leave_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0a.tokens");
        let (one, other) = (aside(&path, 7), aside(&path, 11));
        let of_another_key = aside(&folder.path().join("0b.tokens"), 7);
        assert_ne!(one, other);
        let all = [&path, &one, &one.with_extension("entries"), &other, &of_another_key];
        for path in all {
            fs::write(path, "").unwrap();
        }
        remove_leftovers(&path).unwrap();
        assert_eq!(all.map(|path| path.exists()), [true, false, false, false, true]);
    }
}
