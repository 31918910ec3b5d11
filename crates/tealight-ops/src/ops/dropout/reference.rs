//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use crate::rng::Stream;

/// Any shape, kept.
pub fn dropout(x: &Tensor, rate: f64, stream: Stream) -> Result<Tensor> {
    let fraction = |word: u32| f64::from(word) / 2_f64.powi(32);
    let mask: Vec<u8> = (0..x.elem_count())
        .map(|i| u8::from(fraction(stream.block(i as u64 / 4)[i % 4]) >= rate))
        .collect();
    let mask = Tensor::from_vec(mask, x.shape(), x.device())?;
    mask.where_cond(&(x * (1. / (1. - rate)))?, &x.zeros_like()?)
}
