//! Tokenises a corpus, batch by batch.

use std::io::{Cursor, Read, Seek, Write};
use std::path::Path;

use super::write::Writer;
use crate::data::cache::{TemporaryFile, create};
use crate::data::progress::Progress;
use crate::data::text::corpus::{Corpus, Document, Documents};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};

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
    /// Writes the tokens to a file.
    pub(super) fn file(self, path: &Path) -> Result<()> {
        let entries = TemporaryFile(path.with_extension("entries"));
        let file = self.tokenise(create(path)?, create(&entries.0)?, path)?;
        file.sync_all().map_err(Error::io("write", path))
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
