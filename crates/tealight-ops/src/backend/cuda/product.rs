//! Matrix products: cuBLAS's on a device, a plain kernel on the emulator.

use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{Device, Result, Tensor, bail};

use super::{Buffer, Launch, Plain, long};

/// A batch of contiguous matrices, `(rows, columns)` each, read as they are or transposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor<'a> {
    pub(super) x: &'a Tensor,
    pub(super) is_transposed: bool,
}

impl<'a> Factor<'a> {
    pub(crate) fn of(x: &'a Tensor) -> Self {
        Self { x, is_transposed: false }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { is_transposed: !self.is_transposed, ..self }
    }
}

/// Of one matrix of the batch: C `(m, n)`, of depth k.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// Whether products of f32 on tensor cores are rounded to TF32, 10 bits of mantissa: on NVIDIA's GPUs, in this
/// whole process.
static TF32: AtomicBool = AtomicBool::new(false);

/// Lets products of f32 on NVIDIA's GPUs read their factors as TF32, which has 10 bits of mantissa where f32
/// has 23, and is several times as fast. Sums stay f32. Of this whole process; nothing else changes.
pub fn allow_tf32(allow: bool) {
    TF32.store(allow, Ordering::Relaxed);
}

#[cfg(feature = "cuda")]
pub(super) fn is_tf32_allowed() -> bool {
    TF32.load(Ordering::Relaxed)
}

/// C = A B of each matrix of the batch: `(batch, m, n)`
pub(crate) fn product(a: Factor<'_>, b: Factor<'_>, sizes: Sizes) -> Result<Buffer> {
    let Sizes { batch, m, n, .. } = sizes;
    let mut c = Buffer::unwritten(batch * m * n, a.x.dtype(), a.x.device())?;
    match a.x.device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => super::driver::product(device, a, b, &mut c, sizes)?,
        Device::Cpu => plain(a, b, &mut c, sizes)?,
        device => bail!("there are no products for {device:?}"),
    }
    Ok(c)
}

/// `Matrices` in `product.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Strides {
    batch: i64,
    row: i64,
    column: i64,
}

#[expect(unsafe_code, reason = "see `Plain`")]
// SAFETY: the kernel's struct has these fields.
unsafe impl Plain for Strides {}

impl Strides {
    /// Of matrices that are read as `(rows, columns)`.
    fn of(factor: Factor<'_>, rows: usize, columns: usize) -> Self {
        let batch = long(rows * columns);
        if factor.is_transposed {
            Self { batch, row: 1, column: long(rows) }
        } else {
            Self { batch, row: long(columns), column: 1 }
        }
    }
}

fn plain(a: Factor<'_>, b: Factor<'_>, c: &mut Buffer, sizes: Sizes) -> Result<()> {
    let Sizes { batch, m, n, k } = sizes;
    Launch::new("product", "product", a.x)?
        .grid([(m * n).div_ceil(256), batch, 1], 256)
        .read(a.x)?
        .read(b.x)?
        .write(c)?
        .size(m)
        .size(n)
        .size(k)
        .plain(Strides::of(a, m, k))
        .plain(Strides::of(b, k, n))
        .run()
}
