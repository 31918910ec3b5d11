//! The definition, in plain tensor operations.

use candle_core::{DType, Result, Tensor};

use crate::ops::patches::reference::patches;
use crate::ops::window::Window;

/// `x (batch, height, width, channels)` → `(batch, rows, columns, channels)`
pub fn max_pool(x: &Tensor, window: Window) -> Result<Tensor> {
    let (batch, _height, _width, channels) = x.dims4()?;
    let area = window.size * window.size;
    // 1 within the picture, 0 outside.
    let inside = patches(&x.ones_like()?.detach(), window)?;
    let x = patches(x, window)?;
    let (_, rows, columns, _) = x.dims4()?;
    let shape = (batch * rows * columns, area, channels);
    let (x, inside) = (x.reshape(shape)?, inside.reshape(shape)?.to_dtype(DType::U8)?);
    let nothing = Tensor::full(f64::NEG_INFINITY, shape, x.device())?.to_dtype(x.dtype())?;
    let place = inside.where_cond(&x.detach(), &nothing)?.argmax_keepdim(1)?; // The first of equal ones.
    x.gather(&place.contiguous()?, 1)?.reshape((batch, rows, columns, channels))
}
