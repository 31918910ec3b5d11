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
    /// This function is safe, although it does not compare the launch with the kernel. A kernel is launched only by the
    /// module that includes its source, and each such module guarantees:
    ///
    /// - The arguments are the kernel's parameters, in number, order and type. The emulator compares number and sizes in
    ///   the tests.
    /// - Operands are contiguous, or their strides are among the arguments. They have as many elements as the sizes
    ///   among the arguments say: the public function has checked their shapes, and a buffer is allocated with a length
    ///   from the same sizes.
    /// - Parameters of type `Number` get operands of the dtype that the kernel is compiled for, parameters of type
    ///   `Wide` get operands of the dtype [`wide`](super::wide) of it.
    /// - Threads and blocks of the grid without an element return before they read or write. An index from a user's
    ///   data, such as a token id or a label, is compared with its bounds by the kernel; one that an earlier kernel or the
    ///   module itself has written is within them.
    /// - Each element of an unwritten buffer is written before it is read.
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
