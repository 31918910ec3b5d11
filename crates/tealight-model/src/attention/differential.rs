//! Differential attention (Ye et al. 2025, <https://arxiv.org/abs/2410.05258>).
//!
//! ```text
//! [Q₁; Q₂] = X W^Q,  [K₁; K₂] = X W^K,  V = X W^V              two halves of D in each head of 2D
//! headᵢ = (softmax(Q₁ K₁ᵀ / √D) − λ softmax(Q₂ K₂ᵀ / √D)) V                                eq. (1)
//! λ = e^(λ_q1·λ_k1) − e^(λ_q2·λ_k2) + λ_init                                                eq. (2)
//! y = Concat((1 − λ_init) RMSNorm(head₁), …) W^O                                            eq. (3)
//! λ_init = 0.8 − 0.6 e^(−0.3 l)                                 l layers stand before this one
//! ```
//!
//! What both halves give to a key cancels, as noise does between two microphones. The vectors λ (D) are drawn from
//! N(0, 0.1) and shared by the heads of a layer, as is the gain of the norm (2D), ε = 1e-5. A head has two halves, so a
//! model of this width takes half as many heads as with softmax attention.
//!
//! As in `unilm`, halves are neighbours: heads 2h and 2h + 1 of D. `transformers` (`diffllama`) pairs heads h and h + H,
//! rotates pairs (i, i + D/2), and has a norm without gain. Rotary positions rotate each half by itself. The paper has
//! no dropout on the weights; here it acts on the normed heads.
//!
//! Cost: that of two softmax attentions of width D over values of 2D, O(T²·d_model) time, O(T·d_model) memory.

use candle_core::{Result, Tensor, bail};
use candle_nn::{VarBuilder, init};
use tealight_ops::attention::{Layout, Options, attention, weights};
use tealight_ops::norm::rms_norm;
use tealight_ops::reshape;

use super::cache::{self, CachedLayer};
use super::projection::{self, Maps, concat_heads};
use super::short_convolution::Before;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    Memory, Reads, RowSum,
};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult};
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::init::normal;
use crate::position::rotary::Rotary;

const EPSILON: f64 = 1e-5;

settings! {
    /// `[model.attention] kind = "differential"`
    pub struct Config {
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        let head_dim = spec.head_dim();
        if !head_dim.is_multiple_of(2) {
            let message = format!(
                "`{}.kind` = \"differential\" needs heads of an even width, not `model.head_dim` = {head_dim}, because \
                 each has two halves",
                spec.key
            );
            return Err(BuildError::config(
                ["model.head_dim", &format!("{}.kind", spec.key)],
                message,
            ));
        }
        let vector = |name| vb.get_with_hints(head_dim / 2, name, normal(0.1));
        Ok(Box::new(Differential {
            maps: Maps::build(spec, [spec.d_heads(); 3], vb)?,
            rotary: spec.rotary_of("differential", "half of `model.head_dim`", head_dim / 2)?,
            n_heads: spec.n_heads,
            first: [vector("lambda_q1")?, vector("lambda_k1")?],
            second: [vector("lambda_q2")?, vector("lambda_k2")?],
            initial: 0.8 - 0.6 * (-0.3 * spec.layer.index as f64).exp(),
            norm: vb.pp("norm").get_with_hints(head_dim, "weight", init::ONE)?,
            dropout: Dropout::new(spec.dropout, vb),
            output: projection::output(spec, vb)?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_heads, pairs) = (spec.d_heads() as f64, q_len as f64 * kv_len as f64);
        let core = AttentionCost {
            parameters: 3. * spec.head_dim() as f64,
            // Two halves of products, and two weighted sums of whole values; the difference and its norm.
            flops: 6. * pairs * d_heads + 8. * d_heads * q_len as f64,
            activations: (4. * spec.n_heads as f64 + 4. * d_heads) * q_len as f64,
        };
        projection::cost(spec, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}

#[derive(Debug)]
struct Differential {
    maps: Maps,
    rotary: Option<Rotary>,
    n_heads: usize,
    /// λ_q1 and λ_k1, `(head_dim/2)` each.
    first: [Tensor; 2],
    second: [Tensor; 2],
    /// λ_init
    initial: f64,
    /// The gain of the norm, `(head_dim)`.
    norm: Tensor,
    dropout: Dropout,
    output: Linear,
}

impl Differential {
    /// λ, one number.
    fn lambda(&self) -> Result<Tensor> {
        let power = |[query, key]: &[Tensor; 2]| (query * key)?.sum_all()?.exp();
        (power(&self.first)? - power(&self.second)?)? + self.initial
    }

    /// `(batch, len, n_heads·head_dim)` → `(batch, len, 2·n_heads, head_dim/2)`, rotated.
    fn halves(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let (batch, len, width) = x.dims3()?;
        let x = reshape(x, (batch, len, 2 * self.n_heads, width / (2 * self.n_heads)))?;
        match &self.rotary {
            Some(rotary) => rotary.forward_heads_last(&x, start),
            None => Ok(x),
        }
    }

    fn options<'a>(&self, mask: &'a Mask) -> Options<'a> {
        Options {
            causal: self.maps.reads == Reads::Past,
            key_padding_mask: mask.key_padding_mask(),
            segments: mask.segments(),
            attn_mask: mask.attn_mask(),
            layout: Layout::HeadsLast,
            ..Options::default()
        }
    }
}

/// Half `i` of each head: `(batch, len, 2·n_heads, head_dim/2)` → `(batch, len, n_heads, head_dim/2)`, a view.
fn half(x: &Tensor, i: usize) -> Result<Tensor> {
    let (batch, len, n_halves, width) = x.dims4()?;
    reshape(x, (batch, len, n_halves / 2, 2, width))?.narrow(3, i, 1)?.squeeze(3)
}

impl Attention for Differential {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let source = input.source(self.maps.reads)?;
        let mut before = Before::whole(input.mask);
        let cached = self.cached(source, 0, &mut before)?;
        let query = self.queries(input.x, 0, &mut before)?;
        let heads = self.attend(&query, &cached, input.mask, input.mode)?;
        self.output.forward(&heads)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let mut before = Before::whole(input.mask);
        let source = input.source(self.maps.reads)?;
        let [key, _value] = self.maps.keys_and_values(source, &mut before)?;
        let (query, key) = (self.queries(input.x, 0, &mut before)?, self.halves(&key, 0)?);
        let of = |i| weights(&half(&query, i)?, &half(&key, i)?, &self.options(input.mask));
        of(0)? - of(1)?.broadcast_mul(&self.lambda()?)?
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl CachedLayer for Differential {
    fn reads(&self) -> Reads {
        self.maps.reads
    }

    fn queries(&self, x: &Tensor, start: usize, before: &mut Before<'_>) -> Result<Tensor> {
        self.halves(&self.maps.queries(x, before)?, start)
    }

    fn cached(
        &self,
        source: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<Vec<Tensor>> {
        let [key, value] = self.maps.keys_and_values(source, before)?;
        let (batch, len, width) = value.dims3()?;
        let value = reshape(&value, (batch, len, self.n_heads, width / self.n_heads))?;
        Ok(vec![self.halves(&key, start)?, value])
    }

    fn attend(&self, query: &Tensor, cached: &[Tensor], mask: &Mask, mode: Mode) -> Result<Tensor> {
        let [key, value] = cached else { bail!("a cache of {} tensors", cached.len()) };
        let of = |i| attention(&half(query, i)?, &half(key, i)?, value, &self.options(mask));
        let difference = (of(0)? - of(1)?.broadcast_mul(&self.lambda()?)?)?;
        let normed = (rms_norm(&difference, &self.norm, EPSILON)? * (1. - self.initial))?;
        self.dropout.forward(&concat_heads(&normed)?, mode)
    }

    fn output(&self, _x: &Tensor, heads: &Tensor) -> Result<Tensor> {
        self.output.forward(heads)
    }
}
