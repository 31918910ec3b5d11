//! Functions shared by the test suites: random tensors and the values of tensors.

use candle_core::{DType, Result, Tensor};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

/// Standard normal numbers, different for every `index`.
pub(crate) fn normal(index: u64, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let stream = Stream::new(17, Purpose::Data).fork(index);
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n as u64).map(|i| stream.normal(i)).collect();
    Tensor::from_vec(values, shape, device())?.to_dtype(dtype)
}

/// The values in order, as f64, which represents f32 exactly.
pub(crate) fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
