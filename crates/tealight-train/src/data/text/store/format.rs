//! The layout of a file of tokens; all numbers are little-endian.
//!
//! ```text
//!  0  TEALTOKN          8   version u32, bytes per token u32
//! 16  documents u64    24   tokens u64
//! 32  key u128         48   CRC-32 of everything after the header, CRC-32 of bytes 0 to 51, 8 zeros
//! 64  tokens           …    zeros up to a multiple of 8
//!  …  for each document u64: the end of its tokens; bits 62, 63: assigned to training, validation
//!                       u64: the bytes of its text
//! ```

use std::ops::Range;

use crate::data::cache::{CRC, Fields, HEADER, StoreHeader};
use crate::data::split::Split;

/// Incremented with every change of the layout, or of the division of documents into parts.
pub(super) const VERSION: u32 = 2;
const ENTRY: usize = 16;
const MAGIC: &[u8; 8] = b"TEALTOKN";
const TRAIN: u64 = 1 << 62;
const VALIDATION: u64 = 1 << 63;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The bytes of a token, 2 or 4.
    pub(super) width: u32,
    pub(super) n_documents: u64,
    pub(super) n_tokens: u64,
    pub(super) key: u128,
    pub(super) body_crc: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let Self { width, n_documents, n_tokens, key, body_crc } = self;
        let mut bytes = [0; HEADER];
        let fields: [&[u8]; 7] = [
            MAGIC,
            &VERSION.to_le_bytes(),
            &width.to_le_bytes(),
            &n_documents.to_le_bytes(),
            &n_tokens.to_le_bytes(),
            &key.to_le_bytes(),
            &body_crc.to_le_bytes(),
        ];
        bytes[..52].copy_from_slice(&fields.concat());
        let crc = CRC.checksum(&bytes[..52]);
        bytes[52..56].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The bytes of a range of tokens in the file.
    pub(super) fn tokens(&self, range: Range<u64>) -> Range<usize> {
        let at = |token: u64| HEADER + (token * u64::from(self.width)) as usize;
        at(range.start)..at(range.end)
    }

    /// The bytes of a document's entry in the file.
    pub(super) fn entry(&self, document: u64) -> Range<usize> {
        let first = self.tokens(0..self.n_tokens).end.next_multiple_of(8);
        let start = first + ENTRY * document as usize;
        start..start + ENTRY
    }

    /// The size of the file in bytes; `None` on overflow.
    fn file_size(&self) -> Option<u64> {
        let tokens = self.n_tokens.checked_mul(u64::from(self.width))?;
        let entries = self.n_documents.checked_mul(ENTRY as u64)?;
        tokens.checked_add(HEADER as u64)?.checked_next_multiple_of(8)?.checked_add(entries)
    }
}

impl StoreHeader for Header {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = Fields::from_bytes(bytes, *MAGIC, VERSION)?;
        let width = fields.u32(12);
        if fields.u32(52) != CRC.checksum(&bytes[..52]) || ![2, 4].contains(&width) {
            return None;
        }
        Some(Self {
            width,
            n_documents: fields.u64(16),
            n_tokens: fields.u64(24),
            key: fields.u128(32),
            body_crc: fields.u32(48),
        })
    }

    fn key(&self) -> u128 {
        self.key
    }

    fn body_crc(&self) -> u32 {
        self.body_crc
    }

    fn fits(&self, size: u64) -> bool {
        self.file_size() == Some(size)
    }
}

/// The entry of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The end of its tokens.
    pub(super) end: u64,
    /// Bytes of its text.
    pub(super) n_bytes: u64,
    /// The split that the corpus assigns.
    pub(super) split: Option<Split>,
}

impl Entry {
    pub(super) fn encode(self) -> [u8; ENTRY] {
        let flag = match self.split {
            None => 0,
            Some(Split::Train) => TRAIN,
            Some(Split::Validation) => VALIDATION,
        };
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&(self.end | flag).to_le_bytes());
        bytes[8..].copy_from_slice(&self.n_bytes.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; ENTRY]) -> Self {
        let both = u128::from_le_bytes(bytes);
        let (place, n_bytes) = (both as u64, (both >> 64) as u64);
        let split = match place & (TRAIN | VALIDATION) {
            TRAIN => Some(Split::Train),
            VALIDATION => Some(Split::Validation),
            _ => None,
        };
        Self { end: place & !(TRAIN | VALIDATION), n_bytes, split }
    }
}
