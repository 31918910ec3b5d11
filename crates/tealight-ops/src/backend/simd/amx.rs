//! Detection of AMX on Linux, which the standard library has on nightly only (rust-lang/rust 126622).

#![expect(unsafe_code, reason = "reads a control register and calls Linux")]

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// AMX-BF16, a bit of CPUID.7.0:EDX.
pub(super) const BF16: u32 = 1 << 22;
/// AMX-INT8, likewise.
pub(super) const INT8: u32 = 1 << 25;
/// AMX-TILE, likewise.
const TILE: u32 = 1 << 24;

/// Whether this process may use tiles with these `products`: the processor has them, the system saves them when it
/// switches threads, and it grants them to the process. Asks Linux at every call.
pub(super) fn is_permitted(products: u32) -> bool {
    let instructions = products | TILE;
    let has_instructions =
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & instructions == instructions;
    has_instructions && is_saved() && request()
}

/// CPUID.1:ECX has OSXSAVE in bit 27: XCR0 can be read. Its bits 17 and 18 are the configuration of tiles and their
/// data.
fn is_saved() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled_states() -> u64 {
        // SAFETY: register 0 exists wherever XGETBV does.
        unsafe { _xgetbv(0) }
    }
    /// OSXSAVE.
    const CAN_BE_READ: u32 = 1 << 27;
    const TILES: u64 = 0b11 << 17;
    // SAFETY: OSXSAVE says that the instruction is enabled.
    __cpuid(1).ecx & CAN_BE_READ != 0 && unsafe { enabled_states() } & TILES == TILES
}

/// Linux grants tiles to the whole process, on request.
fn request() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and writes no memory of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}
