//! The machine: devices, memory, cores, signals; this program: its build, its environment variables, and itself as a
//! subprocess.

pub(crate) mod cores;
pub(crate) mod device;
pub(crate) mod installation;
pub(crate) mod memory;
pub(crate) mod processor;
pub(crate) mod signals;
pub(crate) mod subprocess;
pub(crate) mod variables;
pub(crate) mod version;
