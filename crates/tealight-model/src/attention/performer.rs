//! Performer: softmax attention estimated with random features, FAVOR+ (Choromanski et al. 2021,
//! <https://arxiv.org/abs/2009.14794>).
//!
//! ```text
//! exp(qᵀk) = E[φ(q)ᵀ φ(k)],   φ(x) = exp(ωᵣᵀ x − |x|²/2) / √m,  r = 1 … m,   ωᵣ ~ N(0, I)    Lemma 1
//! out = D̂⁻¹ φ(Q) (φ(K)ᵀ V),   D̂ = diag(φ(Q) φ(K)ᵀ 1)                                       eq. (4)
//! ```
//!
//! with q and k divided by head_dim^(1/4), so that qᵀk is softmax attention's score. Within blocks of
//! head_dim the ωᵣ are orthogonal, with lengths redrawn as those of Gaussian vectors (§2.4), which lowers the
//! variance.
//!
//! Cost: O(seq_len·d_model·m) time, O(seq_len·(d_model + n_heads·m)) memory.
//!
//! It is computed with ln φ ([`tealight_ops::linear_attention`]). The authors' code instead subtracts maxima
//! and adds a constant for stability; its maxima run over later positions and over the batch. √m and |q|²/2
//! cancel.
//!
//! The ωᵣ are constants shared by all heads, as in the authors' code. They depend on the layer's name and not
//! on the seed, so they are neither in checkpoints nor trained; unlike the authors (§4) we do not redraw them
//! during training. Score biases are refused, as there are no scores, and so are rotary positions.

use candle_core::{D, Device, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::linear::linear;
use tealight_ops::rng::{Purpose, Stream};

use super::linear::{self, FeatureMap, LinearAttention};
use super::onnx::{Layer, Output, heads};
use super::projection::Heads;
use super::{AttentionCost, AttentionKind, AttentionSpec, BoxAttention};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{OnnxResult, Value};

/// A bound on memory and time that the cost estimate does not count: each feature holds head_dim numbers, and
/// making it orthogonal takes head_dim² steps.
const MAX_FEATURES: usize = 1 << 16;

settings! {
    /// `[model.attention] kind = "performer"`
    pub struct Config {
        /// m, at most 65536: the more, the closer to softmax attention. Theorem 4 asks for about
        /// head_dim·ln(head_dim), which is 64 for head_dim = 21.
        pub n_random_features: usize = 64,
        /// Make them orthogonal within blocks of head_dim.
        pub orthogonal: bool = true,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.positive("n_random_features", self.n_random_features)?;
        if self.n_random_features > MAX_FEATURES {
            let m = self.n_random_features;
            let rule = format!("= {m} must be at most {MAX_FEATURES}");
            return Err(spec.invalid("n_random_features", &rule));
        }
        spec.refuse_rotary("performer", "its features are of queries and keys as projected")?;
        spec.refuse_score_bias("performer", "it forms no scores")?;
        spec.refuse_segments("performer", "all its queries read one sum over the keys")?;
        let features = RandomFeatures::build(self, spec.head_dim(), vb)?;
        Ok(Box::new(LinearAttention::build(features, spec, vb)?))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (m, lens) = (self.n_random_features as f64, (q_len + kv_len) as f64);
        let features = AttentionCost {
            parameters: 0.,
            flops: 2. * m * spec.d_heads() as f64 * lens,
            // The scaled queries and keys, the squares of the keys, and ωᵀk before |k|²/2 is subtracted.
            activations: spec.d_heads() as f64 * (lens + kv_len as f64)
                + m * spec.n_heads as f64 * kv_len as f64,
        };
        linear::cost(self.n_random_features, spec, [q_len, kv_len]) + features
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let (graph, at) = (layer.graph(), &layer.at);
        let scale = (layer.head_dim as f64).powf(-0.25);
        let omega = Tensor::new(omega(self, layer.head_dim, at.prefix()), &Device::Cpu)?;
        let omega = at.derived(graph, "omega", &(omega.t()? * scale)?)?; // (head_dim, n_random_features)
        let qkv = heads::project(layer, x, Heads::default())?;
        let square = graph.sum(&graph.mul(&qkv.key, &qkv.key), -1);
        let half_square = graph.scale(&square, 0.5 * scale * scale);
        let log_key = graph.sub(&graph.matmul(&qkv.key, &omega), &half_square);
        let logs = [graph.matmul(&qkv.query, &omega), log_key];
        linear::onnx::average(layer, qkv, &logs)
    }
}

/// ωᵣᵀ x − |x|²/2
#[derive(Debug)]
struct RandomFeatures {
    /// ω, `(n_random_features, head_dim)`
    omega: Tensor,
    /// head_dim^(−1/4)
    scale: f64,
}

impl RandomFeatures {
    fn build(config: &Config, head_dim: usize, vb: &VarBuilder<'_>) -> Result<Self> {
        let rows = omega(config, head_dim, &vb.prefix());
        let m = config.n_random_features;
        let omega = Tensor::from_vec(rows.concat(), (m, head_dim), &Device::Cpu)?;
        Ok(Self {
            omega: omega.to_dtype(vb.dtype())?.to_device(vb.device())?,
            scale: (head_dim as f64).powf(-0.25),
        })
    }
}

impl FeatureMap for RandomFeatures {
    /// ωᵣᵀ q, without −|q|²/2, which is the same for all features of a query and cancels.
    fn log_query(&self, query: &Tensor) -> Result<Tensor> {
        linear(&(query * self.scale)?, &self.omega, None)
    }

    fn log_key(&self, key: &Tensor) -> Result<Tensor> {
        let key = (key * self.scale)?;
        let half_square = (key.sqr()?.sum_keepdim(D::Minus1)? * 0.5)?;
        linear(&key, &self.omega, None)?.broadcast_sub(&half_square)
    }
}

/// ω of the layer with this name: `n_random_features` vectors of `head_dim`.
fn omega(config: &Config, head_dim: usize, layer: &str) -> Vec<Vec<f64>> {
    let name = if layer.is_empty() { "omega".to_owned() } else { format!("{layer}.omega") };
    let stream = Stream::new(0, Purpose::Initialisation).fork_name(&name);
    let m = config.n_random_features;
    if config.orthogonal {
        orthogonal(stream, m, head_dim)
    } else {
        (0..m as u64).map(|row| gaussian(stream.fork(row), head_dim)).collect()
    }
}

/// A vector of `head_dim` standard normal numbers.
fn gaussian(stream: Stream, head_dim: usize) -> Vec<f64> {
    (0..head_dim as u64).map(|i| stream.normal(i)).collect()
}

/// `n` vectors, orthogonal within blocks of `head_dim` (Gram–Schmidt), with lengths of Gaussian vectors.
fn orthogonal(stream: Stream, n: usize, head_dim: usize) -> Vec<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut directions: Vec<Vec<f64>> = Vec::with_capacity(n);
    for row in 0..n {
        let mut direction = gaussian(stream.fork(row as u64), head_dim);
        for other in &directions[row - row % head_dim..] {
            let overlap = dot(&direction, other);
            for (x, y) in direction.iter_mut().zip(other) {
                *x -= overlap * y;
            }
        }
        let length = dot(&direction, &direction).sqrt();
        directions.push(direction.iter().map(|x| x / length).collect());
    }
    let lengths = stream.fork_name("lengths");
    for (row, direction) in directions.iter_mut().enumerate() {
        let other = gaussian(lengths.fork(row as u64), head_dim);
        let length = dot(&other, &other).sqrt();
        for x in direction {
            *x *= length;
        }
    }
    directions
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use tealight_ops::Reach;
    use tealight_ops::linear_attention::linear_attention;
    use tealight_ops::softmax::softmax;

    use super::*;
    use crate::params::ParamStore;

    const HEAD_DIM: usize = 11;

    fn features(n_random_features: usize, orthogonal: bool) -> Result<RandomFeatures> {
        let store = ParamStore::new(17, DType::F64, &Device::Cpu);
        let config = Config { n_random_features, orthogonal, ..Config::default() };
        RandomFeatures::build(&config, HEAD_DIM, &store.trainable().pp("attention"))
    }

    fn normal(index: u64, len: usize) -> Result<Tensor> {
        let stream = Stream::new(5, Purpose::Data).fork(index);
        let values = (0..(len * HEAD_DIM) as u64).map(|i| stream.normal(i)).collect::<Vec<_>>();
        Tensor::from_vec(values, (1, 1, len, HEAD_DIM), &Device::Cpu)
    }

    #[test]
    fn blocks_are_orthogonal_and_as_long_as_gaussian_vectors() -> Result<()> {
        let omega = features(301, true)?.omega;
        let products = omega.matmul(&omega.t()?)?.to_vec2::<f64>()?;
        for (i, products) in products.iter().enumerate() {
            for (j, product) in products.iter().enumerate() {
                let same_block = i / HEAD_DIM == j / HEAD_DIM;
                assert!(i == j || !same_block || product.abs() < 1e-12, "{i}, {j}: {product}");
            }
        }
        let mean_square = omega.sqr()?.mean_all()?.to_scalar::<f64>()?;
        assert!((mean_square - 1.).abs() < 0.1, "{mean_square}");
        Ok(())
    }

    #[test]
    fn many_features_give_softmax_attention() -> Result<()> {
        // The variance grows as exp(|q + k|²).
        let (query, key, value) = ((normal(0, 5)? * 0.5)?, (normal(1, 7)? * 0.5)?, normal(2, 7)?);
        let scores = (query.matmul(&key.t()?)? / (HEAD_DIM as f64).sqrt())?;
        let expected = softmax(&scores)?.matmul(&value)?;
        let error = |n_random_features, orthogonal| -> Result<f64> {
            let features = features(n_random_features, orthogonal)?;
            let (query, key) = (features.log_query(&query)?, features.log_key(&key)?);
            let y = linear_attention(&query, &key, &value, Reach::Everything, None)?;
            (y - &expected)?.sqr()?.mean_all()?.sqrt()?.to_scalar()
        };
        for orthogonal in [true, false] {
            let [few, many] = [error(64, orthogonal)?, error(16_384, orthogonal)?];
            assert!(many < 0.03 && many < few, "{few} and {many}");
        }
        Ok(())
    }

    #[test]
    fn trainable_and_frozen_models_share_features_and_layers_do_not() -> Result<()> {
        let store = ParamStore::new(17, DType::F64, &Device::Cpu);
        let omega = |vb: VarBuilder<'_>| -> Result<Vec<f64>> {
            let features = RandomFeatures::build(&Config::default(), HEAD_DIM, &vb)?;
            features.omega.flatten_all()?.to_vec1()
        };
        let first = omega(store.trainable().pp("0"))?;
        assert_eq!(first, omega(store.without_gradients().pp("0"))?);
        assert_ne!(first, omega(store.trainable().pp("1"))?);
        assert_eq!(store.n_parameters(), 0);
        Ok(())
    }
}
