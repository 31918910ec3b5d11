//! The definition, in plain tensor operations.

use candle_core::{D, DType, Result, Tensor};

/// `x (.., in)`, `weight (out, in)`, `bias (out)` → `(.., out)`, all in f32
///
/// # Errors
/// If shapes do not match, or there are no elements.
pub fn int8_linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let n_inputs = x.dim(D::Minus1)?;
    let rows = x.reshape(((), n_inputs))?;
    let largest = weight.abs()?.max_keepdim(1)?;
    let number = |x: f32| Tensor::new(x, weight.device());
    let s = largest.broadcast_div(&number(127.)?)?;
    let s = largest.lt(1e-30)?.where_cond(&s.ones_like()?, &s)?;
    let w = rounded(&weight.broadcast_div(&s)?)?;

    let low = rows.min_keepdim(1)?.minimum(0.)?;
    let share = |x: &Tensor| x.broadcast_div(&number(255.)?);
    let r = (share(&rows.max_keepdim(1)?.maximum(0.)?)? - share(&low)?)?;
    let r = r.lt(1e-30)?.where_cond(&r.ones_like()?, &r)?;
    let inverse = r.recip()?;
    let z = rounded(&(low.neg()? * &inverse)?)?;
    let q = rounded(&rows.broadcast_mul(&inverse)?)?.broadcast_add(&z)?.clamp(0., 255.)?;

    // Integers, which f64 adds exactly.
    let [q, z, w] = [q, z, w].map(|x| x.to_dtype(DType::F64));
    let exact = q?.broadcast_sub(&z?)?.matmul(&w?.t()?)?.to_dtype(DType::F32)?;
    let y = (exact * r.broadcast_mul(&s.t()?)?)?;
    let y = match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    };
    let mut dims = x.dims().to_vec();
    dims.pop();
    dims.push(weight.dim(0)?);
    y.reshape(dims)
}

/// The nearest integer; halves are rounded to even.
fn rounded(x: &Tensor) -> Result<Tensor> {
    let numbers = x.flatten_all()?.to_vec1::<f32>()?;
    let numbers: Vec<_> = numbers.into_iter().map(f32::round_ties_even).collect();
    Tensor::from_vec(numbers, x.shape(), x.device())
}
