//! The device that the tests of all crates run on.

use std::sync::LazyLock;

use candle_core::Device;

use crate::backend::device::open_cuda;

/// The CPU, or the GPU that `TEALIGHT_TEST_DEVICE` names: `cuda` or `cuda:N`.
///
/// # Panics
/// If the variable is malformed or there is no such GPU.
pub fn device() -> &'static Device {
    static DEVICE: LazyLock<Device> = LazyLock::new(|| {
        let name = std::env::var("TEALIGHT_TEST_DEVICE").unwrap_or_default();
        match name.split_once(':').unwrap_or((&name, "0")) {
            ("" | "cpu", _) => Device::Cpu,
            ("cuda", ordinal) => {
                let ordinal = ordinal.parse().expect("TEALIGHT_TEST_DEVICE=cuda:N, N a number");
                open_cuda(ordinal).expect("the device of TEALIGHT_TEST_DEVICE")
            }
            _ => panic!("TEALIGHT_TEST_DEVICE={name}: expected cpu, cuda or cuda:N"),
        }
    });
    &DEVICE
}
