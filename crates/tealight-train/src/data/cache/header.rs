//! The header of a store. It says which kind of store it is and from which data it was made, and shows whether the file
//! is whole.
//!
//! ```text
//!  0  the kind, 8 letters       8   version u32, numbers of the kind
//! 32  key u128                 48   CRC-32 of everything after the header, CRC-32 of the header
//! 56  numbers of the kind
//! ```
//!
//! All numbers are little-endian.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::checksum::rest_of;

/// The bytes of a header.
pub(crate) const HEADER: usize = 64;

/// The header of one kind of store.
pub(crate) trait StoreHeader: Sized {
    /// The header at the beginning of `bytes`; `None` for an invalid one or another version.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// The hash of the data and settings from which the store was made.
    fn key(&self) -> u128;

    /// The checksum of everything after the header.
    fn body_crc(&self) -> u32;

    /// Whether a whole file with this header can have `size` bytes.
    fn fits(&self, size: u64) -> bool;
}

/// The numbers of a header, each by the place of its first byte.
pub(crate) struct Fields<'a>(&'a [u8; HEADER]);

impl<'a> Fields<'a> {
    /// The fields at the beginning of `bytes`; `None` if there are too few bytes, or if they are of another kind or
    /// version.
    pub(crate) fn from_bytes(bytes: &'a [u8], kind: [u8; 8], version: u32) -> Option<Self> {
        let fields = Self(bytes.first_chunk()?);
        (fields.0.starts_with(&kind) && fields.u32(8) == version).then_some(fields)
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn u128(&self, at: usize) -> u128 {
        u128::from_le_bytes(self.bytes(at))
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("invariant: a number is within the header")
    }
}

/// Reads and verifies a whole file. Returns its header, or `None` if it is damaged or has another key.
pub(super) fn verify<H: StoreHeader>(file: &mut File, key: u128) -> io::Result<Option<H>> {
    let size = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut bytes = Vec::with_capacity(HEADER);
    file.by_ref().take(HEADER as u64).read_to_end(&mut bytes)?;
    let header = H::decode(&bytes).filter(|header| header.key() == key && header.fits(size));
    let Some(header) = header else { return Ok(None) };
    Ok((rest_of(file)? == header.body_crc()).then_some(header))
}
