//! The time mixing of RWKV-7 (Peng et al. 2025, <https://arxiv.org/abs/2503.14456>).
//!
//! ```text
//! x^□_t = x_t + (x_{t−1} − x_t) ⊙ μ_□                               □ = r, w, k, v, a, g: the token shift
//! r = W_r x^r,   k = W_k x^k,   v = W_v x^v,   g = W_g↑ σ(W_g↓ x^g)
//! ln w = −e^(−½) σ(w₀ + W_w↑ tanh(W_w↓ x^w)),   a = σ(a₀ + W_a↑ W_a↓ x^a)                    per feature
//! v ← v + (v¹ − v) ⊙ σ(v₀ + W_v↑ W_v↓ x^v)            v¹: of the first layer of this kind, which leaves v as it is
//! κ = k ⊙ ξ,   κ̂ = κ / ‖κ‖ per head,   k̃ = k ⊙ (1 + (a − 1) ⊙ α)
//!
//! S_t = (Diag(w_t) − (a_t ⊙ κ̂_t) κ̂_tᵀ) S_{t−1} + k̃_t v_tᵀ,   o_t = S_tᵀ r_t
//! y   = W_o ((GroupNorm(o) + (Σ r ⊙ ρ ⊙ k̃) v) ⊙ g)                          one group per head, ε = 64 · 10⁻⁵
//! ```
//!
//! In the gated delta rule, e = κ̂ / w and b = a ⊙ κ̂: a token erases along κ̂ and writes k̃. With a = 0 it is `gla`. w is
//! above 0.545, so 1 / w is harmless.
//!
//! Cost: O(T·d_model·(d_model + head_dim)) time, O(T·d_model) memory. The decoding state is S, n_heads·head_dim² numbers, and
//! the last input.
//!
//! Differences from the authors' code. Their W↓ of w, a, v and g and their W_o begin at zero; here these begin as other
//! weights do, because a weight behind a zero has no gradient at the first step, which the audit of gradients would take
//! for a mistake. Their other matrices are orthogonal, here normal of the same size. They train w₀ at twice the rate, here
//! it has that of all parameters. Their ranks are max(32, 32 round(c √d_model / 32)), c = 2.5 (w, a), 1.7 (v), 5 (g), as
//! here unless set. In a hybrid, v¹ is that of the first layer of this kind, not of the stack.
//!
//! Padding leaves the state as it is and is skipped by the token shift; both begin anew at a document.

use candle_core::{Result, Tensor, bail};
use candle_nn::{Init, VarBuilder, init};
use tealight_ops::activation::sigmoid;
use tealight_ops::broadcast::{broadcast_add, broadcast_mul, scale_rows};
use tealight_ops::norm::layer_norm;
use tealight_ops::residual::residual;
use tealight_ops::short_convolution::Joined;

use super::onnx::{Layer as OnnxLayer, Output};
use super::projection::concat_heads;
use super::recurrent::convolution::Unit;
use super::recurrent::gated_output::OutputMap;
use super::recurrent::{self, Call, Erase, Inputs, Layer, Recurrent, split_heads, wide};
use super::short_convolution::{self, Before, ShortConvolution};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention, LayerPlace};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::onnx_graph::{OnnxResult, Value};
use crate::params::get_drawn;

/// ε of the norm of each head.
const EPSILON: f64 = 64e-5;

/// The least norm of κ: a key of zeros stays one.
const LEAST_NORM: f64 = 1e-12;

settings! {
    /// `[model.attention] kind = "rwkv7"`
    pub struct Config {
        /// The rank of the map of the decays; by the width of the model when absent, as here and below.
        pub decay_rank: Option<usize> = None,
        /// The rank of the map of the rates at which the state is rewritten.
        pub rate_rank: Option<usize> = None,
        /// The rank of the map of the shares of the first layer's values.
        pub value_rank: Option<usize> = None,
        /// The rank of the map of the gate.
        pub gate_rank: Option<usize> = None,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl Config {
    /// The ranks of w, a, v and g.
    fn ranks(&self, d_model: usize) -> [usize; 4] {
        let usual = |c: f64| (32. * (c * (d_model as f64).sqrt() / 32.).round()).max(32.) as usize;
        [
            self.decay_rank.unwrap_or(usual(2.5)),
            self.rate_rank.unwrap_or(usual(2.5)),
            self.value_rank.unwrap_or(usual(1.7)),
            self.gate_rank.unwrap_or(usual(5.)),
        ]
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        recurrent::check(spec, "rwkv7")?;
        let ranks = self.ranks(spec.d_model);
        let names = ["decay_rank", "rate_rank", "value_rank", "gate_rank"];
        names.into_iter().zip(ranks).try_for_each(|(name, rank)| spec.positive(name, rank))?;
        Ok(Box::new(Layer(Rwkv7::build(ranks, spec, vb)?)))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, _kv_len: usize) -> AttentionCost {
        let (d_model, width) = (spec.d_model as f64, spec.d_heads() as f64);
        let (n_heads, head_dim) = (spec.n_heads as f64, spec.head_dim() as f64);
        let bias = f64::from(u8::from(spec.bias == Bias::With));
        let [decay, rate, value, gate] = self.ranks(spec.d_model).map(|rank| rank as f64);
        let (value, of_value) = if spec.layer.is_first { (0., 0.) } else { (value, width) };
        let matrices = 4. * d_model * width + (d_model + width) * (decay + rate + value + gate);
        let vectors = bias * (3. * width + d_model) + 6. * d_model + 7. * width + of_value;
        let len = q_len as f64;
        let convolutions = short_convolution::cost(spec, 3 * spec.d_heads(), q_len);
        convolutions
            + AttentionCost {
                parameters: matrices + vectors,
                flops: len * (2. * matrices + 18. * d_model + 40. * width)
                    // What is erased has keys of its own, so there are twice the pairs.
                    + 2. * len * n_heads * recurrent::flops(head_dim, head_dim),
                // Six mixtures; maps and what is made of them; the rule; norm, bonus and gate.
                activations: len * (7. * d_model + 24. * width + decay + rate + value + gate),
            }
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, _layer: &OnnxLayer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        recurrent::no_graph("rwkv7")
    }
}

#[derive(Debug)]
struct Rwkv7 {
    receptance: Mixed<Linear>,
    key: Mixed<Linear>,
    value: Mixed<Linear>,
    /// Of the receptance, called `query`, of the key and of the value.
    convolutions: Option<[ShortConvolution; 3]>,
    decay: Mixed<LowRank>,
    rate: Mixed<LowRank>,
    gate: Mixed<LowRank>,
    /// Of the first layer's values, as a map of x^v; `None` in the first layer.
    share: Option<LowRank>,
    /// Whether this is the first layer of this kind, and not the last of the stack: later layers may read its values.
    passes_on: bool,
    /// ξ, `(width)`.
    erased: Tensor,
    /// α, `(width)`.
    written: Tensor,
    /// ρ, `(n_heads, head_dim)`.
    bonus: Tensor,
    unit: Unit,
    /// The weight and the bias of the norm, `(width)` each.
    norm: [Tensor; 2],
    /// The weight of the norm within a head, which is one: `(head_dim)`.
    ones: Tensor,
    output: OutputMap,
}

impl Rwkv7 {
    fn build(ranks: [usize; 4], spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        let (n_heads, head_dim) = (spec.n_heads, spec.head_dim());
        let channels = Channels { width: spec.d_heads(), head_dim, layer: spec.layer };
        let [of_decay, of_rate, of_value, of_gate] = ranks;
        let vector = |name: &str, value: fn(Channels, u64) -> f64| {
            get_drawn(vb, channels.width, name, move |_stream, n| value(channels, n))
        };
        let linear = |name, power, gain| Mixed::linear(name, power, gain, spec, vb);
        let low_rank = |name, power, rank| {
            Ok::<_, candle_core::Error>(Mixed {
                mix: mix(power, spec, &vb.pp(name))?,
                map: LowRank::build(rank, spec, &vb.pp(name))?,
            })
        };
        let based = |map: Mixed<LowRank>, base| -> Result<Mixed<LowRank>> {
            Ok(Mixed { map: LowRank { base: Some(base), ..map.map }, ..map })
        };
        let share = || -> Result<LowRank> {
            let base = vector("share.base", |channels, n| 0.73 - 0.4 * channels.slope(n))?;
            Ok(LowRank { base: Some(base), ..LowRank::build(of_value, spec, &vb.pp("share"))? })
        };
        let grows =
            Init::Const(((spec.layer.index + 1) as f64 / spec.layer.count as f64).powf(0.7));
        let norm = vb.pp("norm");
        Ok(Self {
            receptance: linear("receptance", 0.2, 1.)?,
            key: linear("key", 0.7, 0.1)?,
            value: linear("value", 0.7, 1.)?,
            convolutions: ShortConvolution::build_all([channels.width; 3], spec, vb)?,
            decay: based(
                low_rank("decay", 0.9, of_decay)?,
                vector("decay.base", Channels::decay)?,
            )?,
            rate: based(low_rank("rate", 0.9, of_rate)?, vector("rate.base", Channels::rate)?)?,
            gate: low_rank("gate", 0.2, of_gate)?,
            share: (!spec.layer.is_first).then(share).transpose()?,
            passes_on: spec.layer.is_first && spec.layer.index + 1 < spec.layer.count,
            erased: vector("erased", |channels, n| 0.71 - 0.1 * channels.slope(n))?,
            written: vb.get_with_hints(channels.width, "written", Init::Const(1.02))?,
            bonus: vb.get_with_hints((n_heads, head_dim), "bonus", Init::Const(-0.04))?,
            unit: Unit::with_epsilon(head_dim, 1., LEAST_NORM * LEAST_NORM, vb)?,
            norm: [
                norm.get_with_hints(channels.width, "weight", grows)?,
                norm.get_with_hints(channels.width, "bias", init::ZERO)?,
            ],
            ones: Tensor::ones(head_dim, vb.dtype(), vb.device())?,
            output: OutputMap::build(channels.width, spec, vb)?,
        })
    }

    /// x, behind the last input of the call before, which is kept for the next.
    fn shifted(call: &mut Call<'_>) -> Result<Joined> {
        let Call { x, tokens, .. } = *call;
        let Some(past) = &mut call.past else { return Joined::new(None, 0, x, tokens) };
        let joined = Joined::new(past.get(LAST), 1, x, tokens)?;
        past.insert(LAST, joined.past()?);
        Ok(joined)
    }

    /// v before the share of the first layer's, and what that share is computed from.
    fn values(&self, shifted: &Joined, before: &mut Before<'_>) -> Result<[Tensor; 2]> {
        let x = self.value.mixed(shifted)?;
        let convolution = self.convolutions.as_ref().map(|[.., value]| value);
        Ok([ShortConvolution::activated(convolution, &self.value.map.forward(&x)?, before)?, x])
    }

    /// ln w.
    fn log_decay(&self, shifted: &Joined) -> Result<Tensor> {
        let hidden = self.decay.map.hidden(&self.decay.mixed(shifted)?)?.tanh()?;
        sigmoid(&wide(&self.decay.map.forward_from(&hidden)?)?)? * -(-0.5_f64).exp()
    }

    fn gate(&self, shifted: &Joined) -> Result<Tensor> {
        let hidden = self.gate.map.hidden(&self.gate.mixed(shifted)?)?;
        self.gate.map.forward_from(&sigmoid(&hidden)?)
    }
}

/// The name of the last input in a state.
const LAST: &str = "last";

impl Recurrent for Rwkv7 {
    fn inputs(&self, call: &mut Call<'_>) -> Result<Inputs> {
        let shifted = Self::shifted(call)?;
        let head_dim = self.ones.elem_count();
        let heads = |x: &Tensor| split_heads(x, head_dim);
        let first = call.first;
        let mut before = call.before();
        let [mut value, of_value] = self.values(&shifted, &mut before)?;
        if let Some(share) = &self.share {
            let Some(first) = first else {
                bail!("a later layer of rwkv7 was given no values of the first one")
            };
            let share = sigmoid(&share.forward(&of_value)?)?;
            value = (&value + ((first - &value)? * share)?)?;
        }
        let [of_receptance, of_key] =
            [0, 1].map(|i| self.convolutions.as_ref().map(|convolutions| &convolutions[i]));
        let key = self.key.map.forward(&self.key.mixed(&shifted)?)?;
        let key = ShortConvolution::activated(of_key, &key, &mut before)?;
        let receptance = self.receptance.map.forward(&self.receptance.mixed(&shifted)?)?;
        let receptance = ShortConvolution::activated(of_receptance, &receptance, &mut before)?;
        let rate = sigmoid(&self.rate.map.forward(&self.rate.mixed(&shifted)?)?)?;
        let log_decay = heads(&self.log_decay(&shifted)?)?;
        let erased = self.unit.forward(&broadcast_mul(&key, &self.erased)?)?;
        let written = broadcast_add(&broadcast_mul(&rate, &self.written)?, &(1. - &self.written)?)?;
        let written = heads(&broadcast_mul(&key, &written)?)?;
        let along = broadcast_mul(&log_decay.neg()?.exp()?, &wide(&erased)?)?;
        Ok(Inputs {
            query: heads(&receptance)?,
            key: written,
            value: heads(&value)?,
            strength: None,
            erase: Erase::Between { along, key: broadcast_mul(&heads(&rate)?, &erased)? },
            log_decay: Some(log_decay),
            steps: 1,
            gate: Some(self.gate(&shifted)?),
        })
    }

    fn output(&self, call: &Call<'_>, inputs: &Inputs, context: &Tensor) -> Result<Tensor> {
        let [weight, bias] = &self.norm;
        let normalised = concat_heads(&layer_norm(context, &self.ones, None, EPSILON)?)?;
        let normalised = broadcast_add(&broadcast_mul(&normalised, weight)?, bias)?;
        let bonus =
            broadcast_mul(&broadcast_mul(&inputs.query, &inputs.key)?, &self.bonus)?.sum(3)?;
        let bonus = concat_heads(&scale_rows(&inputs.value, &bonus)?)?;
        let gate = inputs.gate.as_ref().expect("invariant: `inputs` computes a gate");
        let sum = residual(&normalised, &bonus, None)?;
        self.output.forward(call, &broadcast_mul(&sum, gate)?)
    }

    fn passes_on(&self) -> bool {
        self.passes_on
    }

    /// v, `(batch, len, width)`.
    fn passed_on(&self, call: &Call<'_>) -> Result<Option<Tensor>> {
        let mut past = call.past.as_deref().cloned();
        let mut call = Call { past: past.as_mut(), ..*call };
        let shifted = Self::shifted(&mut call)?;
        let [value, _x] = self.values(&shifted, &mut call.before())?;
        Ok(Some(value))
    }
}

/// A map of a token shift.
#[derive(Debug)]
struct Mixed<M> {
    /// μ, `(d_model)`.
    mix: Tensor,
    map: M,
}

impl<M> Mixed<M> {
    /// x^□ = μ x_{t−1} + (1 − μ) x_t, a convolution.
    fn mixed(&self, x: &Joined) -> Result<Tensor> {
        x.convolved(&self.filters()?)
    }

    /// μ and 1 − μ, `(d_model, 2)`.
    fn filters(&self) -> Result<Tensor> {
        Tensor::stack(&[&self.mix, &(1. - &self.mix)?], 1)
    }
}

impl Mixed<Linear> {
    /// Weights of the size of an orthogonal matrix times `gain`.
    fn linear(
        name: &str,
        power: f64,
        gain: f64,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let (vb, sizes) = (vb.pp(name), [spec.d_model, spec.d_heads()]);
        let weight = spec.init.weight_or(spec.d_model, normal(gain, spec));
        Ok(Self { mix: mix(power, spec, &vb)?, map: Linear::build(sizes, spec.bias, weight, &vb)? })
    }
}

/// μ: 1 in the first channel, and less and less in the others.
fn mix(power: f64, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Tensor> {
    let LayerPlace { index, count, .. } = spec.layer;
    let power = power * (1. - index as f64 / count as f64);
    let d_model = spec.d_model as f64;
    get_drawn(vb, spec.d_model, "mix", move |_stream, n| 1. - (n as f64 / d_model).powf(power))
}

/// The elements of an orthogonal matrix times `gain`.
fn normal(gain: f64, spec: &AttentionSpec<'_>) -> Init {
    Init::Randn { mean: 0., stdev: gain / (spec.d_model as f64).sqrt() }
}

/// W↑ f(W↓ x) + base.
#[derive(Debug)]
struct LowRank {
    down: Linear,
    up: Linear,
    base: Option<Tensor>,
}

impl LowRank {
    /// Without a base.
    fn build(rank: usize, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        let (down, up) =
            (spec.init.weight(spec.d_model), spec.init.weight_or(rank, normal(0.1, spec)));
        let map = |name, sizes, weight| Linear::build(sizes, Bias::Without, weight, &vb.pp(name));
        Ok(Self {
            down: map("down", [spec.d_model, rank], down)?,
            up: map("up", [rank, spec.d_heads()], up)?,
            base: None,
        })
    }

    /// W↓ x.
    fn hidden(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(x)
    }

    /// W↑ h + base.
    fn forward_from(&self, hidden: &Tensor) -> Result<Tensor> {
        let y = self.up.forward(hidden)?;
        match &self.base {
            Some(base) => broadcast_add(&y, base),
            None => Ok(y),
        }
    }

    /// W↑ W↓ x + base.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_from(&self.hidden(x)?)
    }
}

/// Initial values by the place of a channel.
#[derive(Clone, Copy, Debug)]
struct Channels {
    width: usize,
    head_dim: usize,
    layer: LayerPlace,
}

impl Channels {
    /// From 0 to 1 over all channels.
    fn place(self, n: u64) -> f64 {
        n as f64 / (self.width as f64 - 1.).max(1.)
    }

    /// From −½ to ½ over all channels.
    fn slope(self, n: u64) -> f64 {
        self.place(n) - 0.5
    }

    /// From −1 to 1 over the channels of a head, flat in the middle.
    fn of_head(self, n: u64) -> f64 {
        let at = (n % self.head_dim as u64) as f64;
        let x = 2. * at / (self.head_dim as f64 - 1.).max(1.) - 1.;
        x * x.abs()
    }

    /// w₀: from lasting to fading channels.
    fn decay(self, n: u64) -> f64 {
        let LayerPlace { index, count, .. } = self.layer;
        let depth = index as f64 / (count as f64 - 1.).max(1.);
        -5.5 + 6. * self.place(n).powf(1. + depth.powf(0.3)) + 2.5 * self.of_head(n)
    }

    /// a₀.
    fn rate(self, n: u64) -> f64 {
        -0.19 + 0.3 * self.of_head(n) + 0.4 * self.slope(n)
    }
}
