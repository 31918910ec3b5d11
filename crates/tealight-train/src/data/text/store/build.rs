//! Tokenises a corpus, batch by batch.

use std::fs::{self, File};
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

/// A store that is to be built.
pub(super) struct Build<'a> {
    pub(super) corpus: &'a dyn Corpus,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) key: u128,
    pub(super) progress: &'a mut dyn FnMut(Progress),
}

impl Build<'_> {
    /// Writes the tokens to a file. It has its name only when it is complete.
    pub(super) fn file(self, path: &Path) -> Result<()> {
        let temporary = TemporaryFile(temporary_path(path, std::process::id()));
        let entries = TemporaryFile(temporary.0.with_extension("entries"));
        let create = |path: &Path| {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true).truncate(true);
            options.open(path).map_err(Error::io("create", path))
        };
        let file = self.tokenise(create(&temporary.0)?, create(&entries.0)?, &temporary.0)?;
        file.sync_all().map_err(Error::io("write", &temporary.0))?;
        files::rename(&temporary.0, path)
    }

    /// The bytes of [`Self::file`], in memory.
    pub(super) fn memory(self) -> Result<Vec<u8>> {
        let bytes = self.tokenise(Cursor::default(), Cursor::default(), Path::new("memory"));
        bytes.map(Cursor::into_inner)
    }

    /// Writes the tokens to `body`, which is `path` in errors; `entries` buffers the entries.
    fn tokenise<W: Read + Write + Seek>(self, body: W, entries: W, path: &Path) -> Result<W> {
        let writer = Writer::new(body, entries, self.tokenizer.vocab_size(), self.key);
        let mut writer = writer.map_err(Error::io("write", path))?;
        let mut documents = self.corpus.documents()?;
        let mut batch = read(&mut *documents)?;
        if batch.is_empty() {
            return Err(Error::config(["task.corpus"], "the corpus has no document"));
        }
        while !batch.is_empty() {
            // Read and decompress the next batch while this one is tokenised.
            let encode = || encode(self.tokenizer, &batch);
            let (ids, next) = rayon::join(encode, || read(&mut *documents));
            for (ids, document) in ids?.iter().zip(&batch) {
                writer.push(ids, document).map_err(Error::io("write", path))?;
            }
            batch = next?;
            (self.progress)(documents.progress());
        }
        writer.finish().map_err(Error::io("write", path))
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
