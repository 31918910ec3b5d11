//! Tokenises a corpus, batch by batch.

use std::fs::{self, File, OpenOptions};
use std::io::{Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::write::Writer;
use crate::data::text::corpus::{Corpus, Document, Documents, Progress};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::storage::files;

/// Bytes of text in a batch, which all threads tokenise together.
const BATCH: usize = 1 << 22;
/// The maximal number of parts of documents in a batch.
const MAX_PARTS: usize = 1 << 14;

/// Writes the tokens to a file. It has its name only when it is complete.
pub(super) fn file(
    path: &Path,
    corpus: &dyn Corpus,
    tokenizer: &Tokenizer,
    key: u128,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let temporary = temporary_path(path, std::process::id());
    let entries = TemporaryFile(temporary.with_extension("entries"));
    let read_write = |path: &Path| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        options.open(path).map_err(Error::io("create", path))
    };
    let mut write = |body: File, entries: File| -> Result<()> {
        let writer = Writer::new(body, entries, tokenizer.vocab_size(), key);
        let writer = writer.map_err(Error::io("write", &temporary))?;
        let file = tokenise(corpus, tokenizer, writer, &temporary, progress)?;
        file.sync_all().map_err(Error::io("write", &temporary))
    };
    match write(read_write(&temporary)?, read_write(&entries.0)?) {
        Ok(()) => files::rename(&temporary, path),
        Err(error) => {
            // Report the original error, not a failure to remove the file.
            let _ = files::remove_if_exists(&temporary);
            Err(error)
        }
    }
}

/// The temporary path of a process: on a file system without locks, another process may write the same file.
fn temporary_path(path: &Path, process: u32) -> PathBuf {
    files::temporary_path(&path.with_extension(format!("{process}.tokens")))
}

/// Removes the temporary files of killed processes. The caller must hold the lock of `path`.
pub(super) fn remove_leftovers(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let prefix = format!(".{}.", path.file_stem().unwrap_or_default().display());
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            files::remove_if_exists(&entry.path())?;
        }
    }
    Ok(())
}

/// A file that is removed on drop.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = files::remove_if_exists(&self.0);
    }
}

/// The bytes of [`file()`], in memory.
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
        // Read and decompress the next batch while this one is tokenised.
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
        // Encode the texts one by one to find the one that fails.
        let failing = batch.iter().find_map(|Document { text, origin, .. }| {
            tokenizer.encode_plain(text).err().map(|error| origin.error(error.to_string()))
        });
        failing.unwrap_or(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_write_beside_each_other_and_what_they_leave_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0a.tokens");
        let (one, other) = (temporary_path(&path, 7), temporary_path(&path, 11));
        let of_another_key = temporary_path(&folder.path().join("0b.tokens"), 7);
        assert_ne!(one, other);
        let all = [&path, &one, &one.with_extension("entries"), &other, &of_another_key];
        for path in all {
            fs::write(path, "").unwrap();
        }
        remove_leftovers(&path).unwrap();
        assert_eq!(all.map(|path| path.exists()), [true, false, false, false, true]);
    }
}
