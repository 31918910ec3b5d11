//! Writes a file of tokens. The header is written last, when its values are known.

use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

use super::format::{Entry, Header};
use crate::data::cache::{CRC, Crc32, HEADER};
use crate::data::text::corpus::{Document, Part};

/// Writes documents one by one.
pub(super) struct Writer<W: Write> {
    body: BufWriter<W>,
    /// The entries of the documents. They follow the tokens in the file, so they are buffered here.
    entries: BufWriter<W>,
    digest: Crc32,
    header: Header,
    /// The unfinished document; its `end` is not set yet.
    open: Option<Entry>,
    buffer: Vec<u8>,
}

impl<W: Read + Write + Seek> Writer<W> {
    /// Writes to `body`; `entries` buffers the entries.
    pub(super) fn new(body: W, entries: W, vocab_size: usize, key: u128) -> io::Result<Self> {
        let width = if vocab_size <= 1 << 16 { 2 } else { 4 };
        let header = Header { width, n_documents: 0, n_tokens: 0, key, body_crc: 0 };
        let mut body = BufWriter::with_capacity(1 << 18, body);
        body.write_all(&[0; HEADER])?;
        let entries = BufWriter::new(entries);
        Ok(Self { body, entries, digest: CRC.digest(), header, open: None, buffer: Vec::new() })
    }

    /// Writes the tokens of a document or of a part of one.
    pub(super) fn push(&mut self, ids: &[u32], document: &Document) -> io::Result<()> {
        let Document { text, part, split, .. } = document;
        if *part == Part::First {
            self.end_document()?;
        }
        let open = self.open.get_or_insert(Entry { end: 0, n_bytes: 0, split: *split });
        open.n_bytes += text.len() as u64;
        self.buffer.clear();
        if self.header.width == 2 {
            self.buffer.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes()));
        } else {
            self.buffer.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        self.header.n_tokens += ids.len() as u64;
        self.digest.update(&self.buffer);
        self.body.write_all(&self.buffer)
    }

    fn end_document(&mut self) -> io::Result<()> {
        let Some(document) = self.open.take() else { return Ok(()) };
        self.header.n_documents += 1;
        let entry = Entry { end: self.header.n_tokens, ..document };
        self.entries.write_all(&entry.encode())
    }

    /// Completes the file and returns it.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.end_document()?;
        let end = self.header.tokens(0..self.header.n_tokens).end;
        let padding = vec![0; end.next_multiple_of(8) - end];
        self.digest.update(&padding);
        self.body.write_all(&padding)?;
        let mut entries = self.entries.into_inner().map_err(io::IntoInnerError::into_error)?;
        entries.rewind()?;
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = entries.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            self.digest.update(&buffer[..n]);
            self.body.write_all(&buffer[..n])?;
        }
        self.header.body_crc = self.digest.finalize();
        self.body.seek(SeekFrom::Start(0))?;
        self.body.write_all(&self.header.encode())?;
        self.body.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
