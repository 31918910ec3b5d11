//! The time mixing of RWKV-4 (Peng et al. 2023, <https://arxiv.org/abs/2305.13048>).
//!
//! ```text
//! r_t = W_r (μ_r ⊙ x_t + (1 − μ_r) ⊙ x_{t−1}),   k_t and v_t likewise                 eq. (11–13)
//!
//!         Σ_{i<t} e^(−(t−1−i) w + kᵢ) ⊙ vᵢ + e^(u + k_t) ⊙ v_t
//! wkv_t = ────────────────────────────────────────────────────                              eq. (16)
//!         Σ_{i<t} e^(−(t−1−i) w + kᵢ)      + e^(u + k_t)
//!
//! o_t = W_o (σ(r_t) ⊙ wkv_t)                                                                eq. (17)
//! ```
//!
//! A recurrent network in each channel, trained like a transformer: while decoding it keeps the last
//! input and the two sums. There are no heads; `n_heads` is without effect.
//!
//! Cost: O(seq_len·d_model²) time, all of it in the four linear maps; O(seq_len·d_model) memory.
//!
//! As in the authors' code w = exp(`decay`), so that it stays positive. They spread the initial w, u
//! and μ over the channels in order, by depth. Before training channels have no order, and a layer
//! does not know its depth, so ours are drawn from the same ranges (for μ the first layer's). What
//! is padding counts as zeros in the token shift and is left out of the averages, but time passes.
//! A bias of W_k would cancel in wkv; its gradient is zero. Dropout acts on the gated average.

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder};
use serde::{Deserialize, Serialize};
use tealight_ops::activation::sigmoid;
use tealight_ops::wkv::{self, wkv};

use super::decoding::refuse_score_bias;
use super::projection;
use super::running_mean::RunningMean;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, DecodingState, Memory,
    Reads,
};
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::params::init::Initializer;

/// `[model.attention] kind = "rwkv"`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

impl AttentionKind for Config {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        spec.require_causal("rwkv", "each position adds to what the one before has read")?;
        spec.refuse_rotary("rwkv", "it has no queries")?;
        spec.refuse_score_bias("rwkv", "its weights come from a decay, not from scores")?;
        spec.refuse_segments("rwkv", "its state is carried from one document to the next")?;
        spec.refuse_head_dim("rwkv", "it has no heads: its channels are those of the stream")?;
        let vector = |name, init| vb.get_with_hints(spec.d_model, name, init);
        Ok(Box::new(Rwkv {
            receptance: Shifted::build("receptance", spec, vb)?,
            key: Shifted::build("key", spec, vb)?,
            value: Shifted::build("value", spec, vb)?,
            decay: vector("decay", Initializer::rwkv_decay())?,
            bonus: vector("bonus", Initializer::rwkv_bonus())?,
            output: projection::output(spec, vb)?,
            dropout: Dropout::new(spec.dropout, vb),
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let d_model = spec.d_model as f64;
        let core = AttentionCost {
            parameters: 5. * d_model,
            // Each of the shifts 5, wkv 16 with its four exponentials, the gate 2.
            flops: (3. * 5. + 16. + 2.) * d_model * q_len as f64,
            // The shifts' terms and sums, wkv, the gate and the product.
            activations: (3. * 3. + 3.) * d_model * q_len as f64,
        };
        projection::cost(spec, q_len, kv_len) + core
    }
}

/// A linear map of the input mixed with the input before.
#[derive(Debug)]
struct Shifted {
    linear: Linear,
    /// μ, `(d_model)`
    mix: Tensor,
}

impl Shifted {
    fn build(name: &str, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        let weight: Init = spec.init.weight(spec.d_model);
        let vb = vb.pp(name);
        Ok(Self {
            linear: Linear::build([spec.d_model; 2], spec.bias, weight, &vb)?,
            mix: vb.get_with_hints(spec.d_model, "mix", Initializer::rwkv_mix())?,
        })
    }

    /// `x` and `before (batch, len, d_model)` → the same shape
    fn forward(&self, x: &Tensor, before: &Tensor) -> Result<Tensor> {
        let mixed = ((x - before)?.broadcast_mul(&self.mix)? + before)?;
        self.linear.forward(&mixed)
    }
}

/// σ(r) ⊙ wkv, between linear maps.
#[derive(Debug)]
struct Rwkv {
    receptance: Shifted,
    key: Shifted,
    value: Shifted,
    /// ln w, `(d_model)`
    decay: Tensor,
    /// u, `(d_model)`
    bonus: Tensor,
    output: Linear,
    dropout: Dropout,
}

impl Attention for Rwkv {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(Reads::Past)?;
        let padding = input.mask.padding_only()?;
        let before = shifted(&without_padding(x, padding)?)?;
        let (key, value) = (self.key.forward(x, &before)?, self.value.forward(x, &before)?);
        let context = wkv(&key, &value, &self.decay.exp()?, &self.bonus, padding)?;
        let gate = sigmoid(&self.receptance.forward(x, &before)?)?;
        let context = self.dropout.forward(&(gate * context)?, input.mode)?;
        self.output.forward(&context)
    }

    /// One map for each channel, before the gate.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(Reads::Past)?;
        let padding = input.mask.padding_only()?;
        let before = shifted(&without_padding(x, padding)?)?;
        let key = self.key.forward(x, &before)?;
        wkv::reference::weights(&key, &self.decay.exp()?, &self.bonus, padding)
    }

    fn decoding_state<'a>(
        &'a self,
        _memory: Option<Memory<'a>>,
    ) -> Result<Option<Box<dyn DecodingState + 'a>>> {
        Ok(Some(Box::new(Decoding { layer: self, before: None, past: None })))
    }
}

/// `x (batch, len, d_model)`, with zeros for what is padding.
fn without_padding(x: &Tensor, key_padding_mask: Option<&Tensor>) -> Result<Tensor> {
    let Some(mask) = key_padding_mask else { return Ok(x.clone()) };
    let mask = mask.unsqueeze(2)?.broadcast_as(x.shape())?;
    mask.where_cond(&x.zeros_like()?, x)
}

/// Each position's input moved to the next position; zeros at the first.
fn shifted(x: &Tensor) -> Result<Tensor> {
    let (_batch, len, _d_model) = x.dims3()?;
    x.narrow(1, 0, len - 1)?.pad_with_zeros(1, 1, 0)
}

/// In the middle of a sequence.
#[derive(Debug)]
struct Decoding<'a> {
    layer: &'a Rwkv,
    /// The last input, `(batch, 1, d_model)`.
    before: Option<Tensor>,
    /// wkv's two sums over the past, `(batch, 1, d_model)` each.
    past: Option<RunningMean>,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let (_batch, n_new, _d_model) = x.dims3()?;
        let first = match &self.before {
            Some(before) => before.clone(),
            None => x.narrow(1, 0, 1)?.zeros_like()?,
        };
        let before = Tensor::cat(&[&first, &x.narrow(1, 0, n_new - 1)?], 1)?;
        let layer = self.layer;
        let (key, value) = (layer.key.forward(x, &before)?, layer.value.forward(x, &before)?);
        let contexts =
            (0..n_new).map(|i| self.read(&key.narrow(1, i, 1)?, &value.narrow(1, i, 1)?));
        let context = Tensor::cat(&contexts.collect::<Result<Vec<_>>>()?, 1)?;
        self.before = Some(x.narrow(1, n_new - 1, 1)?);
        let gate = sigmoid(&layer.receptance.forward(x, &before)?)?;
        layer.output.forward(&(gate * context)?)
    }

    fn select(&mut self, rows: &Tensor) -> Result<()> {
        let select = |x: &Tensor| x.contiguous()?.index_select(rows, 0);
        self.before = self.before.as_ref().map(select).transpose()?;
        self.past = self.past.as_ref().map(|past| past.select(rows)).transpose()?;
        Ok(())
    }
}

impl Decoding<'_> {
    /// wkv of one position, after which its key and value belong to the past.
    fn read(&mut self, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let new = RunningMean::of(key, value)?;
        let now = new.scaled(&self.layer.bonus)?;
        let (read, past) = match &self.past {
            None => (now, new),
            Some(past) => {
                let decay = self.layer.decay.exp()?.neg()?;
                (past.merged(&now)?, past.scaled(&decay)?.merged(&new)?)
            }
        };
        self.past = Some(past);
        read.mean()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn the_input_moves_by_one_position_and_padding_is_zeros() -> Result<()> {
        let x = Tensor::new(&[[[1_f32], [2.], [3.]], [[4.], [5.], [6.]]], &Device::Cpu)?;
        let mask = Tensor::new(&[[0_u8, 1, 0], [0, 0, 0]], &Device::Cpu)?;
        let before = shifted(&without_padding(&x, Some(&mask))?)?;
        assert_eq!(before.flatten_all()?.to_vec1::<f32>()?, [0., 1., 0., 0., 4., 5.]);
        let single = shifted(&x.narrow(1, 0, 1)?)?;
        assert_eq!(single.flatten_all()?.to_vec1::<f32>()?, [0., 0.]);
        Ok(())
    }

    #[test]
    fn sums_of_one_key_after_another_are_wkv() -> Result<()> {
        let vector = |x: [f64; 3]| Tensor::new(&x, &Device::Cpu)?.reshape((1, 3, 1));
        let (key, value) = (vector([1., -300., 700.])?, vector([2., 3., 5.])?);
        let (decay, bonus) =
            (Tensor::new(&[100_f64], &Device::Cpu)?, Tensor::zeros(1, DType::F64, &Device::Cpu)?);
        let expected = wkv(&key, &value, &decay, &bonus, None)?;
        let row = |i| RunningMean::of(&key.narrow(1, i, 1)?, &value.narrow(1, i, 1)?);
        let past = row(0)?.scaled(&decay.neg()?)?.merged(&row(1)?)?;
        let read = past.merged(&row(2)?)?;
        let actual = read.mean()?.flatten_all()?.to_vec1::<f64>()?;
        assert_eq!(actual, expected.narrow(1, 2, 1)?.flatten_all()?.to_vec1::<f64>()?);
        Ok(())
    }
}
