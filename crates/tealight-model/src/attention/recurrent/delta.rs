//! The layer around the delta rule, of which `deltanet`, `gated_deltanet`, `kda` and `gdn2` are settings.
//!
//! ```text
//! q, k = L2(SiLU(conv(W x))) per head, q also / √n_features,   v = SiLU(conv(W x))
//! S_t  = (Diag(α) − β k (α ⊙ k)ᵀ) S_{t−1} + β k vᵀ,            o_t = S_tᵀ q_t
//! y    = W_o (RMSNorm(o) ⊙ φ(gate))
//! ```

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::{Function, sigmoid};
use tealight_ops::gate::gated;
use tealight_ops::reshape;

use super::convolution::{ShortProjection, Unit};
use super::decay::{Decay, Map};
use super::gated_output::GatedOutput;
use super::{Call, Erase, Inputs, Recurrent, flops, split_heads, wide};
use crate::attention::projection::concat_heads;
use crate::attention::{AttentionCost, AttentionSpec};
use crate::layers::linear::{Bias, Linear};

/// What a kind decides.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Settings {
    pub(in crate::attention) n_heads: usize,
    /// Heads of queries and keys, a divisor of `n_heads`: head j of the values has key head ⌊j / (n_heads / this)⌋.
    pub(in crate::attention) n_key_heads: usize,
    /// Of a head's key.
    pub(in crate::attention) n_features: usize,
    /// Of a head's value.
    pub(in crate::attention) width: usize,
    pub(in crate::attention) conv_size: usize,
    /// Keys and values that a token writes one after the other.
    pub(in crate::attention) steps: usize,
    pub(in crate::attention) decay: DecayKind,
    pub(in crate::attention) strength: StrengthKind,
    pub(in crate::attention) gate: GateKind,
}

/// α.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::attention) enum DecayKind {
    /// 1.
    None,
    /// One for each head.
    OfHeads,
    /// One for each feature, from a map of this rank.
    OfFeatures { rank: usize, lower_bound: Option<f64> },
}

/// How strongly a token erases and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::attention) enum StrengthKind {
    /// β = largest · σ(W x), one for each head and step.
    OfHeads { largest: f64 },
    /// Erases along σ(W_b x) ⊙ k, writes σ(W_w x) ⊙ v.
    OfFeatures,
}

impl StrengthKind {
    /// One for each head: up to 1, or up to 2, where the eigenvalues of a step reach −1.
    pub(in crate::attention) fn of_heads(reaches_two: bool) -> Self {
        Self::OfHeads { largest: if reaches_two { 2. } else { 1. } }
    }
}

/// The gate of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::attention) enum GateKind {
    None,
    Full(Function),
    LowRank(Function, usize),
}

impl Settings {
    /// The features of all keys, and of all values, of a step.
    fn widths(&self) -> [usize; 2] {
        [self.n_key_heads * self.n_features, self.n_heads * self.width]
    }

    /// The cost of a layer on `len` positions.
    pub(in crate::attention) fn cost(&self, spec: &AttentionSpec<'_>, len: usize) -> AttentionCost {
        let (d_model, n_heads, len) = (spec.d_model as f64, self.n_heads as f64, len as f64);
        let (features, width) = (self.n_features as f64, self.width as f64);
        let (steps, size) = (self.steps as f64, self.conv_size as f64);
        let (keys, values) = (self.n_key_heads as f64 * features, n_heads * width);
        let all_keys = n_heads * features;
        let bias = f64::from(u8::from(spec.bias == Bias::With));
        let low_rank = |rank: usize, width: f64| (d_model + width) * rank as f64;
        let (of_decay, of_logs) = match self.decay {
            DecayKind::None => (0., 0.),
            DecayKind::OfHeads => (d_model * n_heads, 2. * n_heads),
            DecayKind::OfFeatures { rank, .. } => (low_rank(rank, all_keys), n_heads + all_keys),
        };
        let strengths = match self.strength {
            StrengthKind::OfHeads { .. } => steps * n_heads,
            StrengthKind::OfFeatures => all_keys + values,
        };
        let (of_gate, of_gate_bias) = match self.gate {
            GateKind::None => (0., 0.),
            GateKind::Full(_) => (d_model * values, bias * values),
            GateKind::LowRank(_, rank) => (low_rank(rank, values), values),
        };
        let projected = keys + steps * (keys + values);
        let matrices = d_model * (projected + strengths + values) + of_decay + of_gate;
        let vectors = bias * (projected + strengths + d_model) + of_logs + of_gate_bias + width;
        let of_rule = flops(features, width);
        AttentionCost {
            parameters: matrices + vectors + size * projected,
            flops: len * (2. * matrices + (2. * size + 5.) * projected + steps * n_heads * of_rule),
            // Maps, convolutions, SiLU and norm; the states before chunks, the context, its norm and its gate.
            activations: len * (4. * projected + strengths + 7. * values),
        }
    }
}

/// The layer.
#[derive(Debug)]
pub(in crate::attention) struct DeltaRule {
    queries: ShortProjection,
    keys: ShortProjection,
    values: ShortProjection,
    unit_query: Unit,
    unit_key: Unit,
    decay: Option<(Map, Decay)>,
    strength: Strength,
    gate: Option<Map>,
    output: GatedOutput,
    settings: Settings,
}

#[derive(Debug)]
enum Strength {
    OfHeads { map: Linear, largest: f64 },
    OfFeatures { erase: Linear, write: Linear },
}

impl DeltaRule {
    pub(in crate::attention) fn build(
        settings: Settings,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let Settings { n_heads, n_features, width, steps, .. } = settings;
        let [keys, values] = settings.widths();
        let convolution = (settings.conv_size, Bias::Without);
        let projection = |name, width| ShortProjection::build(name, width, convolution, spec, vb);
        let decay = match settings.decay {
            DecayKind::None => None,
            DecayKind::OfHeads => Some((
                Map::full("decay", n_heads, Bias::Without, spec, vb)?,
                Decay::build([n_heads, 1], [0.01, 16.], None, &vb.pp("decay"))?,
            )),
            DecayKind::OfFeatures { rank, lower_bound } => Some((
                Map::low_rank("decay", [rank, n_heads * n_features], Bias::Without, spec, vb)?,
                Decay::build([n_heads, n_features], [1., 16.], lower_bound, &vb.pp("decay"))?,
            )),
        };
        let strength = match settings.strength {
            StrengthKind::OfHeads { largest } => {
                Strength::OfHeads { map: spec.linear("strength", steps * n_heads, vb)?, largest }
            }
            StrengthKind::OfFeatures => Strength::OfFeatures {
                erase: spec.linear("erase", n_heads * n_features, vb)?,
                write: spec.linear("write", values, vb)?,
            },
        };
        let (gate, function) = match settings.gate {
            GateKind::None => (None, None),
            GateKind::Full(function) => {
                (Some(Map::full("gate", values, spec.bias, spec, vb)?), Some(function))
            }
            GateKind::LowRank(function, rank) => {
                let gate = Map::low_rank("gate", [rank, values], Bias::With, spec, vb)?;
                (Some(gate), Some(function))
            }
        };
        Ok(Self {
            queries: projection("query", keys)?,
            keys: projection("key", steps * keys)?,
            values: projection("value", steps * values)?,
            unit_query: Unit::new(n_features, 1. / (n_features as f64).sqrt(), vb)?,
            unit_key: Unit::new(n_features, 1., vb)?,
            decay,
            strength,
            gate,
            output: GatedOutput::build([n_heads, width], function, spec, vb)?,
            settings,
        })
    }

    /// `(batch, len, steps·..)` → `(batch, len·steps, ..)`
    fn in_steps(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, len, width) = x.dims3()?;
        reshape(x, (batch, len * self.settings.steps, width / self.settings.steps))
    }
}

impl Recurrent for DeltaRule {
    fn inputs(&self, call: &mut Call<'_>) -> Result<Inputs> {
        let maps = [&self.queries, &self.keys, &self.values];
        let [query, key, value] = ShortProjection::forward_all(maps, call)?;
        let Settings { n_features, width, .. } = self.settings;
        let query = self.unit_query.forward(&query)?;
        let key = self.unit_key.forward(&self.in_steps(&key)?)?;
        let value = split_heads(&self.in_steps(&value)?, width)?;
        let log_decay = self.decay.as_ref().map(|(map, decay)| {
            let log_decay = decay.forward(&map.forward(call.x)?)?;
            let is_of_heads = self.settings.decay == DecayKind::OfHeads;
            if is_of_heads { Ok(log_decay) } else { split_heads(&log_decay, n_features) }
        });
        let (strength, erase, value) = match &self.strength {
            Strength::OfHeads { map, largest } => {
                let strength = sigmoid(&wide(&self.in_steps(&map.forward(call.x)?)?)?)?;
                let strength = if *largest == 1. { strength } else { (strength * *largest)? };
                (Some(strength), Erase::Key, value)
            }
            Strength::OfFeatures { erase, write } => {
                let [erase, write] = Linear::forward_all([erase, write], call.x)?;
                let along = gated(Function::Sigmoid, &erase, &concat_heads(&key)?)?;
                let value = gated(Function::Sigmoid, &write, &concat_heads(&value)?)?;
                let along = split_heads(&along, n_features)?;
                (None, Erase::Along(along), split_heads(&value, width)?)
            }
        };
        Ok(Inputs {
            query,
            key,
            value,
            strength,
            erase,
            log_decay: log_decay.transpose()?,
            steps: self.settings.steps,
            gate: self.gate.as_ref().map(|gate| gate.forward(call.x)).transpose()?,
        })
    }

    fn output(&self, call: &Call<'_>, inputs: &Inputs, context: &Tensor) -> Result<Tensor> {
        self.output.forward(call, context, inputs.gate.as_ref())
    }
}
