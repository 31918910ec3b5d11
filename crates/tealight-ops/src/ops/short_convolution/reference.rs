//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use crate::ops::tokens::Tokens;

/// `x (batch, len, channels)`, `weight (channels, size)` → `(batch, len, channels)`
pub fn short_convolution(x: &Tensor, weight: &Tensor, tokens: Tokens<'_>) -> Result<Tensor> {
    let (batch, len, channels) = x.dims3()?;
    let (_channels, size) = weight.dims2()?;
    // One more row, of zeros, which is read where there is no token.
    let nothing = (batch * len) as u32;
    let rows = x.reshape((batch * len, channels))?.pad_with_zeros(0, 0, 1)?;
    let documents = tokens.documents(batch, len)?;
    let mut y = x.zeros_like()?;
    for i in 0..size {
        let behind = size - 1 - i;
        let mut read = vec![nothing; batch * len];
        for (example, documents) in documents.iter().enumerate() {
            for document in documents {
                for (&t, &from) in document.iter().skip(behind).zip(document) {
                    read[example * len + t] = (example * len + from) as u32;
                }
            }
        }
        let read = Tensor::from_vec(read, batch * len, x.device())?;
        let term = rows.index_select(&read, 0)?.reshape((batch, len, channels))?;
        y = (y + term.broadcast_mul(&weight.narrow(1, i, 1)?.reshape((1, 1, channels))?)?)?;
    }
    Ok(y)
}
