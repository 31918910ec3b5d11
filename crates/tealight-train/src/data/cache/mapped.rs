//! A file as a slice of bytes.
#![expect(unsafe_code, reason = "mapping a file requires that no process changes it")]

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// The bytes of a store.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// A memory-mapped file.
    Mapped(Mmap),
    /// In memory.
    Owned(Vec<u8>),
}

impl Bytes {
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the bytes of a map must not change. A store is written under a temporary name and renamed
        // when it is complete; afterwards Tealight never opens it for writing, and replacing or removing it
        // leaves the mapped file unchanged.
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
