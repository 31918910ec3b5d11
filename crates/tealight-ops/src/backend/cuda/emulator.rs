//! Kernels on the CPU, for tests: `scripts/emulate_kernels.sh` compiles them into a library, whose path is in
//! `TEALIGHT_EMULATED_KERNELS`. Without it nothing is emulated.

#![expect(unsafe_code, reason = "functions of a library that was compiled elsewhere")]

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::sync::LazyLock;

use candle_core::{Result, bail};

use super::launch::Launch;

/// `tealight_emulate` in `scripts/cuda_emulator/emulator.cpp`.
type Emulate = unsafe extern "C" fn(
    name: *const c_char,
    bits: c_uint,
    grid: *const c_uint,
    block: c_uint,
    shared_bytes: c_uint,
    arguments: *mut *mut c_void,
) -> *const c_char;

static EMULATE: LazyLock<Option<Emulate>> = LazyLock::new(|| {
    let path = std::env::var("TEALIGHT_EMULATED_KERNELS").ok()?;
    let c_path = CString::new(path.clone()).ok()?;
    // SAFETY: both are strings that end with a zero, and the library stays loaded.
    unsafe {
        let library = libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "`{path}` cannot be loaded");
        let symbol = libc::dlsym(library, c"tealight_emulate".as_ptr());
        assert!(!symbol.is_null(), "`{path}` has no kernels");
        Some(std::mem::transmute::<*mut c_void, Emulate>(symbol))
    }
});

pub(super) fn is_there() -> bool {
    EMULATE.is_some()
}

pub(super) fn launch(launch: &Launch<'_>) -> Result<()> {
    let Some(emulate) = *EMULATE else { bail!("no kernels were loaded") };
    let name = CString::new(launch.kernel).map_err(candle_core::Error::wrap)?;
    let arguments = launch.arguments.iter().map(|words| words.as_ptr().cast_mut().cast::<c_void>());
    let mut arguments: Vec<_> = arguments.collect();
    // SAFETY: the arguments are those of the kernel, and what they point to lives until it returns.
    let error = unsafe {
        emulate(
            name.as_ptr(),
            launch.bits,
            launch.grid.as_ptr(),
            launch.block,
            launch.shared_bytes,
            arguments.as_mut_ptr(),
        )
    };
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: it is a literal of the library.
    let error = unsafe { CStr::from_ptr(error) };
    bail!("{}/{}: {}", launch.file, launch.kernel, error.to_string_lossy())
}
