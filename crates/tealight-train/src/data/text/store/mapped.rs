//! A file as a slice of bytes.
#![expect(
    unsafe_code,
    reason = "a file in memory is only as constant as those who can write to it"
)]

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// The bytes of a store.
#[derive(Debug)]
pub(super) enum Bytes {
    /// Of a file, which the system reads as it is needed.
    Mapped(Mmap),
    /// In memory.
    Owned(Vec<u8>),
}

impl Bytes {
    pub(super) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the bytes of a map must not change. A store is written under another name and
        // renamed when it is complete, nothing of ours opens it to write, and replacing or removing
        // it leaves the mapped file as it is.
        unsafe { Mmap::map(file) }.map(Self::Mapped)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
