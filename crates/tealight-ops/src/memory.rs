//! Memory that is freed stays with the process, to be used again.
//!
//! A training step frees and asks for the same buffers over and over. glibc hands buffers above
//! 128 KiB back to the system each time, and the next step pays for fresh pages: a quarter of the
//! time of a small model. Other allocators (macOS, musl, Windows) are left as they are.

#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "glibc is configured through C")
)]

/// Tells the allocator to keep what is freed. For a program that trains, once, at its start.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // The largest threshold that every glibc accepts on 64 bits.
        const MMAP_FROM: libc::c_int = 32 << 20;
        const NEVER: libc::c_int = libc::c_int::MAX;
        const GROW_BY: libc::c_int = 16 << 20;
        // SAFETY: `mallopt` takes two integers, may be called at any time, and reports a setting
        // that it does not know by its result alone, which changes nothing.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_FROM);
            libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
            libc::mallopt(libc::M_TOP_PAD, GROW_BY);
        }
    }
}
