//! The kernels of the iteration besides its matrix products: one for each step, and the kernels of its start.

use candle_core::{D, Result, Tensor};

use crate::backend::cuda::factor::{Factor, Sizes};
use crate::backend::cuda::product::product;
use crate::backend::cuda::{Buffer, Launch, Source};
use crate::ops::nystrom::normalisation::{Normalisation, Start};

const KERNELS: Source = Source::new("pseudo_inverse", &[include_str!("kernel.cu")]);
const THREADS: usize = 256;

/// scale (multiple · I − x) for `x (.., m, m)`
pub(super) fn multiple_minus(multiple: f64, x: &Tensor, scale: f64) -> Result<Tensor> {
    let (m, x) = (x.dim(D::Minus1)?, x.contiguous()?);
    let mut y = Buffer::like(&x)?;
    Launch::elementwise(&KERNELS, "multiple_minus", [&x], &mut y, x.elem_count())?
        .size(m)
        .number(multiple)
        .number(scale)
        .run()?;
    y.tensor(x.shape())
}

/// Aᵀ B of `a (.., k, m)` and `b (.., k, n)`
pub(super) fn transposed_matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let (k, m, n) = (a.dim(D::Minus2)?, a.dim(D::Minus1)?, b.dim(D::Minus1)?);
    let sizes = Sizes { batch: a.elem_count() / (k * m), m, n, k };
    let mut shape = b.dims().to_vec();
    let place = shape.len() - 2;
    shape[place] = m;
    product(Factor::from_tensor(&a).transposed(), Factor::from_tensor(&b), sizes)?.tensor(shape)
}

impl Normalisation {
    /// The number of matrices that share a scale, of `n` in all.
    fn group(self, n: usize) -> usize {
        match self {
            Self::EachMatrix => 1,
            Self::WholeTensor => n,
        }
    }
}

/// For `a (.., m, m)`: Z₀ = Aᵀ / s, the scale s, and the share of each column in its gradient.
pub(super) fn start(normalisation: Normalisation, a: &Tensor) -> Result<Start> {
    let (a, m) = (a.contiguous()?, a.dim(D::Minus1)?);
    let n_planes = a.elem_count() / (m * m);
    let group = normalisation.group(n_planes);
    let of = |len| Buffer::unwritten(len, a.dtype(), a.device());
    let (mut columns, mut scale, mut shares) =
        (of(n_planes * m)?, of(n_planes)?, of(n_planes * m)?);
    Launch::elementwise(&KERNELS, "column_sums", [&a], &mut columns, n_planes * m)?
        .size(m)
        .run()?;
    Launch::new(&KERNELS, "largest_columns", &a)?
        .grid([n_planes / group, 1, 1], THREADS)
        .read_buffer(&columns)?
        .writes([&mut scale, &mut shares])?
        .sizes([group, m])
        .run()?;
    let with = |[rows, columns]: [usize; 2]| {
        let mut shape = a.dims()[..a.rank() - 2].to_vec();
        shape.extend([rows, columns]);
        shape
    };
    let (scale, shares) = (scale.tensor(with([1, 1]))?, shares.tensor(with([1, m]))?);
    let mut z = Buffer::like(&a)?;
    Launch::elementwise(&KERNELS, "transposed_over", [&a, &scale], &mut z, a.elem_count())?
        .size(m)
        .run()?;
    Ok(Start { normalisation, z: z.tensor(a.shape())?, scale, shares })
}

/// See [`Start::gradient`].
pub(super) fn gradient(start: &Start, dz: &Tensor, da: &Tensor) -> Result<Tensor> {
    let (dz, da, m) = (dz.contiguous()?, da.contiguous()?, dz.dim(D::Minus1)?);
    let n_planes = dz.elem_count() / (m * m);
    let group = start.normalisation.group(n_planes);
    let mut dscale = Buffer::unwritten(n_planes, dz.dtype(), dz.device())?;
    Launch::new(&KERNELS, "gradients_of_scales", &dz)?
        .grid([n_planes / group, 1, 1], THREADS)
        .reads([&dz, &start.z, &start.scale])?
        .write(&mut dscale)?
        .sizes([group, m])
        .run()?;
    let (mut whole, dscale) = (Buffer::like(&da)?, dscale.tensor(n_planes)?);
    let operands = [&da, &dz, &start.scale, &start.shares, &dscale];
    Launch::elementwise(&KERNELS, "gradient_of_start", operands, &mut whole, dz.elem_count())?
        .size(m)
        .run()?;
    whole.tensor(da.shape())
}
