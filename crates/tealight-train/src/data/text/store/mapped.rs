//! The bytes of a store as a memory map.
#![expect(unsafe_code, reason = "mapping a file requires that no process changes it")]

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapMut};

/// The content of a file.
pub(super) fn file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes of a map must not change. A store is written under a temporary name and renamed
    // when it is complete; afterwards Tealight never opens it for writing, and replacing or removing it
    // leaves the mapped file unchanged.
    unsafe { Mmap::map(file) }
}

/// A copy of `bytes` in memory.
pub(super) fn memory(bytes: &[u8]) -> io::Result<Mmap> {
    let mut map = MmapMut::map_anon(bytes.len())?;
    map.copy_from_slice(bytes);
    map.make_read_only()
}
