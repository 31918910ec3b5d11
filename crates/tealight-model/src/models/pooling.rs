//! From the hidden states of a text to one vector, as sentence-transformers' modules do (Reimers & Gurevych 2019,
//! <https://arxiv.org/abs/1908.10084>, §3).
//!
//! ```text
//! mean   e = 1/T Σ_t h_t          h_1 … h_T: the last hidden states of the tokens, special ones included
//! cls    e = h_1
//! max    e_i = max_t h_{t,i}
//!
//! dense        φ(W e + b)
//! normalised   e / max(‖e‖₂, 10⁻¹²)
//! ```

use candle_core::Tensor;

use crate::choice::names::names;

/// The norm below which a vector is divided by this number instead, as in `torch.nn.functional.normalize`.
pub const LEAST_NORM: f32 = 1e-12;

names! {
    /// How the hidden states of a text become one vector.
    pub enum Pooling {
        /// The mean over all tokens.
        "mean" => Mean,
        /// The first token, BERT's `[CLS]`.
        "cls" => Cls,
        /// The largest value of each dimension over all tokens.
        "max" => Max,
    }
}

/// Whether vectors get length 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalize {
    /// They stay as they are pooled.
    #[default]
    No,
    /// The pooled vector does, before it is shortened, as sentence-transformers' module does.
    Pooled,
    /// The vector that is returned does.
    Returned,
}

names! {
    /// The function φ of a linear map's outputs.
    pub enum DenseActivation {
        /// None.
        "identity" => Identity,
        /// tanh x
        "tanh" => Tanh,
        /// max(x, 0)
        "relu" => Relu,
    }
}

/// A linear map behind the pooling, as the module `Dense`.
#[derive(Clone, Debug)]
pub struct DenseMap {
    /// W: `(n_out, n_in)`
    pub weight: Tensor,
    /// b: `(n_out)`
    pub bias: Option<Tensor>,
    /// φ
    pub activation: DenseActivation,
}

/// The steps from hidden states to the vector of a text.
#[derive(Clone, Debug)]
pub struct VectorSpec {
    /// The poolings, whose vectors are concatenated.
    pub poolings: Vec<Pooling>,
    /// Linear maps of the pooled vector, one after the other.
    pub dense: Vec<DenseMap>,
    /// Whether vectors get length 1.
    pub normalize: Normalize,
    /// The length of the vector that is returned, at most that of the last map or of the poolings.
    pub dim: usize,
}
