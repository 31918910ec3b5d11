//! Multi-head latent attention (DeepSeek-V2, Liu et al. 2024, <https://arxiv.org/abs/2405.04434>).
//!
//! ```text
//! c_t = RMSNorm(W^DKV x_t)                          the latent, of which keys and values are made      eq. (9)
//! k_t = [W^UK c_t; k^R_t],   k^R_t = RoPE(W^KR x_t)   one rotated part for all heads             eq. (10, 15, 17)
//! v_t = W^UV c_t                                                                                      eq. (11)
//! q_t = [W^UQ c^Q_t; RoPE(W^QR c^Q_t)],   c^Q_t = RMSNorm(W^DQ x_t), or x_t               eq. (12–14, 16)
//! o_t = softmax(q_tᵀ k / √(d_nope + d_rope)) v                                                  eq. (18, 19)
//! ```
//!
//! Decoding caches c and k^R alone: d_latent + d_rope numbers a position for all heads. W^UK is multiplied into the query
//! and W^UV into the output, so that queries read the latents themselves and no key or value is formed:
//!
//! ```text
//! q_nopeᵀ W^UK c = (W^UKᵀ q_nope)ᵀ c,     Σ_j p_j W^UV c_j = W^UV Σ_j p_j c_j
//! ```
//!
//! The norms, ε = 1e-6, are in the authors' code and a remark in the paper. All maps but the output's are without bias, as
//! there. With rotary positions, the parts of `d_rope` are rotated; without them they are like the others (as
//! `kimi_linear` has them). The defaults keep the paper's proportions, 512 / 64 / 128 / 128.
//!
//! Cost: that of softmax attention with keys of d_nope + d_rope, O(T²·n_heads·(d_nope + d_rope + d_value)) time, O(T)
//! memory; a decoding step reads O(T·(d_latent + d_rope)) numbers.

use candle_core::{Result, Tensor, bail};
use candle_nn::{VarBuilder, init};
use tealight_ops::attention::{Layout, Options, attention, weights};
use tealight_ops::norm::rms_norm;
use tealight_ops::reshape;

use super::cache::{self, CachedLayer};
use super::projection::{concat_heads, merge_heads};
use super::short_convolution::{self, Before, ShortConvolution};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    Memory, Reads,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::position::rotary::Rotary;

const EPSILON: f64 = 1e-6;

settings! {
    /// `[model.attention] kind = "mla"`
    pub struct Config {
        /// Width of the latent; 4·head_dim when absent.
        pub d_latent: Option<usize> = None,
        /// Width of the latent of queries; they are made of the stream itself when absent.
        pub d_query_latent: Option<usize> = None,
        /// Width of the part of queries and keys that is not rotated; head_dim when absent.
        pub d_nope: Option<usize> = None,
        /// Width of the rotated part, which all heads share; head_dim/2 when absent.
        pub d_rope: Option<usize> = None,
        /// Width of a value; head_dim when absent.
        pub d_value: Option<usize> = None,
        /// Tokens that convolutions behind the maps of the latent (before its norm), of the rotated key and of the query read,
        /// in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

/// All widths.
#[derive(Clone, Copy, Debug)]
struct Widths {
    n_heads: usize,
    latent: usize,
    query_latent: Option<usize>,
    nope: usize,
    rope: usize,
    value: usize,
}

impl Config {
    fn widths(&self, spec: &AttentionSpec<'_>) -> Widths {
        let head_dim = spec.head_dim();
        Widths {
            n_heads: spec.n_heads,
            latent: self.d_latent.unwrap_or(head_dim.saturating_mul(4)),
            query_latent: self.d_query_latent,
            nope: self.d_nope.unwrap_or(head_dim),
            rope: self.d_rope.unwrap_or(head_dim / 2),
            value: self.d_value.unwrap_or(head_dim),
        }
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.refuse_memory("mla", "its cache holds the latents of its own sequence")?;
        let widths = self.widths(spec);
        let Widths { n_heads, latent, query_latent, nope, rope, value } = widths;
        for (setting, width) in [
            ("d_latent", latent),
            ("d_query_latent", query_latent.unwrap_or(1)),
            ("d_nope", nope),
            ("d_rope", rope),
            ("d_value", value),
        ] {
            spec.positive(setting, width)?;
        }
        let map = |name: &str, [n_in, n_out]: [usize; 2]| {
            Linear::build([n_in, n_out], Bias::Without, spec.init.weight(n_in), &vb.pp(name))
        };
        let norm = |name: &str, width| vb.pp(name).get_with_hints(width, "weight", init::ONE);
        let d_query = query_latent.unwrap_or(spec.d_model);
        let up = |name: &str, width: usize| {
            let shape = (n_heads * width, latent);
            vb.pp(name).get_with_hints(shape, "weight", spec.init.weight(latent))
        };
        let convolution =
            |name, width| ShortConvolution::build(name, width, (spec.conv_size, Bias::Without), vb);
        let query_latent = query_latent.map(|width| {
            Result::Ok((
                map("query_latent", [spec.d_model, width])?,
                norm("query_latent_norm", width)?,
            ))
        });
        Ok(Box::new(LatentAttention {
            widths,
            reads: spec.reads,
            rotary: spec.rotary_of("mla", &format!("`{}.d_rope`", spec.key), rope)?,
            latent: map("latent", [spec.d_model, latent])?,
            latent_norm: norm("latent_norm", latent)?,
            rotated_key: map("rotated_key", [spec.d_model, rope])?,
            key: up("key", nope)?,
            value: up("value", value)?,
            query_latent: query_latent.transpose()?,
            query: map("query", [d_query, n_heads * nope])?,
            rotated_query: map("rotated_query", [d_query, n_heads * rope])?,
            convolutions: [
                convolution("latent", latent)?,
                convolution("rotated_key", rope)?,
                convolution("query", n_heads * (nope + rope))?,
            ],
            dropout: Dropout::new(spec.dropout, vb),
            output: Linear::build(
                [n_heads * value, spec.d_model],
                spec.bias,
                spec.init.residual_weight(n_heads * value),
                &vb.pp("output"),
            )?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let Widths { n_heads, latent, query_latent, nope, rope, value } = self.widths(spec);
        let [n_heads, latent, nope, rope, value, d_model, q_len, kv_len] =
            [n_heads, latent, nope, rope, value, spec.d_model, q_len, kv_len].map(|n| n as f64);
        let query_latent = query_latent.map(|width| width as f64);
        let d_query = query_latent.unwrap_or(d_model);
        let of_queries = query_latent.map_or(0., |width| d_model * width)
            + d_query * n_heads * (nope + rope)
            + n_heads * value * d_model;
        let of_keys = d_model * (latent + rope) + latent * n_heads * (nope + value);
        let bias = if spec.bias == Bias::With { d_model } else { 0. };
        let pairs = n_heads * (nope + rope + value);
        let channels = latent + rope + n_heads * (nope + rope);
        let convolutions = short_convolution::cost(spec, channels as usize, kv_len as usize);
        convolutions
            + AttentionCost {
                parameters: of_queries + of_keys + latent + query_latent.unwrap_or(0.) + bias,
                flops: 2. * (of_queries * q_len + of_keys * kv_len + pairs * q_len * kv_len),
                activations: (2. * n_heads * (nope + rope + value + 1.) + d_model) * q_len
                    + (2. * n_heads * (nope + rope + value) + 3. * latent) * kv_len,
            }
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}

#[derive(Debug)]
struct LatentAttention {
    widths: Widths,
    reads: Reads,
    rotary: Option<Rotary>,
    latent: Linear,
    latent_norm: Tensor,
    rotated_key: Linear,
    /// W^UK, `(n_heads·d_nope, d_latent)`
    key: Tensor,
    /// W^UV, `(n_heads·d_value, d_latent)`
    value: Tensor,
    query_latent: Option<(Linear, Tensor)>,
    query: Linear,
    rotated_query: Linear,
    /// Of the latent, the rotated key, and both parts of the query.
    convolutions: [Option<ShortConvolution>; 3],
    dropout: Dropout,
    output: Linear,
}

impl LatentAttention {
    /// `(batch, len, heads·width)` → `(batch, len, heads, width)`
    fn heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
        let (batch, len, width) = x.dims3()?;
        reshape(x, (batch, len, n_heads, width / n_heads))
    }

    fn rotated(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        match &self.rotary {
            Some(rotary) => rotary.forward_heads_last(x, start),
            None => Ok(x.clone()),
        }
    }

    /// c and k^R, `(batch, len, d_latent)` and `(batch, len, 1, d_rope)`
    fn latents(&self, x: &Tensor, start: usize, before: &mut Before<'_>) -> Result<[Tensor; 2]> {
        let [latent, key] = Linear::forward_all([&self.latent, &self.rotated_key], x)?;
        let [of_latent, of_key, _] = &self.convolutions;
        let latent = ShortConvolution::activated(of_latent.as_ref(), &latent, before)?;
        let key = ShortConvolution::activated(of_key.as_ref(), &key, before)?;
        let latent = rms_norm(&latent, &self.latent_norm, EPSILON)?;
        Ok([latent, self.rotated(&Self::heads(&key, 1)?, start)?])
    }

    /// Keys `(batch, len, n_heads, d_nope + d_rope)` of c and k^R.
    fn keys(&self, latent: &Tensor, rotated: &Tensor) -> Result<Tensor> {
        let Widths { n_heads, rope, .. } = self.widths;
        let key = Self::heads(&tealight_ops::linear::linear(latent, &self.key, None)?, n_heads)?;
        let (batch, len, ..) = key.dims4()?;
        Tensor::cat(&[&key, &rotated.broadcast_as((batch, len, n_heads, rope))?], 3)
    }

    fn options<'a>(&self, layout: Layout, mask: &'a Mask, mode: Mode) -> Options<'a> {
        Options {
            scale: Some(1. / ((self.widths.nope + self.widths.rope) as f64).sqrt()),
            causal: self.reads == Reads::Past,
            dropout: self.dropout.draw(mode),
            key_padding_mask: mask.key_padding_mask(),
            segments: mask.segments(),
            attn_mask: mask.attn_mask(),
            layout,
            ..Options::default()
        }
    }
}

impl Attention for LatentAttention {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(self.reads)?;
        let mut before = Before::whole(input.mask);
        let [latent, rotated] = self.latents(x, 0, &mut before)?;
        let value = tealight_ops::linear::linear(&latent, &self.value, None)?;
        let value = Self::heads(&value, self.widths.n_heads)?;
        let query = self.queries(x, 0, &mut before)?;
        let key = self.keys(&latent, &rotated)?;
        let options = self.options(Layout::HeadsLast, input.mask, input.mode);
        self.output.forward(&concat_heads(&attention(&query, &key, &value, &options)?)?)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(self.reads)?;
        let mut before = Before::whole(input.mask);
        let [latent, rotated] = self.latents(x, 0, &mut before)?;
        let query = self.queries(x, 0, &mut before)?;
        let options = self.options(Layout::HeadsLast, input.mask, Mode::Eval);
        weights(&query, &self.keys(&latent, &rotated)?, &options)
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl CachedLayer for LatentAttention {
    fn reads(&self) -> Reads {
        self.reads
    }

    /// `(batch, q_len, n_heads, d_nope + d_rope)`
    fn queries(&self, x: &Tensor, start: usize, before: &mut Before<'_>) -> Result<Tensor> {
        let latent = match &self.query_latent {
            Some((map, norm)) => rms_norm(&map.forward(x)?, norm, EPSILON)?,
            None => x.clone(),
        };
        let maps = [&self.query, &self.rotated_query];
        let [query, rotated] = Linear::forward_all(maps, &latent)?;
        let [.., of_query] = &self.convolutions;
        let (mut query, mut rotated) = (query, rotated);
        if let Some(convolution) = of_query {
            let (width, both) = (query.dim(2)?, Tensor::cat(&[&query, &rotated], 2)?);
            let both = ShortConvolution::activated(Some(convolution), &both, before)?;
            let rest = both.dim(2)? - width;
            query = both.narrow(2, 0, width)?.contiguous()?;
            rotated = both.narrow(2, width, rest)?.contiguous()?;
        }
        let rotated = self.rotated(&Self::heads(&rotated, self.widths.n_heads)?, start)?;
        Tensor::cat(&[&Self::heads(&query, self.widths.n_heads)?, &rotated], 3)
    }

    /// c beside k^R, `(batch, len, d_latent + d_rope)`.
    fn cached(
        &self,
        source: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<Vec<Tensor>> {
        let [latent, rotated] = self.latents(source, start, before)?;
        Ok(vec![Tensor::cat(&[&latent, &rotated.squeeze(2)?], 2)?])
    }

    /// The absorbed form.
    fn attend(&self, query: &Tensor, cached: &[Tensor], mask: &Mask, mode: Mode) -> Result<Tensor> {
        let [latents] = cached else { bail!("a cache of {} tensors", cached.len()) };
        let Widths { n_heads, latent, nope, rope, value, .. } = self.widths;
        let query = query.transpose(1, 2)?; // (batch, n_heads, q_len, d_nope + d_rope)
        let up = |weight: &Tensor, width| weight.reshape((1, n_heads, width, latent));
        let absorbed = query.narrow(3, 0, nope)?.contiguous()?;
        let absorbed = absorbed.broadcast_matmul(&up(&self.key, nope)?)?;
        let query = Tensor::cat(&[&absorbed, &query.narrow(3, nope, rope)?.contiguous()?], 3)?;
        let key = latents.unsqueeze(1)?; // one head for all queries
        let options = self.options(Layout::HeadsFirst, mask, mode);
        let context = attention(&query, &key, &key.narrow(3, 0, latent)?, &options)?;
        let context = context.broadcast_matmul(&up(&self.value, value)?.t()?)?;
        merge_heads(&context)
    }

    fn output(&self, _x: &Tensor, heads: &Tensor) -> Result<Tensor> {
        self.output.forward(heads)
    }
}
