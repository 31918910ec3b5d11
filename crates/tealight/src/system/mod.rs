//! The machine: devices, memory, signals, and this program as a subprocess.

pub(crate) mod device;
pub(crate) mod interrupt;
pub(crate) mod memory;
pub(crate) mod subprocess;
