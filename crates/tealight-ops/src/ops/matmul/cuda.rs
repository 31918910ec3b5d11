//! Matrix products, forward and backward.

use candle_core::{Result, Tensor};

use super::{NAME, Orientation, Sizes};
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::factor::{self, Factor};
use crate::backend::cuda::product::product;

pub(super) fn matmul(a: &Tensor, b: &Tensor, sizes: Sizes) -> Result<Tensor> {
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let Sizes { m, n, k, right } = sizes;
    let batch = a.elem_count() / (m * k);
    let c = product(Factor::from_tensor(&a), read(&b, right), factor::Sizes { batch, m, n, k })?;
    let mut shape = a.dims()[..a.rank() - 2].to_vec();
    shape.extend([m, n]);
    record_saving(NAME, &[&a, &b], c.value(shape), Saved::Inputs, move |inputs, _, g| {
        let (a, b) = (&inputs[0], &inputs[1]);
        let da = || {
            let sizes = factor::Sizes { batch, m, n: k, k: n };
            product(Factor::from_tensor(g), read(b, right).transposed(), sizes)?.tensor(a.shape())
        };
        let db = || {
            let (left, other, m_, n_) = match right {
                Orientation::AsItIs => {
                    (Factor::from_tensor(a).transposed(), Factor::from_tensor(g), k, n)
                }
                Orientation::Transposed => {
                    (Factor::from_tensor(g).transposed(), Factor::from_tensor(a), n, k)
                }
            };
            let sizes = factor::Sizes { batch, m: m_, n: n_, k: m };
            product(left, other, sizes)?.tensor(b.shape())
        };
        Ok(vec![a.track_op().then(da).transpose()?, b.track_op().then(db).transpose()?])
    })
}

fn read(b: &Tensor, right: Orientation) -> Factor<'_> {
    match right {
        Orientation::AsItIs => Factor::from_tensor(b),
        Orientation::Transposed => Factor::from_tensor(b).transposed(),
    }
}
