//! A launch, run by the driver or by the emulator. Both read launches, so `launch` itself cannot call them.

#[cfg(any(feature = "cuda", feature = "emulator"))]
use candle_core::Device;
use candle_core::{Result, bail};

#[cfg(feature = "cuda")]
use super::driver;
#[cfg(feature = "emulator")]
use super::emulator;
use super::launch::Launch;

impl Launch<'_> {
    /// Submits the kernel to the device's stream. The emulator has executed it on return.
    ///
    /// # Errors
    /// If a size of the grid does not fit in 32 bits, or the driver or the emulator refuses the launch.
    pub(crate) fn run(self) -> Result<()> {
        match &self.device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => driver::launch(device, &self),
            #[cfg(feature = "emulator")]
            Device::Cpu => emulator::launch(&self),
            device => bail!("{}: there are no kernels for {device:?}", self.kernel),
        }
    }
}
