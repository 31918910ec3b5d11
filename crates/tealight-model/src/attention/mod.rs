//! Attention, one file per kind.
//!
//! The interface is the whole sub-layer with its projections: `(batch, q_len, d_model)` → the same shape. A
//! kind is a file with a `Config` that implements [`AttentionKind`] and a layer that implements
//! [`Attention`], and it is registered here by `pub mod` and a documented variant of [`AttentionConfig`].
//! A kind whose graph of ONNX is long is a folder, with that graph in `onnx.rs`.

pub mod aft_conv;
pub mod aft_full;
pub mod aft_local;
pub mod aft_simple;
pub mod bigbird;
mod cache;
pub mod decoding;
pub mod deltanet;
pub mod dense;
pub mod differential;
pub mod entmax15;
pub mod fnet;
pub mod forgetting;
mod gate;
pub mod gated_deltanet;
pub mod gdn2;
pub mod gla;
pub mod gmlp;
pub mod hgrn2;
pub mod kda;
pub mod lightning;
pub mod linear;
pub mod linformer;
pub mod local;
pub mod log_linear;
pub mod longformer;
pub mod mamba2;
pub mod mla;
pub mod nystrom;
pub(crate) mod onnx;
pub mod output_gate;
mod parts;
pub mod path;
pub mod performer;
mod previous;
pub(crate) mod projection;
pub mod qk_norm;
pub mod recurrent;
pub mod reduces_to;
pub mod retention;
mod running_mean;
pub mod rwkv;
pub mod rwkv7;
pub mod score;
mod short_convolution;
pub mod sigmoid;
pub mod sink;
pub mod softmax;
pub mod sparsemax;
mod spec;
pub mod state;
pub mod stick_breaking;
pub mod support;
pub mod thresholded;
mod tokens_first;
pub mod top_k;

use std::fmt;

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use serde::Serialize;

pub use decoding::{BoxState, DecodingState};
use reduces_to::ReducesTo;
pub(crate) use spec::BY_CAUSAL;
pub use spec::{AttentionSpec, LayerPlace, Reads};

use crate::choice::choice;
use crate::error::BuildResult;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::onnx_graph::{OnnxError, OnnxResult, Value};
use onnx::{Layer, Output};
use state::State;

choice! {
    /// `[model.attention]`: how a position reads from the others.
    pub enum AttentionConfig: AttentionKind = "softmax" {
        /// Multi-head scaled dot-product attention, O(T²) (Vaswani et al. 2017).
        "softmax" => Softmax(softmax::Config),
        /// Scores projected onto the simplex, with exact zeros, O(T²) (Martins & Astudillo 2016).
        "sparsemax" => Sparsemax(sparsemax::Config),
        /// Half way between softmax and sparsemax, with exact zeros, O(T²) (Peters et al. 2019).
        "entmax15" => Entmax15(entmax15::Config),
        /// Softmax over the k keys of the largest scores, O(T²) (Zhao et al. 2019).
        "top_k" => TopK(top_k::Config),
        /// Softmax without its weights or scores below a threshold, O(T²).
        "thresholded" => Thresholded(thresholded::Config),
        /// Softmax over a window that slides with the query, O(T·window) (Beltagy et al. 2020).
        "local" => Local(local::Config),
        /// Softmax whose weights fade by learnt gates between key and query, O(T²) (Lin et al. 2025).
        "forgetting" => Forgetting(forgetting::Config),
        /// The difference of two softmax attentions, O(T²) (Ye et al. 2025).
        "differential" => Differential(differential::Config),
        /// Softmax over keys and values made of one narrow latent, which alone is cached, O(T²) (DeepSeek-V2 2024).
        "mla" => Mla(mla::Config),
        /// Each key weighs by a sigmoid of its own, O(T²) (Ramapuram et al. 2025).
        "sigmoid" => Sigmoid(sigmoid::Config),
        /// The nearest keys take their share of the weight first, O(T²) (Tan et al. 2025).
        "stick_breaking" => StickBreaking(stick_breaking::Config),
        /// Softmax whose scores pass reflections on their way from query to key, O(T²) (PaTH, Yang et al. 2025).
        "path" => Path(path::Config),
        /// A decaying linear attention that weighs spans of the past by themselves, O(T²) here (Guo et al. 2025).
        "log_linear" => LogLinear(log_linear::Config),
        /// Softmax over near, global and random blocks of keys, O(T) (Zaheer et al. 2020).
        "bigbird" => BigBird(bigbird::Config),
        /// Softmax over a window, with some positions that read all and are read by all, O(T) (Beltagy et al. 2020).
        "longformer" => Longformer(longformer::Config),
        /// Softmax over keys and values mixed to a fixed number of rows, O(T) (Wang et al. 2020).
        "linformer" => Linformer(linformer::Config),
        /// A Fourier transform of the whole sequence, without parameters (Lee-Thorp et al. 2021).
        "fnet" => Fnet(fnet::Config),
        /// A learnt matrix over positions, and a gate (gMLP, Liu et al. 2021).
        "gmlp" => Gmlp(gmlp::Config),
        /// Gated means with a learnt bias for every pair of positions, O(T²) (AFT-full, Zhai et al. 2021).
        "aft_full" => AftFull(aft_full::Config),
        /// Gated means with learnt biases in a window, O(T·window) (AFT-local, Zhai et al. 2021).
        "aft_local" => AftLocal(aft_local::Config),
        /// Gated means of everything read so far, O(T) (AFT-simple, Zhai et al. 2021).
        "aft_simple" => AftSimple(aft_simple::Config),
        /// Gated means with a learnt filter for each head, O(T·kernel_size) (AFT-conv, Zhai et al. 2021).
        "aft_conv" => AftConv(aft_conv::Config),
        /// Softmax attention rebuilt from landmarks, O(T) (Xiong et al. 2021).
        "nystrom" => Nystrom(nystrom::Config),
        /// Averages weighted by features, elu(x) + 1, in O(T) time (Katharopoulos et al. 2020).
        "linear" => Linear(linear::Config),
        /// Softmax attention estimated with random features, in O(T) time (Choromanski et al. 2021).
        "performer" => Performer(performer::Config),
        /// RWKV-4's time mixing: a decaying average per channel, in O(T) time (Peng et al. 2023).
        "rwkv" => Rwkv(rwkv::Config),
        /// Linear attention that fades with the distance, in O(T) time (Sun et al. 2023).
        "retention" => Retention(retention::Config),
        /// A state that fades, and of which keys are rewritten, in O(T) time (Yang et al. 2024).
        "gated_deltanet" => GatedDeltaNet(gated_deltanet::Config),
        /// A state of which keys are rewritten, in O(T) time (Schlag et al. 2021; Yang et al. 2024).
        "deltanet" => DeltaNet(deltanet::Config),
        /// A state space model with a decay for each head, in O(T) time (Dao & Gu 2024).
        "mamba2" => Mamba2(mamba2::Config),
        /// The delta rule with a decay for each feature, in O(T) time (Kimi Team 2025).
        "kda" => Kda(kda::Config),
        /// Linear attention with a decay for each feature, in O(T) time (Yang et al. 2023).
        "gla" => Gla(gla::Config),
        /// Forget gates with lower bounds and a state of outer products, in O(T) time (Qin et al. 2024).
        "hgrn2" => Hgrn2(hgrn2::Config),
        /// The delta rule with gates for each feature that erases and writes, in O(T) time (2026).
        "gdn2" => Gdn2(gdn2::Config),
        /// Linear attention with constant decays by head and layer, in O(T) time (Qin et al. 2023).
        "lightning" => Lightning(lightning::Config),
        /// RWKV-7's time mixing: a decay for each feature, and keys that are rewritten, in O(T) time (Peng et al. 2025).
        "rwkv7" => Rwkv7(rwkv7::Config),
    }
}

impl AttentionConfig {
    /// Builds one layer.
    ///
    /// # Errors
    /// If the settings or the `spec` are out of range or do not fit together, with their keys.
    pub fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<BoxAttention> {
        let spec = AttentionSpec { conv_size: self.conv_size(), ..spec.clone() };
        short_convolution::check(&spec)?;
        self.settings().build(&spec, vb)
    }

    /// The number of tokens that each convolution behind the maps reads; 0 if the layer has none.
    pub fn conv_size(&self) -> usize {
        self.settings().conv_size()
    }

    /// The cost of one layer on one sequence of `q_len` positions that reads `kv_len`.
    pub fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let spec = AttentionSpec { conv_size: self.conv_size(), ..spec.clone() };
        self.settings().cost(&spec, q_len, kv_len)
    }

    /// The length that all sequences must be padded to; `None`: any length will do.
    pub fn required_len(&self) -> Option<usize> {
        self.settings().required_len()
    }

    /// Whether padding at the end of a sequence leaves its other positions as they are without it.
    pub fn ignores_padding(&self) -> bool {
        self.settings().ignores_padding()
    }

    /// On sequences of at most `len` positions: why the attention of the TOML table `key` does not do what its kind
    /// says; `None` if it does.
    pub fn note(&self, key: &str, len: usize) -> Option<String> {
        let ReducesTo { setting, effect, instead } = self.settings().reduces_to(len)?;
        Some(format!("`{key}.{setting}` {effect}, so \"{}\" is {instead} here", self.kind()))
    }

    /// How many positions back a causal layer reads at most, its convolutions included; `None`: all of them.
    pub fn reach(&self) -> Option<usize> {
        Some(self.settings().reach()? + self.conv_size().saturating_sub(1))
    }

    /// Patterns of the names of parameters that do not act on these `outputs`.
    pub fn idle(&self, outputs: Outputs) -> &'static [&'static str] {
        self.settings().idle(outputs)
    }

    /// The number of heads of keys and values, if it is set; else it is that of queries.
    pub fn n_kv_heads(&self) -> Option<usize> {
        self.settings().n_kv_heads()
    }

    /// As [`AttentionKind::onnx`].
    pub(crate) fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Output> {
        let (key, kind) = ("model.attention.kind", self.kind());
        let output = self
            .settings()
            .onnx(layer, x)?
            .ok_or_else(|| OnnxError::unsupported_kind(key, kind))?;
        if layer.past.is_some() && output.present.is_none() {
            let reason = "the inputs `past_key_values` hold keys and values, and its state is another; export it \
                          without a cache";
            return Err(OnnxError::unsupported(format!("a cache of `{key}` = \"{kind}\""), reason));
        }
        Ok(output)
    }
}

/// The settings of one kind of attention.
pub trait AttentionKind: fmt::Debug {
    /// Builds one layer, or refuses settings by their keys.
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention>;

    /// The cost of one layer on one sequence of `q_len` positions that reads `kv_len`.
    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost;

    /// The length that all sequences must be padded to; `None`: any length will do.
    fn required_len(&self) -> Option<usize> {
        None
    }

    /// Whether padding at the end of a sequence leaves its other positions as they are without it.
    fn ignores_padding(&self) -> bool {
        true
    }

    /// Patterns of the names of parameters that do not act on these `outputs`.
    fn idle(&self, _outputs: Outputs) -> &'static [&'static str] {
        &[]
    }

    /// The number of heads of keys and values, if it is set; else it is that of queries.
    fn n_kv_heads(&self) -> Option<usize> {
        None
    }

    /// How many positions back a causal layer reads at most, without its convolutions; `None`: all of them.
    fn reach(&self) -> Option<usize> {
        None
    }

    /// The number of tokens that each convolution behind the maps reads, for kinds whose papers have no convolution; 0 if
    /// the layer has none.
    fn conv_size(&self) -> usize {
        0
    }

    /// Why the layer is another kind of attention on sequences of at most `len` positions; `None` if it is not.
    fn reduces_to(&self, _len: usize) -> Option<ReducesTo> {
        None
    }

    /// Adds the layer as self-attention of `x (batch, q_len, d_model)` to a graph of ONNX. `None`: the kind has no such
    /// graph, and the export refuses it by its name.
    fn onnx(&self, _layer: &Layer<'_>, _x: &Value) -> OnnxResult<Option<Output>> {
        Ok(None)
    }
}

/// The cost of one layer on one sequence, in floating point, so that no size overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionCost {
    /// Scalars in its parameters, exactly.
    pub parameters: f64,
    /// Operations of the forward pass, linear maps included (a multiply-add counts as two).
    pub flops: f64,
    /// Numbers kept for the backward pass.
    pub activations: f64,
}

impl std::ops::Add for AttentionCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            parameters: self.parameters + other.parameters,
            flops: self.flops + other.flops,
            activations: self.activations + other.activations,
        }
    }
}

/// The outputs of a layer that a loss depends on, if not on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// That of the first position.
    First,
    /// Those of all positions but the first.
    AfterFirst,
}

/// A built attention layer of any kind.
pub type BoxAttention = Box<dyn Attention>;

/// A built attention layer.
pub trait Attention: fmt::Debug + Send + Sync {
    /// `x (batch, q_len, d_model)` → `(batch, q_len, d_model)`
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor>;

    /// The attention weights `(batch, n_maps, q_len, kv_len)`, zero where masked. `n_maps` is the number of
    /// heads or, for kinds without heads, of channels.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor>;

    /// What a row of the weights sums to.
    fn row_sum(&self) -> RowSum {
        RowSum::One
    }

    /// Queries, keys and values, each `(batch, len, heads, head_dim)`, as the layer multiplies them: rotated where its
    /// positions are, and mapped by the weights of its score. `None`: the layer multiplies no queries with keys.
    fn heads(&self, _input: &AttentionInput<'_>) -> Result<Option<[Tensor; 3]>> {
        Ok(None)
    }

    /// Further matrices to plot, by name: `(batch or 1, n_maps, rows, columns)`.
    fn factors(&self, _input: &AttentionInput<'_>) -> Result<Vec<(&'static str, Tensor)>> {
        Ok(Vec::new())
    }

    /// [`Self::forward`] that goes on from what earlier calls left in `past`, and leaves there what the next one needs.
    /// `None`: the layer has no state of constant size, or none that takes masks.
    fn resume(&self, _input: &AttentionInput<'_>, _past: &mut State) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Whether the layer passes something on to the later ones of its kind.
    fn passes_on(&self) -> bool {
        false
    }

    /// What it passes on, `(batch, q_len, ..)`: the later layers find it in [`AttentionInput::first`]. `None` unless
    /// [`Self::passes_on`].
    fn passed_on(&self, _input: &AttentionInput<'_>) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// The state for decoding position by position, before the first one. `None`: the layer has no such
    /// state and is computed anew over the whole past at every step.
    fn decoding_state<'a>(&'a self, _memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        Ok(None)
    }
}

/// What a row of weights sums to, unless all its keys are masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowSum {
    /// One: a distribution over the keys.
    One,
    /// At most one: small weights of the distribution are set to zero.
    AtMostOne,
    /// Any number; weights may be negative.
    Any,
}

/// The encoder's output, which cross-attention reads.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// `(batch, kv_len, d_model)`
    pub states: &'a Tensor,
    /// Padding and additive masks on the memory.
    pub mask: &'a Mask,
}

/// The arguments of one forward pass.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// The sequence of the queries, `(batch, q_len, d_model)`.
    pub x: &'a Tensor,
    /// The sequence of the keys and values, `(batch, kv_len, d_model)`, if and only if the layer was built
    /// with [`Reads::Memory`]. Otherwise it is `x`.
    pub memory: Option<&'a Tensor>,
    /// Padding and additive masks on the keys.
    pub mask: &'a Mask,
    /// Training or evaluation.
    pub mode: Mode,
    /// What an earlier layer passed on ([`Attention::passed_on`]).
    pub first: Option<&'a Tensor>,
}

impl<'a> AttentionInput<'a> {
    /// Of self-attention.
    pub fn new(x: &'a Tensor, mask: &'a Mask, mode: Mode) -> Self {
        Self { x, memory: None, mask, mode, first: None }
    }

    /// The sequence of the keys and values of a layer built with `reads`: the memory, or `x` itself. Every
    /// kind calls this.
    ///
    /// # Errors
    /// If a memory is missing, or given to self-attention; or if cross-attention is given segments, which
    /// exist within one sequence only.
    pub fn source(&self, reads: Reads) -> Result<&'a Tensor> {
        match (reads, self.memory) {
            (Reads::Memory, Some(memory)) => self.mask.refuse_segments().map(|()| memory),
            (Reads::Everything | Reads::Past, None) => Ok(self.x),
            (Reads::Memory, None) => bail!("an attention that reads a memory was given no memory"),
            (Reads::Everything | Reads::Past, Some(_)) => {
                bail!("an attention that reads its own sequence was given a memory")
            }
        }
    }
}
