//! Memory that is freed stays with the process, to be used again, in large pages.
//!
//! A training step frees and asks for the same buffers over and over. glibc hands buffers above
//! 128 KiB back to the system each time, and the next step pays for fresh pages: a quarter of the
//! time of a small model. And a buffer of many megabytes in pages of 4 KiB is read through thousands
//! of entries of the page table, which the processor does not keep: a fifth of the time of a larger
//! one. Linux gives pages of 2 MiB to those who ask (`madvise(2)`). Other systems are left as they are.
//!
//! A program that trains has [`Allocator`] for its `#[global_allocator]`, and calls
//! [`keep_freed_memory`] once, at its start.

#![expect(
    unsafe_code,
    reason = "an allocator is unsafe to write, and glibc is configured through C"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The allocations so far, on all threads; 0 where [`Allocator`] is not in use.
pub fn n_allocations() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Tells the allocator to keep what is freed. For a program that trains, once, at its start.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::keep_freed_memory();
}

/// The system's allocator. It counts, and asks for large pages once [`keep_freed_memory`] has been
/// called.
#[derive(Debug)]
pub struct Allocator;

impl Allocator {
    fn count(len: usize) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::ask_for_large_pages(len);
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        let _ = len;
    }
}

// SAFETY: every block is the system's allocator's, as it was asked for.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let block = unsafe { System.alloc(layout) };
        Self::count(layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let block = unsafe { System.alloc_zeroed(layout) };
        Self::count(layout.size());
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        let block = unsafe { System.realloc(block, layout, new_size) };
        Self::count(new_size);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Below this, a block does not make the heap grow often enough to look.
    const LARGE: usize = 64 << 10;
    /// Where no heap ends.
    const OFF: usize = 0;

    /// Up to where large pages have been asked for.
    static ASKED_TO: AtomicUsize = AtomicUsize::new(OFF);

    pub(super) fn keep_freed_memory() {
        const NEVER: libc::c_int = libc::c_int::MAX;
        // A large page does not reach from one growth into the next.
        const GROW_BY: libc::c_int = 64 << 20;
        let settings = [
            // One heap for all threads, and nothing mapped beside it.
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_MAX, 0),
            (libc::M_TRIM_THRESHOLD, NEVER),
            (libc::M_TOP_PAD, GROW_BY),
        ];
        for (name, value) in settings {
            // SAFETY: `mallopt` takes two integers, may be called at any time, and reports a
            // setting that it does not know by its result alone, which changes nothing.
            unsafe {
                libc::mallopt(name, value);
            }
        }
        ASKED_TO.store(heap_end(), Ordering::Relaxed);
    }

    /// For the part by which the heap has grown with a block of `len` bytes.
    pub(super) fn ask_for_large_pages(len: usize) {
        let asked_to = if len < LARGE { OFF } else { ASKED_TO.load(Ordering::Relaxed) };
        if asked_to == OFF {
            return;
        }
        let end = heap_end();
        if end > asked_to {
            let before = ASKED_TO.swap(end, Ordering::Relaxed);
            advise(before, end.saturating_sub(before));
        }
    }

    fn heap_end() -> usize {
        // SAFETY: an increment of 0 moves nothing.
        unsafe { libc::sbrk(0) as usize }
    }

    fn advise(start: usize, len: usize) {
        const PAGE: usize = 4096;
        let first = start.next_multiple_of(PAGE);
        let len = (start + len).saturating_sub(first);
        // SAFETY: the advice changes how memory is backed, not what it holds. Where there is no
        // such memory or no such advice, it does nothing.
        unsafe {
            libc::madvise(first as *mut libc::c_void, len, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_asked_for_and_counted() {
        keep_freed_memory();
        let before = n_allocations();
        for len in [1, 100, 1 << 16, 5 << 20, 40 << 20] {
            let layout = Layout::from_size_align(len, 64).unwrap();
            let grown = Layout::from_size_align(2 * len, 64).unwrap();
            // SAFETY: the sizes are not zero, and blocks are freed with the layout that they have.
            unsafe {
                let block = Allocator.alloc_zeroed(layout);
                assert!(std::slice::from_raw_parts(block, len).iter().all(|&byte| byte == 0));
                block.write_bytes(7, len);
                let block = Allocator.realloc(block, layout, 2 * len);
                assert!(std::slice::from_raw_parts(block, len).iter().all(|&byte| byte == 7));
                Allocator.dealloc(block, grown);
                let block = Allocator.alloc(layout);
                assert!((block as usize).is_multiple_of(64));
                Allocator.dealloc(block, layout);
            }
        }
        assert_eq!(n_allocations() - before, 15);
    }
}
