//! AFT-conv (Zhai et al. 2021, <https://arxiv.org/abs/2105.14103>).
//!
//! ```text
//! Y_t = σ(Q_t) ⊙ Σ_t' exp(K_t' + w_t'−t) ⊙ V_t' / Σ_t' exp(K_t' + w_t'−t),   w = 0 outside the filter      eq. (5)
//! w   = γ (w̃ − mean w̃) / std w̃ + β                                                                       per head
//! ```
//!
//! The channels of a head share one filter and one channel of K, so K has n_heads channels. The reparametrisation
//! learns the filter's scale γ and mean β separately; γ is initialised near zero, as w is in AFT-full, and β to zero.
//! std divides by the kernel size and has no ε, so a filter of one tap, whose std is 0, is refused.
//!
//! A causal layer drops the taps on later positions; their w̃ still counts in mean and std.
//!
//! Cost: O(seq_len·kernel_size·d_model) time, O(seq_len·d_model) memory.

use candle_core::{D, Result, Tensor};
use candle_nn::{Init, VarBuilder, init};
use tealight_ops::Reach;
use tealight_ops::aft;

use super::aft_full::NEAR_ZERO;
use super::gate::{self, Aft, Gate, PairBiases};
use super::onnx::gate::{Maps, Taps, gated};
use super::onnx::{Layer, Output, heads};
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

names! {
    /// Where a filter lies relative to its position.
    pub enum Alignment as aft::Alignment {
        /// Around the position.
        "centred" => Centred,
        /// At the position and before it.
        "left" => Left,
    }
}

settings! {
    /// `[model.attention] kind = "aft_conv"`
    pub struct Config {
        /// Taps of a filter: odd, at least 3.
        pub kernel_size: usize = 11,
        /// Where the filter lies. The paper centres it; a causal layer uses all of its taps only under `left`.
        pub alignment: Alignment = Alignment::Centred,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        if self.kernel_size < 3 || self.kernel_size.is_multiple_of(2) {
            let rule = format!("= {} must be odd and at least 3", self.kernel_size);
            return Err(spec.invalid("kernel_size", &rule));
        }
        let why = "a filter around a position needs keys at the same positions";
        spec.refuse_memory("aft_conv", why)?;
        let filter = (spec.n_heads, self.kernel_size);
        let gate = Gate::build("aft_conv", spec.n_heads, spec, vb)?;
        let biases = Filters {
            w: vb.get_with_hints(filter, "w", Init::Randn { mean: 0., stdev: 1. })?,
            gamma: vb.get_with_hints(spec.n_heads, "gamma", NEAR_ZERO)?,
            beta: vb.get_with_hints(spec.n_heads, "beta", init::ZERO)?,
            alignment: self.alignment.into(),
        };
        Ok(Box::new(Aft { gate, biases }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (n_taps, n_heads) = (self.kernel_size as f64, spec.n_heads as f64);
        let (d_model, len) = (spec.d_model as f64, q_len as f64);
        let core = AttentionCost {
            parameters: n_heads * (n_taps + 2.),
            // The numerator of each pair in the filter, and the denominator of each head; two scans, counted as two
            // pairs.
            flops: (n_taps + 2.) * len * (2. * d_model + 3. * n_heads),
            // The denominator of each row and head, with its maximum.
            activations: 2. * n_heads * len,
        };
        gate::cost(spec, spec.n_heads, [q_len, kv_len]) + core
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
        let Self { kernel_size, alignment, .. } = *self;
        let filter = reparametrised(at.tensor("w")?, at.tensor("gamma")?, at.tensor("beta")?)?;
        let filter = at.derived(graph, "filter", &filter)?; // (n_heads, kernel_size)
        let origin = match alignment {
            Alignment::Centred => kernel_size / 2,
            Alignment::Left => kernel_size - 1,
        };
        let Taps { tap, inside } = Taps::new(layer, kernel_size, origin);
        let w = graph.mul(&graph.gather(&filter, &tap, 1), &inside); // (n_heads, q_len, kv_len)

        let Maps { query, key, value } = Maps::project(layer, x)?;
        let key = graph.unsqueeze(&graph.transpose(&key, [0, 2, 1]), &[2]); // (batch, n_heads, 1, kv_len)
        let mask = sequence.mask(None);
        let scores = graph.add(&graph.add(&key, &w), &mask.additive);
        let value = heads::split(layer, &value, layer.n_heads);
        let context = graph.matmul(&graph.softmax(&scores, -1), &value);
        let context = heads::merge(graph, &graph.mul(&context, &mask.reads_any));
        gated(layer, &query, &context)
    }
}

/// γ (w − mean) / std + β per head, the deviation over all taps: `w (n_heads, kernel_size)`, `gamma` and `beta
/// (n_heads)` → `(n_heads, kernel_size)`
///
/// # Errors
/// If shapes do not match.
pub fn reparametrised(w: &Tensor, gamma: &Tensor, beta: &Tensor) -> Result<Tensor> {
    let centred = w.broadcast_sub(&w.mean_keepdim(D::Minus1)?)?;
    let std = centred.sqr()?.mean_keepdim(D::Minus1)?.sqrt()?; // (n_heads, 1)
    let scaled = centred.broadcast_div(&std)?.broadcast_mul(&gamma.unsqueeze(1)?)?;
    scaled.broadcast_add(&beta.unsqueeze(1)?)
}

/// w̃ and its scale and mean, one filter for each head.
#[derive(Debug)]
struct Filters {
    /// w̃ `(n_heads, kernel_size)`
    w: Tensor,
    /// `(n_heads)`
    gamma: Tensor,
    /// `(n_heads)`
    beta: Tensor,
    alignment: aft::Alignment,
}

impl PairBiases for Filters {
    fn mean(
        &self,
        [_query, key, value]: &[Tensor; 3],
        padding: Option<&Tensor>,
        reach: Reach,
    ) -> Result<Tensor> {
        let (batch, seq_len, d_model) = value.dims3()?;
        let w = reparametrised(&self.w, &self.gamma, &self.beta)?;
        let (n_heads, _kernel_size) = w.dims2()?;
        let value = value.reshape((batch, seq_len, n_heads, d_model / n_heads))?;
        aft::aft_conv(key, &value, &w, self.alignment, padding, reach)?.flatten_from(2)
    }

    fn dense(&self, seq_len: usize, _kv_len: usize) -> Result<Tensor> {
        let w = reparametrised(&self.w, &self.gamma, &self.beta)?;
        aft::reference::dense_of_conv(&w, seq_len, self.alignment)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::attention::{AttentionConfig, LayerPlace, Reads, aft_full, aft_local};
    use crate::error::BuildError;
    use crate::layers::linear::Bias;
    use crate::params::ParamStore;
    use crate::params::init::Initializer;
    use crate::position::AttentionNeeds;

    /// The message that refuses `config`.
    fn refusal(config: &AttentionConfig, reads: Reads, position: AttentionNeeds) -> String {
        let spec = AttentionSpec {
            d_model: 33,
            n_heads: 3,
            head_dim: None,
            max_q_len: 7,
            max_kv_len: 7,
            reads,
            dropout: 0.,
            bias: Bias::With,
            position,
            packed: false,
            conv_size: 0,
            layer: LayerPlace::ONLY,
            init: &Initializer::FAN_IN,
            key: "model.attention",
        };
        let store = ParamStore::new(17, DType::F32, &Device::Cpu);
        match config.build(&spec, &store.trainable()) {
            Err(BuildError::Config(fault)) => fault.message,
            other => panic!("{config:?} gives {other:?}"),
        }
    }

    #[test]
    fn settings_out_of_range_are_refused_by_key() {
        let conv =
            |kernel_size| AttentionConfig::AftConv(Config { kernel_size, ..Config::default() });
        let cases = [
            (conv(1), "`model.attention.kernel_size` = 1 must be odd and at least 3"),
            (conv(4), "`model.attention.kernel_size` = 4 must be odd and at least 3"),
            (
                AttentionConfig::AftLocal(aft_local::Config { window: 0, ..Default::default() }),
                "`model.attention.window` = 0 must be positive",
            ),
            (
                AttentionConfig::AftFull(aft_full::Config { rank: 0, ..Default::default() }),
                "`model.attention.rank` = 0 must be positive",
            ),
        ];
        for (config, message) in cases {
            assert_eq!(refusal(&config, Reads::Everything, AttentionNeeds::Nothing), message);
        }
    }

    #[test]
    fn attention_free_kinds_take_no_bias_and_windows_no_memory() {
        for kind in ["aft_full", "aft_local", "aft_simple", "aft_conv"] {
            let config = AttentionConfig::default_of(kind).expect("a kind");
            let message = refusal(&config, Reads::Past, AttentionNeeds::ScoreBias);
            assert!(message.contains("model.position.kind"), "{message}");
        }
        for kind in ["aft_local", "aft_conv"] {
            let config = AttentionConfig::default_of(kind).expect("a kind");
            let message = refusal(&config, Reads::Memory, AttentionNeeds::Nothing);
            assert!(message.contains("cannot read another sequence"), "{message}");
        }
    }

    #[test]
    fn reparametrised_filters_have_the_given_mean_and_deviation() -> Result<()> {
        let w = Tensor::new(&[[1_f64, 2., 3.], [5., 5., -1.]], &Device::Cpu)?;
        let gamma = Tensor::new(&[2_f64, -1.], &Device::Cpu)?;
        let beta = Tensor::new(&[0.5_f64, 3.], &Device::Cpu)?;
        let filters = reparametrised(&w, &gamma, &beta)?.to_vec2::<f64>()?;
        let (a, b) = (1.5_f64.sqrt(), 0.5_f64.sqrt());
        let expected = [[0.5 - 2. * a, 0.5, 0.5 + 2. * a], [3. - b, 3. - b, 3. + 2. * b]];
        for (filter, expected) in filters.iter().flatten().zip(expected.iter().flatten()) {
            assert!((filter - expected).abs() < 1e-12, "{filters:?}");
        }
        Ok(())
    }
}
