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

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::data::cache::{CRC, Fields, HEADER, StoreHeader};
use crate::data::images::picture::{PictureSize, n_bytes};
use crate::data::split::Split;

/// Incremented with every change of the layout, of decoding or of resizing.
pub(super) const VERSION: u32 = 2;
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

impl StoreHeader for Header {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = Fields::from_bytes(bytes, *MAGIC, VERSION)?;
        if fields.u32(52) != header_crc(bytes) {
            return None;
        }
        let [channels, height, width] = [12, 16, 20].map(|at| fields.u32(at) as usize);
        Some(Self {
            size: PictureSize { height, width, channels },
            n_pictures: fields.u64(24),
            key: fields.u128(32),
            body_crc: fields.u32(48),
            n_note_bytes: fields.u64(56),
        })
    }

    fn key(&self) -> u128 {
        self.key
    }

    fn body_crc(&self) -> u32 {
        self.body_crc
    }

    /// The names have any length, so only the least size is known.
    fn fits(&self, size: u64) -> bool {
        let least = self.least_size().and_then(|least| least.checked_add(self.n_note_bytes));
        least.is_some_and(|least| least <= size)
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

/// The data that are read once, when the file is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    /// The names of the classes; the class of an entry is an index.
    pub(super) classes: Vec<String>,
    /// Files that were left out, because they are no pictures.
    pub(super) n_left_out: u64,
    /// The fault of the first of these files.
    pub(super) first_left_out: Option<String>,
}
