//! AFT-simple (Zhai et al. 2021, <https://arxiv.org/abs/2105.14103>).
//!
//! ```text
//! Y_t = σ(Q_t) ⊙ Σ_t' exp(K_t') ⊙ V_t' / Σ_t' exp(K_t')
//! ```
//!
//! AFT-full with w = 0. If it is not causal, all positions read the same mean and differ only by their gates.
//! Decoding keeps numerator, denominator and the running maximum of K, of constant size.
//!
//! Cost: O(seq_len·d_model) time and memory beyond the linear maps.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::Reach;
use tealight_ops::aft;

use super::decoding::refuse_score_bias;
use super::gate::{self, Gate};
use super::onnx::recurrence::{Recurrence, fading_mean};
use super::onnx::{self, Layer, Output};
use super::running_mean::RunningMean;
use super::short_convolution::Before;
use super::state::State;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    DecodingState, Memory, Reads,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::mode::Mode;
use crate::onnx_graph::{OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "aft_simple"`
    pub struct Config {
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        Ok(Box::new(AftSimple { gate: Gate::build("aft_simple", spec.d_model, spec, vb)? }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let read = spec.d_model as f64 * kv_len as f64;
        let core = AttentionCost {
            parameters: 0.,
            // Exponential, numerator and denominator.
            flops: 5. * read,
            // The denominator of each row and channel, with its maximum.
            activations: 2. * read,
        };
        gate::cost(spec, spec.d_model, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let (graph, sequence) = (layer.graph(), layer.sequence);
        let onnx::gate::Maps { query, key, value } = onnx::gate::Maps::project(layer, x)?;
        let context = if sequence.causal {
            let recurrence = Recurrence { key: &key, value: &value, decay: None, bonus: None };
            fading_mean(sequence, &recurrence)
        } else {
            let weights = graph.softmax(&onnx::gate::without_padding(layer, &key), 1);
            let mean = graph.sum(&graph.mul(&weights, &value), 1); // (batch, 1, d_model)
            graph.mul(&mean, &onnx::gate::reads_any(layer))
        };
        onnx::gate::gated(layer, &query, &context)
    }
}

/// σ(Q) ⊙ the mean of V with weights exp(K).
#[derive(Debug)]
pub struct AftSimple {
    gate: Gate,
}

impl Attention for AftSimple {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, value] = self.gate.maps.project(input)?;
        let padding = input.mask.padding_only()?;
        let context = aft::aft_simple(&key, &value, padding, self.gate.reach())?;
        self.gate.output(&query, &context, input.mode)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value] = self.gate.maps.project(input)?;
        let (_batch, q_len, _d_model) = query.dims3()?;
        let (_batch, kv_len, _d_model) = key.dims3()?;
        let w = Tensor::zeros((1, q_len, kv_len), key.dtype(), key.device())?;
        aft::reference::weights(&key, &w, input.mask.padding_only()?, self.gate.reach())
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        let of_memory = match (self.gate.maps.reads, memory) {
            (Reads::Past, None) => None,
            (Reads::Memory, Some(Memory { states, mask })) => {
                let before = &mut Before::whole(mask);
                let [key, value] = self.gate.maps.keys_and_values(states, before)?;
                Some(aft::aft_simple(&key, &value, mask.padding_only()?, Reach::Everything)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(Box::new(Decoding {
            gate: &self.gate,
            of_memory,
            sums: None,
            past: State::default(),
        })))
    }
}

/// The decoding state.
#[derive(Debug)]
struct Decoding<'a> {
    gate: &'a Gate,
    /// `(batch, 1, d_model)`: the mean over the memory in cross-attention, which all positions read.
    of_memory: Option<Tensor>,
    /// The sums over the past.
    sums: Option<RunningMean>,
    /// What the convolutions behind the maps still read.
    past: State,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let context = match &self.of_memory {
            Some(context) => context.clone(),
            None => self.read_past(x)?,
        };
        let query = self.gate.maps.queries(x, &mut Before::after(&mut self.past))?;
        self.gate.output(&query, &context, Mode::Eval)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        let sums = self.sums.iter_mut().flat_map(RunningMean::tensors_mut);
        self.of_memory.iter_mut().chain(sums).chain(self.past.tensors_mut()).collect()
    }
}

impl Decoding<'_> {
    /// The means at the new positions, each of which is added to the past before it is read.
    fn read_past(&mut self, x: &Tensor) -> Result<Tensor> {
        let (_batch, n_new, _d_model) = x.dims3()?;
        let before = &mut Before::after(&mut self.past);
        let [keys, values] = self.gate.maps.keys_and_values(x, before)?;
        let mut contexts = Vec::with_capacity(n_new);
        for t in 0..n_new {
            let new = RunningMean::from_value(&keys.narrow(1, t, 1)?, &values.narrow(1, t, 1)?)?;
            let read = match &self.sums {
                Some(past) => past.merged(&new)?,
                None => new,
            };
            contexts.push(read.mean()?);
            self.sums = Some(read);
        }
        Tensor::cat(&contexts, 1) // (batch, n_new, d_model)
    }
}
