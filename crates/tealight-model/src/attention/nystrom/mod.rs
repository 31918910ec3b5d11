//! Nyström attention: softmax attention approximated through a few landmarks, in linear time (Xiong et al.
//! 2021, <https://arxiv.org/abs/2102.03902>).
//!
//! ```text
//! softmax(Q K̃ᵀ / √head_dim) Z softmax(Q̃ Kᵀ / √head_dim) V + DConv(V)                  eq. (13), §3.3
//!     Q̃, K̃   means of n_landmarks segments of the queries and of the keys
//!     Z       approximates the inverse of softmax(Q̃ K̃ᵀ / √head_dim) by n_iterations steps      eq. (11)
//!     DConv   convolution along the sequence, with a kernel per head
//! ```
//!
//! Cost: O(seq_len·n_landmarks·d_model) time, O(seq_len·n_landmarks) memory per head.
//!
//! A sequence of at most `n_landmarks` positions gets exact softmax attention. Padding has no influence on
//! real positions, except under `compat`. The layer cannot be causal, since a landmark averages a segment
//! that may contain later positions. It cannot be cross-attention either: there the queries are a decoder's,
//! and the landmarks of the queries would contain its later positions. As under softmax, the bias of the key
//! map has no effect; its gradient is zero up to rounding.

mod onnx;

use candle_core::{D, Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::depthwise_convolution::depthwise_convolution;
use tealight_ops::nystrom::{self, Settings};

use super::onnx::{Layer, Output};
use super::projection::{self, Heads, Projection, merge_heads};
use super::reduces_to::ReducesTo;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, RowSum,
};
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::onnx_graph::{OnnxResult, Value};

const KIND: &str = "nystrom";

/// With more iterations the rounding error of the inverse exceeds about 0.1 in f32, see
/// [`pseudo_inverse`](nystrom::pseudo_inverse).
const MAX_ITERATIONS: usize = 12;

settings! {
    /// `[model.attention] kind = "nystrom"`
    pub struct Config {
        /// Number of landmarks. Sequences that are not longer get exact softmax attention.
        pub n_landmarks: usize = Settings::default().n_landmarks,
        /// Iterations of the approximate inverse, from 1 to 12.
        pub n_iterations: usize = Settings::default().n_iterations,
        /// Width of the convolution over the values in positions, odd (33 and more in the paper's code). No
        /// convolution when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub conv_kernel: Option<usize> = None,
        /// Which implementation of the paper to follow.
        pub compat: Compat = Compat::None,
        /// The length of all sequences, a multiple of `n_landmarks`; any length when absent. It is
        /// `segment_means_seq_len` of `transformers`, which fails at another length or merges two rows into
        /// one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub seq_len: Option<usize> = None,
    }
}

names! {
    /// Which implementation of the paper to follow.
    pub enum Compat {
        /// Our own: no example depends on another one or on padding.
        "none" => None,
        /// `transformers`: the first iterate of the inverse depends on the whole batch, and padding is
        /// masked only for the queries of the landmarks.
        "hf" => HuggingFace,
        /// The same, but the first iterate depends on its own matrix alone: `inv_coeff_init_option` of
        /// `transformers`.
        "hf_exact" => HuggingFaceExact,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        self.validate(spec)?;
        let convolution = self.conv_kernel.map(|kernel| {
            let init = spec.init.weight(kernel);
            vb.pp("conv").get_with_hints((spec.n_heads, 1, kernel, 1), "weight", init)
        });
        Ok(Box::new(Nystrom {
            projection: Projection::build(spec, vb, Heads::default())?,
            output: projection::output(spec, vb)?,
            convolution: convolution.transpose()?,
            settings: self.settings(),
            compat: self.compat,
            seq_len: self.seq_len,
            dropout: Dropout::new(spec.dropout, vb),
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_heads, n_heads) = (spec.d_heads() as f64, spec.n_heads as f64);
        let (len, n_landmarks) = (kv_len as f64, self.n_landmarks.min(kv_len) as f64);
        let kernel = self.conv_kernel.unwrap_or(0);
        let (kernel, n_taps) = (kernel as f64, n_taps(kernel, kv_len) as f64);
        let pairs = len * n_landmarks;
        let convolution = AttentionCost {
            parameters: n_heads * kernel,
            flops: 2. * len * n_taps * d_heads,
            activations: if kernel > 0. { 2. * len * d_heads } else { 0. },
        };
        // kernel_1: its scores, softmax and product.
        let exact = AttentionCost {
            parameters: 0.,
            flops: 2. * 2. * pairs * d_heads,
            activations: 2. * n_heads * pairs,
        };
        let approximate = AttentionCost {
            parameters: 0.,
            // kernel_3 and its product, kernel_2 and the product with its inverse, the iterations.
            flops: 2. * 2. * (pairs + n_landmarks.powi(2)) * d_heads
                + self.n_iterations as f64 * 4. * 2. * n_landmarks.powi(3) * n_heads,
            // kernel_3 and kernel_2 with their scores, the inverse, the landmarks and products of their shape.
            activations: n_heads * (2. * pairs + 3. * n_landmarks.powi(2))
                + 4. * n_landmarks * d_heads,
        };
        let approximate =
            if kv_len > self.n_landmarks { approximate } else { AttentionCost::default() };
        projection::cost(spec, [q_len, kv_len]) + exact + approximate + convolution
    }

    fn required_len(&self) -> Option<usize> {
        self.seq_len
    }

    fn ignores_padding(&self) -> bool {
        self.compat == Compat::None && self.seq_len.is_none()
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        let effect = format!("is not less than the {len} positions of a sequence");
        let softmax = ReducesTo::softmax("n_landmarks", &self.n_landmarks, &effect);
        let reduces_to = match self.conv_kernel {
            Some(_) => ReducesTo { instead: "softmax attention with a convolution", ..softmax },
            None => softmax,
        };
        (self.n_landmarks >= len).then_some(reduces_to)
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        onnx::attention(layer, x, self).map(Some)
    }
}

impl Config {
    fn validate(&self, spec: &AttentionSpec<'_>) -> BuildResult<()> {
        spec.refuse_causal(KIND, "a landmark is a mean over positions of the future, too")?;
        let why = "the landmarks of its queries are means over later positions, too";
        spec.refuse_memory(KIND, why)?;
        spec.refuse_score_bias(KIND, "it never forms the scores between two positions")?;
        spec.refuse_segments(KIND, "its landmarks are means over neighbouring documents, too")?;
        spec.positive("n_landmarks", self.n_landmarks)?;
        spec.positive("n_iterations", self.n_iterations)?;
        if self.n_iterations > MAX_ITERATIONS {
            let n = self.n_iterations;
            let rule = format!(
                "= {n} must be at most {MAX_ITERATIONS}: each step multiplies rounding errors by 13/4"
            );
            return Err(spec.invalid("n_iterations", &rule));
        }
        if let Some(seq_len) = self.seq_len {
            self.validate_len(spec, seq_len)?;
        }
        match self.conv_kernel {
            Some(kernel) if kernel.is_multiple_of(2) => {
                let rule = format!("= {kernel} must be odd, so that it has a middle");
                Err(spec.invalid("conv_kernel", &rule))
            }
            _ => Ok(()),
        }
    }

    fn validate_len(&self, spec: &AttentionSpec<'_>, seq_len: usize) -> BuildResult<()> {
        let (n_landmarks, max) = (self.n_landmarks, spec.max_kv_len);
        if seq_len == 0 || !seq_len.is_multiple_of(n_landmarks) {
            let rule = format!("= {seq_len} must be a multiple of `n_landmarks` = {n_landmarks}");
            return Err(spec.invalid("seq_len", &rule));
        }
        if seq_len > max {
            let rule = format!("= {seq_len} is more than the {max} positions that the model holds");
            return Err(spec.invalid("seq_len", &rule));
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        let Self { n_landmarks, n_iterations, .. } = *self;
        let settings = Settings { n_landmarks, n_iterations, ..Settings::default() };
        match self.compat {
            Compat::None => settings,
            Compat::HuggingFace => settings.transformers(),
            Compat::HuggingFaceExact => {
                Settings { normalisation: settings.normalisation, ..settings.transformers() }
            }
        }
    }
}

/// Taps of a kernel that can meet a sequence of `len`, whose positions are at most len − 1 apart.
fn n_taps(kernel: usize, len: usize) -> usize {
    kernel.min((2 * len).saturating_sub(1))
}

/// The middle taps of `weight (n_heads, 1, kernel, 1)` that can meet a sequence of `len`: the others would
/// only cost time and memory.
fn taps_within(weight: &Tensor, len: usize) -> Result<Tensor> {
    let (_n_heads, _one, kernel, _width) = weight.dims4()?;
    let n_taps = n_taps(kernel, len);
    weight.narrow(2, (kernel - n_taps) / 2, n_taps)
}

/// Attention through landmarks.
#[derive(Debug)]
pub struct Nystrom {
    projection: Projection,
    output: Linear,
    /// `(n_heads, 1, kernel, 1)`
    convolution: Option<Tensor>,
    settings: Settings,
    compat: Compat,
    seq_len: Option<usize>,
    dropout: Dropout,
}

impl Attention for Nystrom {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let padding = input.mask.padding_only()?;
        let [query, key, value] = self.project(input)?; // (batch, n_heads, len, head_dim)
        let mut context = nystrom::attention(&query, &key, &value, &self.settings, padding)?;
        if let Some(weight) = &self.convolution {
            let padding = padding.filter(|_| self.compat == Compat::None);
            let weight = taps_within(weight, value.dim(D::Minus2)?)?;
            context = (context + depthwise_convolution(&value, &weight, padding)?)?;
        }
        let context = self.dropout.forward(&merge_heads(&context)?, input.mode)?;
        self.output.forward(&context)
    }

    fn heads(&self, input: &AttentionInput<'_>) -> Result<Option<[Tensor; 3]>> {
        self.projection.project_rotated(input).map(Some)
    }

    /// The product of the three matrices, without the convolution.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value] = self.project(input)?;
        nystrom::weights(&query, &key, &self.settings, input.mask.padding_only()?)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }

    /// The three matrices of the product, and the matrix whose inverse the second approximates; none for
    /// sequences that get exact softmax attention.
    fn factors(&self, input: &AttentionInput<'_>) -> Result<Vec<(&'static str, Tensor)>> {
        let [query, key, _value] = self.project(input)?;
        let (_batch, _n_heads, len, _head_dim) = query.dims4()?;
        if len <= self.settings.n_landmarks {
            return Ok(Vec::new());
        }
        let factors = nystrom::factors(&query, &key, &self.settings, input.mask.padding_only()?)?;
        Ok(vec![
            ("kernel_1", factors.kernel_1),
            ("inverse", factors.inverse),
            ("kernel_3", factors.kernel_3),
            ("kernel_2", factors.kernel_2),
        ])
    }
}

impl Nystrom {
    fn project(&self, input: &AttentionInput<'_>) -> Result<[Tensor; 3]> {
        let [query, key, value] = self.projection.project(input)?;
        let len = query.dim(D::Minus2)?;
        if let Some(seq_len) = self.seq_len.filter(|&seq_len| seq_len != len) {
            bail!("a sequence of {len} positions: this attention is for {seq_len} (`seq_len`)")
        }
        Ok([self.projection.rotated(&query, 0)?, self.projection.rotated(&key, 0)?, value])
    }
}
