//! An allocator that keeps freed memory in the process and backs the heap with huge pages (Linux with glibc;
//! elsewhere it is the system's).
//!
//! A training step allocates and frees the same buffers over and over. By default glibc returns buffers above
//! 128 KiB to the system each time, and page faults in the next step take a quarter of the time of a small
//! model. And buffers of many megabytes in pages of 4 KiB miss the TLB, which takes a fifth of the time of a
//! larger model. Huge pages of 2 MiB are requested with `madvise(2)`.
//!
//! A program that trains sets [`Allocator`] as its `#[global_allocator]` and calls [`keep_freed_memory`] once, at
//! its start.

#![expect(
    unsafe_code,
    reason = "an allocator is unsafe to write, and glibc is configured through C"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The number of allocations so far, on all threads; 0 unless [`Allocator`] is the global allocator.
pub fn n_allocations() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Whether [`Allocator`] is the global allocator, so that the memory of a `Vec` is the system's.
pub(crate) fn is_global() -> bool {
    n_allocations() > 0
}

/// Makes the allocator keep freed memory. To be called once, at the start of a program that trains.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::keep_freed_memory();
}

/// The system's allocator with a count of allocations. Once [`keep_freed_memory`] has been called, it requests
/// huge pages.
///
/// Only for a `#[global_allocator]`, or for one that takes all of its memory from this one: operations then leave
/// buffers as the system hands them out, instead of clearing them.
#[derive(Debug)]
pub struct Allocator;

impl Allocator {
    fn count_and_advise(len: usize) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::request_huge_pages(len);
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        let _ = len;
    }
}

// SAFETY: every call is forwarded to the system's allocator with its arguments unchanged.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of `System`.
        let block = unsafe { System.alloc(layout) };
        Self::count_and_advise(layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of `System`.
        let block = unsafe { System.alloc_zeroed(layout) };
        Self::count_and_advise(layout.size());
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of `System`.
        let block = unsafe { System.realloc(block, layout, new_size) };
        Self::count_and_advise(new_size);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Smaller blocks rarely make the heap grow: its end is not checked after them.
    const LARGE: usize = 64 << 10;
    /// [`ADVISED_TO`] before [`keep_freed_memory`] is called.
    const OFF: usize = 0;

    /// The address up to which huge pages have been requested.
    static ADVISED_TO: AtomicUsize = AtomicUsize::new(OFF);

    pub(super) fn keep_freed_memory() {
        const NEVER: libc::c_int = libc::c_int::MAX;
        // The heap grows in steps of many huge pages: a huge page cannot span two steps.
        const GROW_BY: libc::c_int = 64 << 20;
        let settings = [
            // All threads share one heap, and no block has a mapping of its own.
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_MAX, 0),
            (libc::M_TRIM_THRESHOLD, NEVER),
            (libc::M_TOP_PAD, GROW_BY),
        ];
        for (name, value) in settings {
            // SAFETY: `mallopt` takes two integers and may be called at any time. An unknown setting
            // changes nothing.
            unsafe {
                libc::mallopt(name, value);
            }
        }
        ADVISED_TO.store(heap_end(), Ordering::Relaxed);
    }

    /// After an allocation of `len` bytes: requests huge pages for the memory by which the heap has grown.
    pub(super) fn request_huge_pages(len: usize) {
        let advised_to = if len < LARGE { OFF } else { ADVISED_TO.load(Ordering::Relaxed) };
        if advised_to == OFF {
            return;
        }
        let end = heap_end();
        if end > advised_to {
            let before = ADVISED_TO.swap(end, Ordering::Relaxed);
            advise(before, end.saturating_sub(before));
        }
    }

    fn heap_end() -> usize {
        // SAFETY: an increment of 0 does not move the end of the heap.
        unsafe { libc::sbrk(0) as usize }
    }

    fn advise(start: usize, len: usize) {
        const PAGE: usize = 4096;
        let first = start.next_multiple_of(PAGE);
        let len = (start + len).saturating_sub(first);
        // SAFETY: this advice changes how memory is backed, not its contents. On addresses or kernels
        // that do not support it, the call fails without an effect.
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
