//! WKV, the attention of RWKV-4: an average over the past whose weights decay in each channel (Peng
//! et al. 2023, <https://arxiv.org/abs/2305.13048>).
//!
//! ```text
//!          Σ_{j<i} e^(−(i−1−j) w + kⱼ) vⱼ + e^(u + kᵢ) vᵢ
//! wkvᵢ  =  ──────────────────────────────────────────────         eq. (16), in each channel
//!          Σ_{j<i} e^(−(i−1−j) w + kⱼ)    + e^(u + kᵢ)
//! ```
//!
//! The sums over j < i are a state (α, β) that each position multiplies by e^(−w) and adds to (the
//! appendix on the block as an RNN cell). It is held relative to the largest exponent so far, which
//! decays as the state does: no exponential is above 1, whatever k, w and u. The paper has w ≥ 0;
//! here any number is safe.
//!
//! The backward scans once forward, for the gradients of w and u, and once in reverse, where the
//! state is Σ_{i>j} e^(−(i−1−j) w) gᵢ / denominatorᵢ, for those of k and v:
//!
//! ```text
//! pᵢⱼ = the weight with which i reads j
//! dkⱼ = Σᵢ pᵢⱼ gᵢ (vⱼ − wkvᵢ),   dvⱼ = Σᵢ pᵢⱼ gᵢ
//! du  = Σᵢ pᵢᵢ gᵢ (vᵢ − wkvᵢ),   dw  = −Σᵢ Σ_{j<i} (i−1−j) pᵢⱼ gᵢ (vⱼ − wkvᵢ)
//! ```
//!
//! A padded key adds nothing; time passes nevertheless, and the state decays.
//!
//! Cost: O(len·d_model) time, O(len·d_model) memory, forward and backward. The definition, which
//! other devices run, takes O(len²·d_model) of both.

mod cpu;
mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

use crate::autograd::graph::apply3;
use crate::backend::buffer::{View, slice, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::ops::padding_mask;

/// `key` and `value (batch, len, d_model)`, `decay` and `bonus (d_model)` → `(batch, len, d_model)`
///
/// `decay` is w of the formula itself, e^(−w) its factor per position; `bonus` is u.
/// `key_padding_mask (batch, len)` of dtype u8 holds 1 where a key is not to be read. A position
/// that may read nothing gets zeros and has no gradient.
///
/// # Errors
/// If the shapes do not match.
pub fn wkv(
    key: &Tensor,
    value: &Tensor,
    decay: &Tensor,
    bonus: &Tensor,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (batch, len, d_model) = key.dims3()?;
    let parameters = [decay, bonus];
    if value.dims() != key.dims() || parameters.iter().any(|x| x.dims() != [d_model]) {
        let (decay, bonus) = (decay.shape(), bonus.shape());
        bail!("wkv of key {:?}, value {:?}, {decay:?}, {bonus:?}", key.shape(), value.shape())
    }
    padding_mask::check(key_padding_mask, batch, len)?;
    let backend = Backend::of(&[key, value, decay, bonus]);
    if backend == Backend::Cuda {
        return cuda::wkv([key, value, decay, bonus], key_padding_mask);
    }
    if backend == Backend::Reference {
        return widened(value, |value| {
            let [key, decay, bonus] = [key, decay, bonus].map(|x| x.to_dtype(value.dtype()));
            reference::wkv(&key?, value, &decay?, &bonus?, key_padding_mask)
        });
    }
    let padding = padding_mask::flags(key_padding_mask)?;
    // Candle's custom operations take three operands.
    let rates = Tensor::stack(&parameters, 0)?;
    let (key, value) = (key.contiguous()?, value.contiguous()?);
    match backend {
        Backend::F64 => {
            apply3(&key, &value, &rates, Wkv::<f64> { len, padding, element: PhantomData })
        }
        _ => apply3(&key, &value, &rates, Wkv::<f32> { len, padding, element: PhantomData }),
    }
}

struct Wkv<T> {
    len: usize,
    padding: Vec<u8>,
    element: PhantomData<T>,
}

impl<T: Element> CustomOp3 for Wkv<T> {
    fn name(&self) -> &'static str {
        "wkv"
    }

    fn cpu_fwd(
        &self,
        key: &CpuStorage,
        key_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
        rates: &CpuStorage,
        rates_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (key, value) = (slice::<T>(key, key_layout)?, slice(value, value_layout)?);
        let output = cpu::forward(self, key, value, slice(rates, rates_layout)?);
        Ok(stored(output, key_layout.shape()))
    }

    fn bwd(
        &self,
        key: &Tensor,
        value: &Tensor,
        rates: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let operands = [&View::of(key)?[..], &View::of(value)?, &View::of(rates)?];
        let [dkey, dvalue, drates] =
            cpu::backward(self, operands, &View::of(output)?, &View::of(&gradient)?);
        Ok((
            Some(tensor(dkey, key.shape())?),
            Some(tensor(dvalue, value.shape())?),
            Some(tensor(drates, rates.shape())?),
        ))
    }
}
