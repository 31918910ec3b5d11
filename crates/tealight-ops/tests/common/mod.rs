//! What the suites share: numbers from a stream, and gradients of any operation.

use candle_core::{DType, Result, Tensor, Var};
use tealight_ops::backward;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

/// An operation on some tensors.
pub(crate) type Op<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;

/// Standard normal numbers, different for every `index`.
pub(crate) fn normal(index: u64, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let stream = Stream::new(17, Purpose::Data).fork(index);
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n as u64).map(|i| stream.normal(i)).collect();
    Tensor::from_vec(values, shape, device())?.to_dtype(dtype)
}

/// The value of `op`, and the gradient of Σ `op` ⊙ noise for each input.
pub(crate) fn differentiate(op: Op, inputs: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    // Not the variables themselves, so that no operation can be right for a leaf alone.
    let copies = vars.iter().map(|var| var.as_tensor() * 1.).collect::<Result<Vec<_>>>()?;
    let value = op(&copies)?;
    let loss = (&value * normal(99, value.dims(), value.dtype())?)?.sum_all()?;
    let names: Vec<String> = (0..vars.len()).map(|i| i.to_string()).collect();
    let named = names.iter().map(String::as_str).zip(vars.iter().map(Var::as_tensor));
    let gradients = backward(&loss, named)?;
    let all = gradients.iter().map(|(_, gradient)| gradient.expect("a gradient").clone());
    Ok((value, all.collect()))
}

/// The values, in order.
pub(crate) fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
