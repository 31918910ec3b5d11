//! The token before each position.

use candle_core::{Result, Tensor};

use super::short_convolution::Before;

/// The row of the token before, zeros where there is none: `x (batch, len, ..)` → the same shape. Padding is left out, so
/// the token before may stand further away; the first token of a document has none. What padding itself gets is not
/// specified. Between calls the last row is kept as `name`.
pub(super) fn previous_tokens(
    name: &'static str,
    x: &Tensor,
    before: &mut Before<'_>,
) -> Result<Tensor> {
    let (batch, len) = (x.dim(0)?, x.dim(1)?);
    let (padding, segments) = (before.tokens.key_padding_mask, before.tokens.segments);
    if padding.is_none() && segments.is_none() {
        let last = before.past.as_ref().and_then(|past| past.get(name).cloned());
        let first = last.map_or_else(|| x.narrow(1, 0, 1)?.zeros_like(), Ok)?;
        if let Some(past) = &mut before.past {
            past.insert(name, x.narrow(1, len - 1, 1)?.force_contiguous()?);
        }
        return Tensor::cat(&[&first, &x.narrow(1, 0, len - 1)?], 1);
    }
    let padding = padding.map(Tensor::to_vec2::<u8>).transpose()?;
    let segments = segments.map(Tensor::to_vec2::<u32>).transpose()?;
    let mut rows = Vec::with_capacity(batch * len);
    for example in 0..batch {
        let mut last = 0; // row 0 is zeros
        for at in 0..len {
            let document = |at: usize| segments.as_ref().map(|segments| segments[example][at]);
            if at > 0 && document(at) != document(at - 1) {
                last = 0;
            }
            rows.push(last);
            if padding.as_ref().is_none_or(|padding| padding[example][at] == 0) {
                last = (example * len + at + 1) as u32;
            }
        }
    }
    let rows = Tensor::from_vec(rows, batch * len, x.device())?;
    let flat = x.flatten(0, 1)?;
    let none = flat.narrow(0, 0, 1)?.zeros_like()?;
    Tensor::cat(&[&none, &flat], 0)?.index_select(&rows, 0)?.reshape(x.shape())
}
