//! Kernels on the CPU, for tests: `scripts/emulate_kernels.sh` compiles them into a library. Its path is in the
//! environment variable `TEALIGHT_EMULATED_KERNELS`; if that is not set, the CPU's loops run instead.

#![expect(unsafe_code, reason = "calls into a library that is loaded at run time")]

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::sync::LazyLock;

use candle_core::{Result, bail};

use super::launch::{Dims, Launch};

/// `tealight_emulate` in `scripts/cuda_emulator/emulator.cpp`.
type Emulate = unsafe extern "C" fn(
    name: *const c_char,
    bits: c_uint,
    grid: *const c_uint,
    block: c_uint,
    shared_bytes: c_uint,
    n_arguments: c_uint,
    words: *const c_uint,
    arguments: *mut *mut c_void,
) -> *const c_char;

static EMULATE: LazyLock<Option<Emulate>> = LazyLock::new(|| {
    let path = std::env::var("TEALIGHT_EMULATED_KERNELS").ok()?;
    let c_path = CString::new(path.clone()).ok()?;
    // SAFETY: both strings end with a zero, the symbol has this signature, and the library stays loaded.
    unsafe {
        let library = libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "`{path}` cannot be loaded");
        let symbol = libc::dlsym(library, c"tealight_emulate".as_ptr());
        assert!(!symbol.is_null(), "`{path}` has no kernels");
        Some(std::mem::transmute::<*mut c_void, Emulate>(symbol))
    }
});

/// Whether there is a library of kernels.
pub(super) fn is_loaded() -> bool {
    EMULATE.is_some()
}

pub(super) fn launch(launch: &Launch<'_>) -> Result<()> {
    let Some(emulate) = *EMULATE else { bail!("there is no library of emulated kernels") };
    let Dims { grid, block, shared_bytes } = launch.dims()?;
    let name = CString::new(launch.kernel).map_err(candle_core::Error::wrap)?;
    let arguments = launch.arguments.iter().map(|words| words.as_ptr().cast_mut().cast::<c_void>());
    let mut arguments: Vec<_> = arguments.collect();
    let words: Vec<_> = launch.arguments.iter().map(|words| words.len() as c_uint).collect();
    // SAFETY: the kernel's module guarantees what `Launch::run` lists, and the emulator compares number and sizes of the
    // arguments with the kernel's parameters. The launch borrows all operands until the kernel has returned.
    let error = unsafe {
        emulate(
            name.as_ptr(),
            launch.bits,
            grid.as_ptr(),
            block,
            shared_bytes,
            words.len() as c_uint,
            words.as_ptr(),
            arguments.as_mut_ptr(),
        )
    };
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the library returns a string literal.
    let error = unsafe { CStr::from_ptr(error) };
    bail!("{}/{}: {}", launch.source.name, launch.kernel, error.to_string_lossy())
}
