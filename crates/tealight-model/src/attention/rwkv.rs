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
//! Each channel is a recurrent network: its decoding state is the last input and the two sums. There are no
//! heads; `n_heads` has no effect.
//!
//! Cost: O(seq_len·d_model²) time for the four linear maps, the rest is linear; O(seq_len·d_model) memory.
//!
//! The parameter `decay` is ln w, as in the authors' code, so that w is positive; [`tealight_ops::wkv`]
//! takes w itself. The weights of the past shrink by the factor e^(−w) at every position. The authors
//! spread the initial w, u and μ over the channels in order and by depth. Here they are random in the same
//! ranges (for μ that of the first layer), as channels have no order before training and a layer does not
//! have its depth.
//!
//! Padding is moved behind the tokens, so that it changes neither x_{t−1} nor the decay of the sums. The first token of
//! a packed document has no token before it, and the sums begin anew there.
//!
//! The bias of W_k cancels in wkv; its gradient is zero. Dropout acts on the gated average.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::Tokens;
use tealight_ops::activation::sigmoid;
use tealight_ops::wkv::{self, wkv};

use super::decoding::refuse_score_bias;
use super::onnx::recurrence::{Recurrence, fading_mean, previous_tokens as previous_in_graph};
use super::onnx::{Layer, Output, convolution};
use super::previous::previous_tokens;
use super::projection;
use super::running_mean::RunningMean;
use super::short_convolution::{Before, ShortConvolution};
use super::state::State;
use super::tokens_first::TokensFirst;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    DecodingState, Memory, Reads,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::mode::Mode;
use crate::onnx_graph::{OnnxResult, Value};
use crate::params::init::Initializer;

settings! {
    /// `[model.attention] kind = "rwkv"`
    pub struct Config {
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.require_causal("rwkv", "its state sums over earlier positions")?;
        spec.refuse_rotary("rwkv", "it has no queries")?;
        spec.refuse_score_bias("rwkv", "its weights come from a decay, not from scores")?;
        spec.refuse_head_dim("rwkv", "it has no heads: its channels are those of the stream")?;
        let vector = |name, init| vb.get_with_hints(spec.d_model, name, init);
        Ok(Box::new(Rwkv {
            receptance: TokenShift::build("receptance", spec, vb)?,
            key: TokenShift::build("key", spec, vb)?,
            value: TokenShift::build("value", spec, vb)?,
            convolutions: ShortConvolution::build_all([spec.d_model; 3], spec, vb)?,
            log_w: vector("decay", Initializer::RWKV_DECAY)?,
            bonus: vector("bonus", Initializer::rwkv_bonus())?,
            output: projection::output(spec, vb)?,
            dropout: Dropout::new(spec.dropout, vb),
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let d_model = spec.d_model as f64;
        let core = AttentionCost {
            parameters: 5. * d_model,
            // 5 for each of the three token shifts, 16 for wkv with four exponentials, 2 for the gate.
            flops: (3. * 5. + 16. + 2.) * d_model * q_len as f64,
            // Terms and sums of the token shifts; wkv, the gate, and their product.
            activations: (3. * 3. + 3.) * d_model * q_len as f64,
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
        let previous = previous_in_graph(layer, x); // x_{t−1}
        let shift = |name: &str| -> Result<Value> {
            let at = at.at(name);
            let change = graph.mul(&graph.sub(x, &previous), &at.constant(graph, "mix")?);
            graph.linear(&at, &graph.add(&change, &previous))
        };
        let key = convolution::activated(layer, "key", shift("key")?)?;
        let value = convolution::activated(layer, "value", shift("value")?)?;
        let receptance = convolution::activated(layer, "query", shift("receptance")?)?;
        let decay = at.derived(graph, "decay.exp", &at.tensor("decay")?.exp()?)?;
        let bonus = at.constant(graph, "bonus")?;
        let recurrence =
            Recurrence { key: &key, value: &value, decay: Some(&decay), bonus: Some(&bonus) };
        let context = fading_mean(sequence, &recurrence);
        let gated = graph.mul(&graph.map("Sigmoid", &receptance), &context);
        let y = graph.linear(&at.at("output"), &gated)?;
        Ok(Some(Output { y, present: None }))
    }
}

/// Eq. (11)–(13): a linear map of the token shift μ ⊙ x_t + (1 − μ) ⊙ x_{t−1}.
#[derive(Debug)]
struct TokenShift {
    linear: Linear,
    /// μ, `(d_model)`
    mix: Tensor,
}

impl TokenShift {
    fn build(name: &str, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            linear: spec.linear(name, spec.d_model, vb)?,
            mix: vb.pp(name).get_with_hints(spec.d_model, "mix", Initializer::RWKV_MIX)?,
        })
    }

    /// x_t and x_{t−1}, `x` and `previous (batch, len, d_model)` → the same shape
    fn forward(&self, x: &Tensor, previous: &Tensor) -> Result<Tensor> {
        let mixed = ((x - previous)?.broadcast_mul(&self.mix)? + previous)?;
        self.linear.forward(&mixed)
    }
}

/// W_o (σ(r) ⊙ wkv).
#[derive(Debug)]
struct Rwkv {
    receptance: TokenShift,
    key: TokenShift,
    value: TokenShift,
    /// Of the receptance, called `query`, of the key and of the value.
    convolutions: Option<[ShortConvolution; 3]>,
    /// ln w, `(d_model)`: the parameter `decay`
    log_w: Tensor,
    /// u, `(d_model)`
    bonus: Tensor,
    output: Linear,
    dropout: Dropout,
}

impl Attention for Rwkv {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (x, tokens) = (input.source(Reads::Past)?, input.mask.tokens()?);
        match TokensFirst::of(tokens)? {
            None => self.mixed(x, tokens, input.mode),
            Some(order) => order.undo(&self.mixed(&order.apply(x)?, order.tokens(), input.mode)?),
        }
    }

    /// The weights of wkv, one map for each channel.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (x, tokens) = (input.source(Reads::Past)?, input.mask.tokens()?);
        let weights = |x: &Tensor, tokens| {
            let before = &mut Before { tokens, past: None };
            let [_receptance, key, _value] = self.maps(x, &previous(x, tokens)?, before)?;
            wkv::reference::weights(&key, &self.log_w.exp()?, &self.bonus, tokens)
        };
        match TokensFirst::of(tokens)? {
            None => weights(x, tokens),
            Some(order) => order.undo_in_maps(&weights(&order.apply(x)?, order.tokens())?),
        }
    }

    fn decoding_state<'a>(&'a self, _memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        let convolved = State::default();
        Ok(Some(Box::new(Decoding { layer: self, last_x: None, past: None, convolved })))
    }
}

impl Rwkv {
    /// The output of the layer: `x (batch, len, d_model)`, with padding at the end.
    fn mixed(&self, x: &Tensor, tokens: Tokens<'_>, mode: Mode) -> Result<Tensor> {
        let [receptance, key, value] =
            self.maps(x, &previous(x, tokens)?, &mut Before { tokens, past: None })?;
        let w = self.log_w.exp()?;
        let context = wkv(&key, &value, &w, &self.bonus, tokens.key_padding_mask, tokens.segments)?;
        let gate = sigmoid(&receptance)?;
        self.output.forward(&self.dropout.forward(&(gate * context)?, mode)?)
    }

    /// r, k and v of x_t and x_{t−1}, `x` and `previous (batch, len, d_model)`.
    fn maps(&self, x: &Tensor, previous: &Tensor, before: &mut Before<'_>) -> Result<[Tensor; 3]> {
        let maps = [&self.receptance, &self.key, &self.value];
        let [receptance, key, value] = maps.map(|map| map.forward(x, previous));
        let outputs = [receptance?, key?, value?];
        ShortConvolution::activated_all(self.convolutions.as_ref(), outputs, before)
    }
}

/// x_{t−1}, zeros at the first token of a document: `x (batch, len, d_model)`, with padding at the end.
fn previous(x: &Tensor, Tokens { segments, .. }: Tokens<'_>) -> Result<Tensor> {
    let tokens = Tokens { key_padding_mask: None, segments };
    previous_tokens("x", x, &mut Before { tokens, past: None })
}

/// The decoding state.
#[derive(Debug)]
struct Decoding<'a> {
    layer: &'a Rwkv,
    /// The last input, `(batch, 1, d_model)`.
    last_x: Option<Tensor>,
    /// The two sums of wkv over the past, `(batch, 1, d_model)` each.
    past: Option<RunningMean>,
    /// What the convolutions behind the maps still read.
    convolved: State,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let (_batch, n_new, _d_model) = x.dims3()?;
        let first = match &self.last_x {
            Some(last) => last.clone(),
            None => x.narrow(1, 0, 1)?.zeros_like()?,
        };
        let previous = Tensor::cat(&[&first, &x.narrow(1, 0, n_new - 1)?], 1)?;
        let layer = self.layer;
        let before = &mut Before::after(&mut self.convolved);
        let [receptance, key, value] = layer.maps(x, &previous, before)?;
        let contexts =
            (0..n_new).map(|i| self.read(&key.narrow(1, i, 1)?, &value.narrow(1, i, 1)?));
        let context = Tensor::cat(&contexts.collect::<Result<Vec<_>>>()?, 1)?;
        self.last_x = Some(x.narrow(1, n_new - 1, 1)?);
        let gate = sigmoid(&receptance)?;
        layer.output.forward(&(gate * context)?)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        let past = self.past.iter_mut().flat_map(RunningMean::tensors_mut);
        self.last_x.iter_mut().chain(past).chain(self.convolved.tensors_mut()).collect()
    }
}

impl Decoding<'_> {
    /// wkv of one position, whose key and value are then added to the past.
    fn read(&mut self, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let new = RunningMean::from_value(key, value)?;
        let now = new.scaled(&self.layer.bonus)?;
        let (read, past) = match &self.past {
            None => (now, new),
            Some(past) => {
                let minus_w = self.layer.log_w.exp()?.neg()?;
                (past.merged(&now)?, past.scaled(&minus_w)?.merged(&new)?)
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
    fn the_input_moves_by_one_position() -> Result<()> {
        let x = Tensor::new(&[[[1_f32], [2.], [3.]], [[4.], [5.], [6.]]], &Device::Cpu)?;
        let of = |x: &Tensor, segments| {
            let tokens = Tokens { key_padding_mask: None, segments };
            previous(x, tokens)?.flatten_all()?.to_vec1::<f32>()
        };
        assert_eq!(of(&x, None)?, [0., 1., 2., 0., 4., 5.]);
        assert_eq!(of(&x.narrow(1, 0, 1)?, None)?, [0., 0.]);
        let segments = Tensor::new(&[[0_u32, 1, 1], [5, 5, 0]], &Device::Cpu)?;
        assert_eq!(of(&x, Some(&segments))?, [0., 0., 2., 0., 4., 0.]);
        Ok(())
    }

    #[test]
    fn running_sums_equal_wkv() -> Result<()> {
        let vector = |x: [f64; 3]| Tensor::new(&x, &Device::Cpu)?.reshape((1, 3, 1));
        let (key, value) = (vector([1., -300., 700.])?, vector([2., 3., 5.])?);
        let (decay, bonus) =
            (Tensor::new(&[100_f64], &Device::Cpu)?, Tensor::zeros(1, DType::F64, &Device::Cpu)?);
        let expected = wkv(&key, &value, &decay, &bonus, None, None)?;
        let row = |i| RunningMean::from_value(&key.narrow(1, i, 1)?, &value.narrow(1, i, 1)?);
        let past = row(0)?.scaled(&decay.neg()?)?.merged(&row(1)?)?;
        let read = past.merged(&row(2)?)?;
        let actual = read.mean()?.flatten_all()?.to_vec1::<f64>()?;
        assert_eq!(actual, expected.narrow(1, 2, 1)?.flatten_all()?.to_vec1::<f64>()?);
        Ok(())
    }
}
