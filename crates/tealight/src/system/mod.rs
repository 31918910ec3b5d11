//! The machine: devices, memory, cores, signals, and this program as a subprocess.

pub(crate) mod cores;
pub(crate) mod device;
pub(crate) mod memory;
pub(crate) mod signals;
pub(crate) mod subprocess;
