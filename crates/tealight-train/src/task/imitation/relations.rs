//! Relations between tokens (MiniLM; Wang et al. 2020, <https://arxiv.org/abs/2002.10957>, eqs. 6 to 10, and Wang et al. 2021,
//! <https://arxiv.org/abs/2012.15828>, eqs. 5 to 8).
//!
//! ```text
//! R = softmax(A Bᵀ / √d)                 A, B: (len, d) of a head, such as queries and keys
//! mean over tokens and heads of Σ_j Rᵗ_ij (ln Rᵗ_ij − ln Rˢ_ij)      added up over the relations
//! ```
//!
//! The vectors of all heads of a token are joined and divided anew into as many heads in model and teacher, so neither their
//! widths nor their numbers of heads need to be equal. Padding is in no softmax and no mean, and tokens are related to those
//! of their own document; the papers say neither.

use candle_core::{D, DType, Result as TensorResult, Tensor};
use tealight_model::{Mask, names};
use tealight_ops::matmul::matmul_transposed;
use tealight_ops::softmax::log_softmax;

use super::{Compared, Heads, ImitationLoss};
use crate::checks::positive;
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::Imitated;

const N_HEADS: &str = "teacher.loss.n_heads";
const RELATIONS: &str = "teacher.loss.relations";
/// The setting of the teacher's layer.
pub(crate) const LAYER: &str = "teacher.loss.layer";
/// What is added to the score of a token that is not related: its weight is 0, and its logarithm is finite.
const HIDDEN: f64 = -1e9;

settings! {
    /// `[teacher.loss] kind = "relations"`
    pub struct Config {
        /// The relations that are compared. MiniLM: `attention` and `values`; its second version: `queries`, `keys` and
        /// `values`.
        pub relations: Vec<Relation> = vec![Relation::Queries, Relation::Keys, Relation::Values],
        /// Heads into which the vectors of each token are divided; when absent those of both models, which must be equal.
        pub n_heads: Option<usize> = None,
        /// The layer of the teacher, counted from 0; its last one when absent. Of the model it is the last.
        pub layer: Option<usize> = None,
    }
}

names! {
    /// Which vectors of two tokens are multiplied.
    pub enum Relation {
        /// The query of one with the key of the other: attention itself, without a bias.
        "attention" => Attention,
        /// Their queries.
        "queries" => Queries,
        /// Their keys.
        "keys" => Keys,
        /// Their values.
        "values" => Values,
    }
}

impl ImitationLoss for Config {
    fn validate(&self, weight: f64) -> Result<()> {
        self.n_heads.map_or(Ok(()), |n_heads| positive(N_HEADS, n_heads))?;
        let fault = |key: &str, rule: &str| Err(Error::config([key], format!("`{key}` {rule}")));
        let mut places = (0..self.relations.len()).zip(&self.relations);
        if places.any(|(at, relation)| self.relations[..at].contains(relation)) {
            return fault(RELATIONS, "has a relation twice");
        }
        if self.relations.is_empty() {
            return fault(RELATIONS, "is empty: it needs one relation at least");
        }
        if weight == 1. {
            let rule = "= 1 leaves the parameters behind the last attention untrained, as relations do not depend on them: \
                        give the labels a share, such as `teacher.weight` = 0.9";
            return fault("teacher.weight", rule);
        }
        Ok(())
    }

    fn imitated(&self) -> Option<Imitated> {
        None
    }

    fn loss(&self, compared: &dyn Compared) -> Result<Tensor> {
        let groups = compared.heads(self.layer)?;
        let mut sums = Vec::with_capacity(groups.len());
        let mut n_tokens = Vec::with_capacity(groups.len());
        for group in &groups {
            let tokens = Tokens::new(&group.mask, &group.own[0])?;
            sums.push(self.divergence(group, &tokens)?);
            n_tokens.push(tokens.is_real.sum_all()?);
        }
        let total = |parts: &[Tensor]| Tensor::stack(parts, 0)?.sum_all();
        Ok((total(&sums)? / total(&n_tokens)?)?)
    }
}

impl Config {
    /// The sum over the tokens of a group, and over relations, of the mean divergence over heads.
    fn divergence(&self, Heads { own, of_teacher, .. }: &Heads, tokens: &Tokens) -> Result<Tensor> {
        let mut sum: Option<Tensor> = None;
        for &relation in &self.relations {
            let [(a, b), (of_a, of_b)] = [own, of_teacher].map(|heads| relation.operands(heads));
            if [(a, b), (of_a, of_b)].iter().any(|(one, other)| one.dims() != other.dims()) {
                let message = format!(
                    "`{RELATIONS}` has \"attention\", and a model with `n_kv_heads` has fewer heads of keys than of \
                     queries: \"queries\", \"keys\" and \"values\" can be compared"
                );
                return Err(Error::config([RELATIONS], message));
            }
            let n_heads = self.n_heads([a, of_a])?;
            let log_r = log_softmax(&tokens.related(&scores([a, b], n_heads)?)?)?;
            let log_t = log_softmax(&tokens.related(&scores([of_a, of_b], n_heads)?)?)?.detach();
            // The weights of the teacher at real tokens, a share of each head: (batch, heads, len, len)
            let weights = (log_t.exp()?.broadcast_mul(&tokens.is_real)? / n_heads as f64)?;
            let divergence = (&weights * (&log_t - log_r)?)?.sum_all()?;
            sum = Some(match sum {
                Some(sum) => (sum + divergence)?,
                None => divergence,
            });
        }
        sum.ok_or_else(|| Error::config([RELATIONS], format!("`{RELATIONS}` is empty")))
    }

    /// The heads into which these vectors of the model and of its teacher are divided.
    ///
    /// # Errors
    /// If that divides no whole numbers, or models without the setting have unlike numbers of heads.
    fn n_heads(&self, [own, of_teacher]: [&Tensor; 2]) -> Result<usize> {
        let sizes = |vectors: &Tensor| {
            let (_batch, _len, n_heads, head_dim) = vectors.dims4()?;
            Ok::<_, Error>((n_heads, n_heads * head_dim))
        };
        let (own, of_teacher) = (sizes(own)?, sizes(of_teacher)?);
        let Some(n_heads) = self.n_heads else {
            let (first, other) = (own.0, of_teacher.0);
            if first == other {
                return Ok(first);
            }
            let message = format!(
                "`teacher.loss.kind` = \"relations\" compares {first} heads of the model with {other}: `{N_HEADS}` divides \
                 the vectors of both into as many, such as {other}"
            );
            return Err(Error::config([N_HEADS], message));
        };
        let widths = [own.1, of_teacher.1];
        if let Some(width) = widths.into_iter().find(|width| !width.is_multiple_of(n_heads)) {
            let message = format!(
                "`{N_HEADS}` = {n_heads} does not divide vectors of {width} numbers, which all heads of a layer have"
            );
            return Err(Error::config([N_HEADS], message));
        }
        Ok(n_heads)
    }
}

impl Relation {
    /// What is multiplied, of queries, keys and values.
    fn operands(self, [query, key, value]: &[Tensor; 3]) -> (&Tensor, &Tensor) {
        match self {
            Self::Attention => (query, key),
            Self::Queries => (query, query),
            Self::Keys => (key, key),
            Self::Values => (value, value),
        }
    }
}

/// A Bᵀ / √d: `(batch, len, ..)` twice → `(batch, n_heads, len, len)`, in f32
fn scores(operands: [&Tensor; 2], n_heads: usize) -> TensorResult<Tensor> {
    let divided = |x: &Tensor| {
        let (batch, len) = (x.dim(0)?, x.dim(1)?);
        let x = x.to_dtype(DType::F32)?.reshape((batch, len, n_heads, ()))?;
        x.transpose(1, 2)?.contiguous()
    };
    let [a, b] = operands;
    let (a, b) = (divided(a)?, divided(b)?);
    let width = a.dim(D::Minus1)?;
    matmul_transposed(&a, &b)? / (width as f64).sqrt()
}

/// Which tokens of a group are real, and which are related.
struct Tokens {
    /// 1, or 0 for padding: `(batch, 1, len, 1)`
    is_real: Tensor,
    /// What is added to scores: `(batch, 1, 1 or len, len)`; `None`: nothing.
    hidden: Option<Tensor>,
}

impl Tokens {
    /// Of sequences with these `vectors (batch, len, ..)`.
    fn new(mask: &Mask, vectors: &Tensor) -> TensorResult<Self> {
        let (batch, len) = (vectors.dim(0)?, vectors.dim(1)?);
        let padding =
            mask.key_padding_mask().map(|padding| padding.to_dtype(DType::F32)).transpose()?;
        let is_real = match &padding {
            Some(padding) => padding.affine(-1., 1.)?,
            None => Tensor::ones((batch, len), DType::F32, vectors.device())?,
        };
        let of_padding = padding.map(|padding| padding.reshape((batch, 1, 1, len))).transpose()?;
        let of_others = mask.segments().map(|segments| {
            let same = segments.unsqueeze(2)?.broadcast_eq(&segments.unsqueeze(1)?)?;
            same.to_dtype(DType::F32)?.affine(-1., 1.)?.unsqueeze(1)
        });
        let hidden = match (of_padding, of_others.transpose()?) {
            (Some(padding), Some(others)) => Some(others.broadcast_maximum(&padding)?),
            (padding, others) => padding.or(others),
        };
        let hidden = hidden.map(|hidden| hidden.affine(HIDDEN, 0.)).transpose()?;
        Ok(Self { is_real: is_real.reshape((batch, 1, len, 1))?, hidden })
    }

    /// Scores of which those of unrelated tokens weigh nothing.
    fn related(&self, scores: &Tensor) -> TensorResult<Tensor> {
        match &self.hidden {
            Some(hidden) => scores.broadcast_add(hidden),
            None => Ok(scores.clone()),
        }
    }
}
