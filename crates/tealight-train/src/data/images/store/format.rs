//! The layout of a file of pictures; all numbers are little-endian.
//!
//! ```text
//!  0  TEALPICS          8   version u32, channels u32      16  height u32, width u32
//! 24  pictures u64     32   key u128
//! 48  CRC-32 of everything after the header, CRC-32 of bytes 0 to 51, bytes of the notes u64
//! 64  pixels           …    zeros up to a multiple of 8
//!  …  for each picture: its class u32, its split u32 (0 drawn, 1 training, 2 validation), the end of its name u64
//!  …  the names, one after the other
//!  …  notes: JSON with the classes and what was left out
//! ```

use std::io::{self, Read, Seek};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::data::cache::{CRC, rest_of};
use crate::data::images::picture::{PictureSize, n_bytes};
use crate::data::split::Split;

/// Incremented with every change of the layout, of decoding or of resizing.
pub(super) const VERSION: u32 = 2;
pub(super) const HEADER: usize = 64;
pub(super) const ENTRY: usize = 16;
const MAGIC: &[u8; 8] = b"TEALPICS";
/// The bytes of the header that its checksum covers: all but the checksum itself.
const SUMMED: [Range<usize>; 2] = [0..52, 56..64];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) size: PictureSize,
    pub(super) n_pictures: u64,
    pub(super) key: u128,
    pub(super) body_crc: u32,
    pub(super) n_note_bytes: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let Self { size, n_pictures, key, body_crc, n_note_bytes } = self;
        let PictureSize { height, width, channels } = *size;
        let [channels, height, width] = [channels, height, width].map(|n| (n as u32).to_le_bytes());
        let mut bytes = [0; HEADER];
        let fields: [&[u8]; 8] = [
            MAGIC,
            &VERSION.to_le_bytes(),
            &channels,
            &height,
            &width,
            &n_pictures.to_le_bytes(),
            &key.to_le_bytes(),
            &body_crc.to_le_bytes(),
        ];
        bytes[..52].copy_from_slice(&fields.concat());
        bytes[56..].copy_from_slice(&n_note_bytes.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[52..56].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` for an invalid header or another version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER)?;
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let u64_at = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let is_ours = bytes.starts_with(MAGIC) && u32_at(8)? == VERSION;
        if !is_ours || u32_at(52)? != header_crc(bytes) {
            return None;
        }
        let [channels, height, width] = [u32_at(12)?, u32_at(16)?, u32_at(20)?].map(|n| n as usize);
        Some(Self {
            size: PictureSize { height, width, channels },
            n_pictures: u64_at(24)?,
            key: bytes[32..48].try_into().map(u128::from_le_bytes).ok()?,
            body_crc: u32_at(48)?,
            n_note_bytes: u64_at(56)?,
        })
    }

    /// The bytes of a picture in the file.
    pub(super) fn pixels(&self, picture: usize) -> Range<usize> {
        let n_bytes = n_bytes(self.size);
        HEADER + picture * n_bytes..HEADER + (picture + 1) * n_bytes
    }

    /// The bytes of a picture's entry.
    pub(super) fn entry(&self, picture: usize) -> Range<usize> {
        let start = self.entries() + ENTRY * picture;
        start..start + ENTRY
    }

    fn entries(&self) -> usize {
        self.pixels(self.n_pictures as usize).start.next_multiple_of(8)
    }

    /// Where the names begin.
    pub(super) fn names(&self) -> usize {
        self.entry(self.n_pictures as usize).start
    }

    /// The bytes of the file before the names; `None` on overflow.
    fn least_size(&self) -> Option<u64> {
        let PictureSize { height, width, channels } = self.size;
        let sides = (height as u64).checked_mul(width as u64)?.checked_mul(channels as u64)?;
        let pixels = self.n_pictures.checked_mul(sides)?;
        let entries = self.n_pictures.checked_mul(ENTRY as u64)?;
        pixels.checked_add(HEADER as u64)?.checked_next_multiple_of(8)?.checked_add(entries)
    }
}

fn header_crc(bytes: &[u8]) -> u32 {
    let mut digest = CRC.digest();
    for range in SUMMED {
        digest.update(&bytes[range]);
    }
    digest.finalize()
}

/// The entry of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) class: u32,
    /// The split that the source gives.
    pub(super) split: Option<Split>,
    /// The end of its name among the names.
    pub(super) name_end: u64,
}

impl Entry {
    pub(super) fn encode(self) -> [u8; ENTRY] {
        let split: u32 = match self.split {
            None => 0,
            Some(Split::Train) => 1,
            Some(Split::Validation) => 2,
        };
        let mut bytes = [0; ENTRY];
        bytes[..4].copy_from_slice(&self.class.to_le_bytes());
        bytes[4..8].copy_from_slice(&split.to_le_bytes());
        bytes[8..].copy_from_slice(&self.name_end.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; ENTRY]) -> Self {
        let all = u128::from_le_bytes(bytes);
        let split = match (all >> 32) as u32 {
            1 => Some(Split::Train),
            2 => Some(Split::Validation),
            _ => None,
        };
        Self { class: all as u32, split, name_end: (all >> 64) as u64 }
    }
}

/// What is read once, when the file is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    /// The names of the classes; the class of an entry is an index.
    pub(super) classes: Vec<String>,
    /// Files that were left out, because they are no pictures.
    pub(super) n_left_out: u64,
    /// What is wrong with the first of them.
    pub(super) first_left_out: Option<String>,
}

/// Reads and verifies a whole file. Returns its header, or `None` if it is damaged or has another key.
pub(super) fn verify(file: &mut (impl Read + Seek), key: u128) -> io::Result<Option<Header>> {
    let size = file.seek(io::SeekFrom::End(0))?;
    file.rewind()?;
    let mut bytes = Vec::with_capacity(HEADER);
    file.by_ref().take(HEADER as u64).read_to_end(&mut bytes)?;
    let Some(header) = Header::decode(&bytes) else { return Ok(None) };
    let least = header.least_size().and_then(|least| least.checked_add(header.n_note_bytes));
    if header.key != key || least.is_none_or(|least| least > size) {
        return Ok(None);
    }
    Ok((rest_of(file)? == header.body_crc).then_some(header))
}
