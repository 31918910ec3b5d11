//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use super::Window;

/// `x (batch, height, width, channels)` → `(batch, rows, columns, size·size·channels)`
pub fn patches(x: &Tensor, window: Window) -> Result<Tensor> {
    let (_batch, height, width, _channels) = x.dims4()?;
    let Window { size, padding, .. } = window;
    let places = [
        indices(window, height, x)?, // For each row of the window, the rows of pixels that it reads.
        indices(window, width, x)?,
    ];
    let padded = x.pad_with_zeros(1, padding, padding)?.pad_with_zeros(2, padding, padding)?;
    let mut parts = Vec::with_capacity(size * size);
    for rows in &places[0] {
        let rows = padded.index_select(rows, 1)?;
        for columns in &places[1] {
            parts.push(rows.index_select(columns, 2)?); // (batch, rows, columns, channels)
        }
    }
    Tensor::cat(&parts, 3)
}

/// For each place in the window, the padded pixel that it reads in each window.
fn indices(window: Window, len: usize, x: &Tensor) -> Result<Vec<Tensor>> {
    let Window { size, stride, .. } = window;
    let n = window.count(len)?;
    let of_place = |i: usize| {
        let pixels: Vec<u32> = (0..n).map(|window| (window * stride + i) as u32).collect();
        Tensor::from_vec(pixels, n, x.device())
    };
    (0..size).map(of_place).collect()
}
