//! Matrix products: by cuBLAS on a GPU, by a plain kernel on the emulator.

use bytemuck::NoUninit;
use candle_core::{Device, Result, bail};

use super::buffer::Buffer;
use super::factor::{Addend, Factor, Sizes};
use super::launch::Launch;
use super::long;
use super::source::Source;

const KERNELS: Source = Source::new("product", &[include_str!("product.cu")]);

/// C = A B for each matrix of the batch: `(batch, m, n)`
pub(crate) fn product(a: Factor<'_>, b: Factor<'_>, sizes: Sizes) -> Result<Buffer> {
    let Sizes { batch, m, n, .. } = sizes;
    let c = Buffer::unwritten(batch * m * n, a.x.dtype(), a.x.device())?;
    write(c, a, b, sizes, Addend::Zero)
}

/// `c` + A B for each matrix of the batch, `(batch, m, n)`: the sums are rounded once, at the end.
pub(crate) fn plus_product(
    c: Buffer,
    a: Factor<'_>,
    b: Factor<'_>,
    sizes: Sizes,
) -> Result<Buffer> {
    write(c, a, b, sizes, Addend::Result)
}

fn write(
    mut c: Buffer,
    a: Factor<'_>,
    b: Factor<'_>,
    sizes: Sizes,
    addend: Addend,
) -> Result<Buffer> {
    match a.x.device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => super::cublas::product(device, a, b, &mut c, sizes, addend)?,
        Device::Cpu => plain(a, b, &mut c, sizes, addend)?,
        device => bail!("there are no products for {device:?}"),
    }
    Ok(c)
}

/// `Matrices` in `product.cu`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Strides {
    batch: i64,
    row: i64,
    column: i64,
}

impl Strides {
    /// The strides of a factor that is read as `(rows, columns)`.
    fn from_factor(factor: Factor<'_>, rows: usize, columns: usize) -> Result<Self> {
        let batch = long(rows * columns)?;
        Ok(if factor.is_transposed {
            Self { batch, row: 1, column: long(rows)? }
        } else {
            Self { batch, row: long(columns)?, column: 1 }
        })
    }
}

fn plain(a: Factor<'_>, b: Factor<'_>, c: &mut Buffer, sizes: Sizes, addend: Addend) -> Result<()> {
    let Sizes { batch, m, n, k } = sizes;
    let kernel = match addend {
        Addend::Zero => "product",
        Addend::Result => "plus_product",
    };
    Launch::new(&KERNELS, kernel, a.x)?
        .grid([(m * n).div_ceil(256), batch, 1], 256)
        .reads([a.x, b.x])?
        .write(c)?
        .sizes([m, n, k])
        .plain(Strides::from_factor(a, m, k)?)
        .plain(Strides::from_factor(b, k, n)?)
        .run()
}
