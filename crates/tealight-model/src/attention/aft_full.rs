//! AFT-full (Zhai et al. 2021, <https://arxiv.org/abs/2105.14103>).
//!
//! ```text
//! Y_t = σ(Q_t) ⊙ Σ_t' exp(K_t' + w_t,t') ⊙ V_t' / Σ_t' exp(K_t' + w_t,t')                 eq. (2)
//! w   = u vᵀ,    u (max_q_len, rank), v (max_kv_len, rank)                                factorised
//! ```
//!
//! Each channel has its own weights, which depend on the key and on the two positions but not on the query. w is learnt
//! for absolute positions; a shorter sequence uses the first rows and columns. As in the paper w is factorised, with
//! rank
//! 128. It is initialised near zero, where AFT-full equals AFT-simple.
//!
//! Cost: O(q_len·kv_len·d_model) time, as one matrix product for all of batch and channels; O(q_len·kv_len) memory for
//! w.

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder};
use tealight_ops::Reach;
use tealight_ops::aft::aft_full;
use tealight_ops::matmul::matmul_transposed;

use super::gate::{self, Aft, Gate, PairBiases};
use super::onnx::{self, Layer, Output};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

/// The initial values of w, or of each of its factors.
pub(super) const NEAR_ZERO: Init = Init::Randn { mean: 0., stdev: 0.01 };

settings! {
    /// `[model.attention] kind = "aft_full"`
    pub struct Config {
        /// Learn w = u vᵀ; otherwise a full matrix w.
        pub factorised: bool = true,
        /// The number of columns of u and v; the paper's is 128. Without effect unless `factorised`.
        pub rank: usize = 128,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.positive("rank", self.rank)?;
        let gate = Gate::build("aft_full", spec.d_model, spec, vb)?;
        let (q_len, kv_len) = (spec.max_q_len, spec.max_kv_len);
        let biases = if self.factorised {
            Biases::Factorised {
                u: vb.get_with_hints((q_len, self.rank), "u", NEAR_ZERO)?,
                v: vb.get_with_hints((kv_len, self.rank), "v", NEAR_ZERO)?,
            }
        } else {
            Biases::Dense { w: vb.get_with_hints((q_len, kv_len), "w", NEAR_ZERO)? }
        };
        Ok(Box::new(Aft { gate, biases }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (max_q_len, max_kv_len) = (spec.max_q_len as f64, spec.max_kv_len as f64);
        let (pairs, rank) = (q_len as f64 * kv_len as f64, self.rank as f64);
        let d_model = spec.d_model as f64;
        let (parameters, product) = if self.factorised {
            (rank * (max_q_len + max_kv_len), 2. * rank * pairs)
        } else {
            (max_q_len * max_kv_len, 0.)
        };
        let core = AttentionCost {
            parameters,
            // Numerator and denominator.
            flops: product + 2. * 2. * pairs * d_model,
            // w, and the denominators of all rows and channels.
            activations: pairs + 2. * d_model * q_len as f64,
        };
        gate::cost(spec, spec.d_model, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
        let rows = |name, positions| -> Result<Value> {
            Ok(graph.gather(&at.constant(graph, name)?, positions, 0))
        };
        let w = if self.factorised {
            let v = rows("v", &sequence.keys)?;
            graph.matmul(&rows("u", &sequence.queries)?, &graph.transpose(&v, [1, 0]))
        } else {
            graph.gather(&rows("w", &sequence.queries)?, &sequence.keys, 1)
        };
        onnx::gate::of_pairs(layer, x, &w)
    }
}

/// w for the longest sequences.
#[derive(Debug)]
enum Biases {
    Dense { w: Tensor },
    Factorised { u: Tensor, v: Tensor },
}

impl Biases {
    /// w for the actual lengths: `(q_len, kv_len)`
    fn w(&self, q_len: usize, kv_len: usize) -> Result<Tensor> {
        match self {
            Self::Dense { w } => w.narrow(0, 0, q_len)?.narrow(1, 0, kv_len),
            Self::Factorised { u, v } => {
                matmul_transposed(&u.narrow(0, 0, q_len)?, &v.narrow(0, 0, kv_len)?)
            }
        }
    }
}

impl PairBiases for Biases {
    fn mean(
        &self,
        [query, key, value]: &[Tensor; 3],
        padding: Option<&Tensor>,
        reach: Reach,
    ) -> Result<Tensor> {
        let (_batch, q_len, _d_model) = query.dims3()?;
        let (_batch, kv_len, _d_model) = key.dims3()?;
        aft_full(key, value, &self.w(q_len, kv_len)?, padding, reach)
    }

    fn dense(&self, q_len: usize, kv_len: usize) -> Result<Tensor> {
        self.w(q_len, kv_len)?.unsqueeze(0)
    }
}
