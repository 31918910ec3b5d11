//! Writes a file of pictures. The header is written last, when its values are known.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::format::{Entry, Header, Notes};
use crate::data::cache::{CRC, Crc32, HEADER};
use crate::data::images::picture::{Picture, PictureSize};
use crate::data::split::Split;

/// Writes pictures one by one. Their entries and names follow the pixels in the file, and are kept in memory until
/// then.
pub(super) struct Writer<W: Write> {
    body: BufWriter<W>,
    digest: Crc32,
    header: Header,
    entries: Vec<u8>,
    names: Vec<u8>,
    classes: BTreeMap<String, u32>,
    pub(super) notes: Notes,
}

impl<W: Write + Seek> Writer<W> {
    /// Writes pictures of this size.
    pub(super) fn new(body: W, size: PictureSize, key: u128) -> io::Result<Self> {
        let header = Header { size, n_pictures: 0, key, body_crc: 0, n_note_bytes: 0 };
        let mut body = BufWriter::with_capacity(1 << 18, body);
        body.write_all(&[0; HEADER])?;
        Ok(Self {
            body,
            digest: CRC.digest(),
            header,
            entries: Vec::new(),
            names: Vec::new(),
            classes: BTreeMap::new(),
            notes: Notes::default(),
        })
    }

    pub(super) fn push(
        &mut self,
        picture: &Picture,
        (name, class, split): (&str, &str, Option<Split>),
    ) -> io::Result<()> {
        let class = if let Some(&class) = self.classes.get(class) {
            class
        } else {
            let number = self.classes.len() as u32;
            self.classes.insert(class.to_owned(), number);
            self.notes.classes.push(class.to_owned());
            number
        };
        self.names.extend_from_slice(name.as_bytes());
        let entry = Entry { class, split, name_end: self.names.len() as u64 };
        self.entries.extend_from_slice(&entry.encode());
        self.header.n_pictures += 1;
        self.write(&picture.pixels)
    }

    /// Completes the file and returns it.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let end = self.header.pixels(self.header.n_pictures as usize).start;
        let notes = serde_json::to_vec(&self.notes)?;
        self.header.n_note_bytes = notes.len() as u64;
        let (entries, names) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.names));
        for part in [vec![0; end.next_multiple_of(8) - end], entries, names, notes] {
            self.write(&part)?;
        }
        self.header.body_crc = self.digest.finalize();
        self.body.seek(SeekFrom::Start(0))?;
        self.body.write_all(&self.header.encode())?;
        self.body.into_inner().map_err(io::IntoInnerError::into_error)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.body.write_all(bytes)
    }
}
