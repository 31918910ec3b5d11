//! A weighted mean of all keys, of which those in a window around the position have weights of their own.
//!
//! ```text
//! D_t = Σ_outside exp(K_t') + Σ_window exp(K_t' + w)      outside = before the window, and after it
//!
//! a_t,t' = exp(K_t' + w) / D_t     c_t = ⟨g_t, Y_t⟩
//! dV_t'  = Σ_t a_t,t' g_t          dK_t' = Σ_t a_t,t' (⟨g_t, V_t'⟩ − c_t)          dw likewise, per pair
//! ```
//!
//! What lies before and after the window is a scan that carries its own maximum; the window is added directly. The
//! backward pass scans the queries in the same way, with −max_t where the forward pass has K_t'.
//!
//! Cost: O(len · window · d_model) time, O(len · d_model) memory. In the backward pass every block (an example, some
//! channels) has a gradient of the taps to itself until all are added: where every position has taps of its own, that is
//! O(len · window) a block.

mod cpu;
mod scan;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::Reach;
use crate::backend::buffer::{View, slice, stored, tensor};
use crate::backend::element::Element;

/// Keys `(batch, len, n_maps)`; values `(batch, len, n_maps, width)`: the channels of a map share its weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) len: usize,
    pub(super) n_maps: usize,
    pub(super) width: usize,
}

/// Which keys have weights of their own, and where these are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    sizes: Sizes,
    n_taps: usize,
    /// The tap that looks at the position itself.
    origin: usize,
    reach: Reach,
    layout: TapLayout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TapLayout {
    /// `(n_taps, n_maps)`
    OfMaps,
    /// `(len, n_taps)`
    OfPositions,
}

impl Band {
    pub(super) fn new(sizes: Sizes, n_taps: usize, origin: usize, reach: Reach) -> Self {
        Self { sizes, n_taps, origin, reach, layout: TapLayout::OfMaps }
    }

    /// Every position has taps of its own, and all maps share them.
    pub(super) fn with_taps_of_positions(self) -> Self {
        Self { layout: TapLayout::OfPositions, ..self }
    }

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

/// What each row was divided by: exp(max) · sum, `(batch, len, n_maps)` each; zeros of a row without keys.
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
    padding: Option<&'a [u8]>,
}

/// `key (batch, len, n_maps)`, `value (batch, len, n_maps · width)`, `taps` → as `value`
pub(super) struct Op<T> {
    padding: Option<Vec<u8>>,
    band: Band,
    /// Kept by the forward pass for the backward pass.
    normaliser: OnceLock<Normaliser<T>>,
    element: PhantomData<T>,
}

impl<T> Op<T> {
    pub(super) fn new(padding: Option<Vec<u8>>, band: Band) -> Self {
        Self { padding, band, normaliser: OnceLock::new(), element: PhantomData }
    }
}

impl<T: Element> CustomOp3 for Op<T> {
    fn name(&self) -> &'static str {
        "aft-band"
    }

    fn cpu_fwd(
        &self,
        key: &CpuStorage,
        key_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
        taps: &CpuStorage,
        taps_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = Inputs {
            key: slice(key, key_layout)?,
            value: slice(value, value_layout)?,
            taps: slice(taps, taps_layout)?,
            padding: self.padding.as_deref(),
        };
        let (output, normaliser) = cpu::forward::<T>(inputs, &self.band);
        self.normaliser.get_or_init(|| normaliser);
        Ok(stored(output, value_layout.shape()))
    }

    fn bwd(
        &self,
        key: &Tensor,
        value: &Tensor,
        taps: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let views = (View::<T>::of(key)?, View::<T>::of(value)?, View::<T>::of(taps)?);
        let inputs = Inputs {
            key: &views.0,
            value: &views.1,
            taps: &views.2,
            padding: self.padding.as_deref(),
        };
        let normaliser = self.normaliser.get().expect("invariant: forward comes before backward");
        let (output, gradient) = (View::of(output)?, View::of(&gradient)?);
        let d = cpu::backward(inputs, &self.band, normaliser, &output, &gradient);
        let dtaps = if taps.track_op() { Some(tensor(d.taps, taps.shape())?) } else { None };
        Ok((Some(tensor(d.key, key.shape())?), Some(tensor(d.value, value.shape())?), dtaps))
    }
}
