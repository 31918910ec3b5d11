//! AFT-full as products of matrices, a tile of keys at a time.
//!
//! ```text
//! exp(K_t' + w_t,t') = exp(w_t,t' − a_t) · exp(K_t' − r) · exp(a_t + r)        a_t, r of the tile
//! (numerator, denominator) = P [E ⊙ V, E],     P_t,t' = exp(w_t,t' − a_t),     E_t' = exp(K_t' − r)
//! ```
//!
//! P is shared by the batch and all channels. The tiles' results are merged with a maximum for each row and channel, as
//! in the online softmax (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>).
//!
//! Where the largest w and the largest K of a tile belong to different keys and are far apart, the product of their
//! factors underflows. The terms that a factor of 0 loses are below e⁻⁸⁷ in f32, so a denominator above 10⁻¹⁸ is
//! complete. Other rows and channels of the tile are added directly, each with its own maximum.
//!
//! Under [`Reach::Past`] no bit of a row may depend on later keys. In a tile below the diagonal r = max K_t'. In a tile
//! on the diagonal r is the first key, later factors are clamped to e²⁰, and rows from the first clamped key on are
//! added directly.
//!
//! ```text
//! G_t = g_t exp(a_t + r) / D_t,  H_t = −G_t ⊙ Y_t         D_t the whole denominator
//! dV = E ⊙ PᵀG       dK = E ⊙ (V ⊙ PᵀG + PᵀH)       dw = P ⊙ [G, H] [E ⊙ V, E]ᵀ
//! ```

mod backward;
mod forward;
mod tile;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, fused};
use crate::backend::element::Element;
use crate::ops::padding_mask;
use crate::ops::reach::Reach;
use backward::Rows;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    q_len: usize,
    kv_len: usize,
    d_model: usize,
}

/// The inputs as slices.
struct Inputs<'a, T> {
    key: &'a [T],
    value: &'a [T],
    w: &'a [T],
    /// `(batch, kv_len)`, 1 = padding; empty without a mask.
    padding: &'a [u8],
    reach: Reach,
    sizes: Sizes,
}

impl<T: Element> Inputs<'_, T> {
    /// Whether position `t` reads key `other` of `example`.
    #[inline(always)]
    fn reads(&self, example: usize, t: usize, other: usize) -> bool {
        (self.reach == Reach::Everything || other <= t) && !self.is_padding(example, other)
    }

    #[inline(always)]
    fn is_padding(&self, example: usize, other: usize) -> bool {
        padding_mask::is_padding(self.padding, example * self.sizes.kv_len + other)
    }

    /// Where the channels of a key begin.
    #[inline(always)]
    fn key_start(&self, example: usize, other: usize) -> usize {
        (example * self.sizes.kv_len + other) * self.sizes.d_model
    }
}

/// Why no product, and no view of its result, fails.
const MATCH: &str = "invariant: sizes and dtypes of the factors match";

/// `key (batch, kv_len, d_model)`, `value` likewise, `w (q_len, kv_len)` → `(batch, q_len, d_model)`
pub(super) fn aft<T: Element>(
    [key, value, w]: [&Tensor; 3],
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let ((batch, kv_len, d_model), (q_len, _)) = (key.dims3()?, w.dims2()?);
    let sizes = Sizes { batch, q_len, kv_len, d_model };
    let padding = padding_mask::flags(key_padding_mask)?;
    let (inputs, shape) = ([key, value, w], (batch, q_len, d_model));
    fused("aft-full", inputs, shape, Saved::InputsAndOutput, |[key, value, w]: [&[T]; 3]| {
        let inputs = Inputs { key, value, w, padding: &padding, reach, sizes };
        let (output, normaliser) = forward::forward(&inputs).expect(MATCH);
        let backward = move |[key, value, w]: [&[T]; 3], output: &[T], gradient: &[T]| {
            let inputs = Inputs { key, value, w, padding: &padding, reach, sizes };
            let rows = Rows { normaliser: &normaliser, output, gradient };
            backward::backward(&inputs, rows).expect(MATCH)
        };
        (output, backward)
    })
}
