//! Linformer (Wang et al. 2020, <https://arxiv.org/abs/2006.04768>): keys and values are mixed to a fixed number of rows.
//!
//! ```text
//! headᵢ = softmax(Qᵢ (E Kᵢ)ᵀ / √head_dim) · F Vᵢ                E, F (rank, max_kv_len)
//! ```
//!
//! E and F belong to absolute positions and are shared by all heads (§4, "headwise sharing"); a shorter sequence uses their
//! first columns. Padded keys and values are zeros. A row of E K mixes all positions, so no query can be kept from one of
//! them: causality, packed documents and biases of pairs are refused, and rotated keys would be mixed over their angles.
//!
//! Cost: O(T·rank·d_model) time, O(T·d_model) memory, and 2·rank·max_kv_len parameters.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::attention::{Layout, Options, attention, weights};
use tealight_ops::swap_axes::swap_axes;

use super::projection::{self, Heads, Projection, concat_heads};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, RowSum,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::mode::Mode;

settings! {
    /// `[model.attention] kind = "linformer"`
    pub struct Config {
        /// Rows of E and F. The paper's is 128 for sequences of 512 and 256 for 1,024.
        pub rank: usize = 128,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        let why = "a row of its keys mixes all positions";
        spec.refuse_causal("linformer", why)?;
        spec.refuse_rotary("linformer", why)?;
        spec.refuse_score_bias("linformer", why)?;
        spec.refuse_segments("linformer", why)?;
        spec.positive("rank", self.rank)?;
        let rows = |name: &str| {
            let shape = (self.rank, spec.max_kv_len);
            vb.pp(name).get_with_hints(shape, "weight", spec.init.weight(spec.max_kv_len))
        };
        Ok(Box::new(Linformer {
            projection: Projection::build(spec, vb, Heads::default())?,
            of_keys: rows("key_mix")?,
            of_values: rows("value_mix")?,
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (rank, d_heads) = (self.rank as f64, spec.d_heads() as f64);
        let core = AttentionCost {
            parameters: 2. * rank * spec.max_kv_len as f64,
            flops: 4. * rank * d_heads * (q_len + kv_len) as f64,
            activations: 2. * rank * d_heads + 2. * spec.n_heads as f64 * q_len as f64,
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }
}

#[derive(Debug)]
struct Linformer {
    projection: Projection,
    /// E
    of_keys: Tensor,
    /// F
    of_values: Tensor,
    dropout: Dropout,
    output: Linear,
}

/// The first columns of `mix (rank, max_kv_len)`, `(batch, rank, kv_len)`, with zeros at padding.
fn without_padding(mix: &Tensor, kv_len: usize, input: &AttentionInput<'_>) -> Result<Tensor> {
    let (batch, ..) = input.x.dims3()?;
    let (rank, _max_kv_len) = mix.dims2()?;
    let mix = mix.narrow(1, 0, kv_len)?.unsqueeze(0)?.broadcast_as((batch, rank, kv_len))?;
    let Some(padding) = input.mask.padding_only()? else { return mix.contiguous() };
    let padding = padding.unsqueeze(1)?.broadcast_as((batch, rank, kv_len))?;
    padding.where_cond(&mix.zeros_like()?, &mix)
}

impl Linformer {
    /// Queries `(batch, q_len, n_heads, head_dim)`, E K and F V `(batch, rank, n_heads, head_dim)`, and F without padding.
    fn project(&self, input: &AttentionInput<'_>) -> Result<[Tensor; 4]> {
        let [query, key, value] = self.projection.project_rotated(input)?;
        let (batch, kv_len, n_heads, head_dim) = key.dims4()?;
        let mixed = |mix: &Tensor, x: &Tensor| {
            let (_batch, rank, _kv_len) = mix.dims3()?;
            mix.matmul(&concat_heads(x)?)?.reshape((batch, rank, n_heads, head_dim))
        };
        let of_keys = without_padding(&self.of_keys, kv_len, input)?;
        let of_values = without_padding(&self.of_values, kv_len, input)?;
        Ok([query, mixed(&of_keys, &key)?, mixed(&of_values, &value)?, of_values])
    }
}

impl Attention for Linformer {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, value, _mix] = self.project(input)?;
        let options = Options {
            dropout: self.dropout.draw(input.mode),
            layout: Layout::HeadsLast,
            ..Options::default()
        };
        self.output.forward(&concat_heads(&attention(&query, &key, &value, &options)?)?)
    }

    /// softmax(Q (E K)ᵀ / √head_dim) F
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value, mix] =
            self.project(&AttentionInput { mode: Mode::Eval, ..*input })?;
        let (query, key) = (swap_axes(&query)?, swap_axes(&key)?);
        weights(&query, &key, &Options::default())?.broadcast_matmul(&mix.unsqueeze(1)?)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }
}
