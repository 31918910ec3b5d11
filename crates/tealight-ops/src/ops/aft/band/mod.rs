//! The AFT variants with weights w only for keys in a window around the position.
//!
//! ```text
//! D_t = Σ_outside exp(K_t') + Σ_window exp(K_t' + w)      outside = before the window, and after it
//!
//! a_t,t' = exp(K_t' + w) / D_t     c_t = ⟨g_t, Y_t⟩
//! dV_t'  = Σ_t a_t,t' g_t          dK_t' = Σ_t a_t,t' (⟨g_t, V_t'⟩ − c_t)          dw likewise, per pair
//! ```
//!
//! The sums before and after the window are scans with a running maximum; the window is added key by key. The backward
//! pass scans the queries in the same way, with −max_t in place of K_t'.
//!
//! Cost: O(len · window · d_model) time, O(len · d_model) memory. In the backward pass every block (an example, some
//! channels) has its own gradient of the taps until all are added: O(len · window) per block if every position has its
//! own taps.

mod cpu;
mod scan;

use std::ops::Range;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, fused};
use crate::backend::element::Element;
use crate::ops::padding_mask;
use crate::ops::reach::Reach;

/// Keys `(batch, len, n_maps)`; values `(batch, len, n_maps, width)`: the channels of a map share its weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) len: usize,
    pub(super) n_maps: usize,
    pub(super) width: usize,
}

/// The window of keys that have weights, and the layout of the weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pub(super) sizes: Sizes,
    pub(super) n_taps: usize,
    /// The tap of the position itself.
    pub(super) origin: usize,
    pub(super) reach: Reach,
    pub(super) layout: TapLayout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TapLayout {
    /// `(n_taps, n_maps)`
    OfMaps,
    /// `(len, n_taps)`: every position has its own taps, shared by all maps.
    OfPositions,
}

impl Band {
    /// How far the window goes to the right.
    fn after(&self) -> usize {
        match self.reach {
            Reach::Everything => self.n_taps - 1 - self.origin,
            Reach::Past => 0,
        }
    }

    /// The keys in the window of position `t`.
    fn window(&self, t: usize) -> Range<usize> {
        t.saturating_sub(self.origin)..(t + self.after() + 1).min(self.sizes.len)
    }
}

/// The denominators exp(max) · sum, `(batch, len, n_maps)` each; zeros for a row without keys.
struct Normaliser<T> {
    max: Vec<T>,
    sum: Vec<T>,
}

/// The inputs as slices.
#[derive(Clone, Copy)]
struct Inputs<'a, T> {
    key: &'a [T],
    value: &'a [T],
    taps: &'a [T],
    /// `(batch, len)`, 1 = padding; empty without a mask.
    padding: &'a [u8],
}

/// `key (batch, len, n_maps)`, `value (batch, len, n_maps · width)`, `taps` → as `value`
pub(super) fn aft<T: Element>(
    inputs: [&Tensor; 3],
    key_padding_mask: Option<&Tensor>,
    band: Band,
) -> Result<Tensor> {
    let (shape, saved) = (inputs[1].shape(), Saved::InputsAndOutput);
    let padding = padding_mask::flags(key_padding_mask)?;
    fused("aft-band", inputs, shape, saved, |[key, value, taps]: [&[T]; 3]| {
        let inputs = Inputs { key, value, taps, padding: &padding };
        let (output, normaliser) = cpu::forward(inputs, &band);
        let backward = move |[key, value, taps]: [&[T]; 3], output: &[T], gradient: &[T]| {
            let inputs = Inputs { key, value, taps, padding: &padding };
            cpu::backward(inputs, &band, &normaliser, output, gradient)
        };
        (output, backward)
    })
}
