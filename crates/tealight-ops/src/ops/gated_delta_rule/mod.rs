//! The gated delta rule: a state of keys and values that decays, from which one key is erased and to which another is
//! written at each position (Yang et al. 2024, <https://arxiv.org/abs/2412.06464>, eq. 10; with one decay for each
//! feature, Kimi Team 2025, <https://arxiv.org/abs/2510.26692>, eq. 1).
//!
//! ```text
//! S_t = (Diag(α_t) − b_t (α_t ⊙ e_t)ᵀ) S_{t−1} + k_t u_tᵀ,   o_t = S_tᵀ q_t        S (n_features, width) per head
//! u_t = β_t v_t,   b_t = k_t, or any vector,   e_t = 0, β_t k_t, or any vector
//!
//! e = 0              a decaying sum of outer products: GLA, Mamba-2, retention, linear attention
//! e = β k            the delta rule: what the state holds for k moves by β towards v
//! e, b of their own  RWKV-7: what is erased is not what is written
//! ```
//!
//! In chunks of C tokens (the WY form of Bischof and Van Loan 1987), with S the state before the chunk, G the sum of
//! ln α from its first token on, D_ij = e^(G_i − G_j), γ = e^G and γ_C that of the last token:
//!
//! ```text
//! A_ij = Σ_κ e_iκ k_jκ D_ijκ  (j < i),      P_ij = Σ_κ q_iκ k_jκ D_ijκ  (j ≤ i),      K̂_j = k_j ⊙ e^(G_C − G_j)
//! Ũ = (I + A)⁻¹ (U − (γ ⊙ E) S),            O = (γ ⊙ Q) S + P Ũ,                     S ← γ_C ⊙ S + K̂ᵀ Ũ
//!
//! dŨ = Pᵀ dO + K̂ dS,   dU = (I + A)⁻ᵀ dŨ,   dA = −stril(dU Ũᵀ),   dP = tril(dO Ũᵀ)
//! dq_i = γ_i ⊙ (S dO_i) + Σ_j dP_ij D_ij k_j        de_i = −γ_i ⊙ (S dU_i) + Σ_j dA_ij D_ij k_j
//! dk_j = e^(G_C − G_j) ⊙ (dS Ũ_j) + Σ_i D_ij (dP_ij q_i + dA_ij e_i)
//! dG_i = q_i ⊙ dq_i + e_i ⊙ de_i − k_i ⊙ dk_i;   dG_C += Σ_j K̂_j ⊙ (dS Ũ_j) + γ_C ⊙ Σ_v S ⊙ dS
//! d ln α_t = Σ_{i ≥ t} dG_i,                dS ← γ_C ⊙ dS + (γ ⊙ Q)ᵀ dO − (γ ⊙ E)ᵀ dU
//! ```
//!
//! That is for b = k. Otherwise b has values X of its own, and [b; k] and [X; U] are in place of k and Ũ:
//!
//! ```text
//! X = (I + A_b)⁻¹ (−(γ ⊙ E) S − A_k U),     O = (γ ⊙ Q) S + P_b X + P_k U,           S ← γ_C ⊙ S + B̂ᵀ X + K̂ᵀ U
//! ```
//!
//! With one decay for a head, d ln α_t is added up from the pairs j < t ≤ i instead, dP_ij P_ij − dA_ij A_ij: the terms of
//! dG cancel, and where decays are strong they leave nothing but their rounding.
//!
//! **Numbers.** G is summed in f64, and only differences are exponentiated, none above 8: e^(−G) overflows from G = −88 on,
//! and a sum in f32 is off by 10⁻³ where one ln α is −10⁴. With a decay for each feature, tokens are taken in blocks of 16.
//! Pairs multiply (q_i e^(G_i − G_a)) by (k_j e^(G_a − G_j)), where a is the first token of the block of i. If j is in that
//! block, too, the second exponent is positive: from the first token i on at which G_a − G_i > 8 for some feature, pairs
//! within the block exponentiate each difference instead. (I + A)⁻¹ is forward substitution; a product of powers of A would
//! lose all digits where keys repeat. States and sums are f32 (f64 for values in f64), whatever the dtype of the operands,
//! and products in bf16 do not apply.
//!
//! **Padding and documents.** A padded position changes no state, and its output is 0. The state is 0 before the first
//! position of each further document. Chunks hold the tokens of one document alone, so a sequence with padding, or packed
//! with others, has the outputs that it has alone, bit for bit.
//!
//! Cost: O(len·(C + n_features)·(n_features + width)) time per head, as products of matrices. Memory beyond operands and
//! results: the states before all chunks, len/C·n_features·width numbers per head, where a gradient is needed, and with it
//! 2·len·n_features numbers for each team of heads that share their keys.
//! The definition, which other devices run, is the recurrence, position by position.

mod cpu;
mod inputs;
pub mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Result, Tensor, bail};

use crate::autograd::graph::record_all;
use crate::backend::buffer::{View, contiguous, gradients, stored};
use crate::backend::choice::dispatch;
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::vector::Lanes;
use crate::ops::tokens::Tokens;
use cpu::Rule;
use inputs::Inputs;

const NAME: &str = "gated delta rule";

/// Tokens of a chunk.
const CHUNK: usize = 64;

/// What is written, erased and read.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// q, `(batch, len, n_groups, n_features)`: each group is read by `n_heads / n_groups` heads, one after the other.
    pub query: &'a Tensor,
    /// k, `(batch, len, n_groups, n_features)`
    pub key: &'a Tensor,
    /// v, `(batch, len, n_heads, width)`
    pub value: &'a Tensor,
    /// β, `(batch, len, n_heads)`; 1 if absent.
    pub strength: Option<&'a Tensor>,
    /// e.
    pub erase: Erase<'a>,
    /// ln α ≤ 0, `(batch, len, n_heads)` or `(batch, len, n_heads, n_features)`; 0 if absent.
    pub log_decay: Option<&'a Tensor>,
    /// S before the first position, `(batch, n_heads, n_features, width)`; 0 if absent.
    pub state: Option<&'a Tensor>,
}

/// The vector e along which a position erases.
#[derive(Clone, Copy, Debug)]
pub enum Erase<'a> {
    /// e = 0.
    Nothing,
    /// e = β k.
    Key,
    /// Any, `(batch, len, n_heads, n_features)`.
    Along(&'a Tensor),
    /// Any, and a key b that loses what the state holds along it, instead of k: `(batch, len, n_heads, n_features)` each.
    Between {
        /// e.
        along: &'a Tensor,
        /// b.
        key: &'a Tensor,
    },
}

/// The outputs `(batch, len, n_heads, width)` in the dtype of the values, and the state after the last position,
/// `(batch, n_heads, n_features, width)` in f32 or f64. Both have gradients.
///
/// # Errors
/// If shapes do not match.
pub fn gated_delta_rule(operands: &Operands<'_>, tokens: Tokens<'_>) -> Result<[Tensor; 2]> {
    in_chunks(operands, tokens, CHUNK)
}

/// As [`gated_delta_rule`], in chunks of at most `chunk` tokens.
fn in_chunks(operands: &Operands<'_>, tokens: Tokens<'_>, chunk: usize) -> Result<[Tensor; 2]> {
    let sizes = operands.sizes()?;
    tokens.check(sizes.batch, sizes.len)?;
    let dtype = operands.value.dtype();
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let inputs = Inputs::new(operands, wide)?;
    if sizes.is_empty() {
        return reference::nothing(&inputs.operands(), wide, dtype);
    }
    let tensors = inputs.tensors();
    let [output, state] = dispatch!(match tensors {
        Cpu(T) => on_cpu::<T>(&inputs, Rule::new(sizes, &inputs, tokens, chunk)?),
        Cuda | Reference => reference::gated_delta_rule(&inputs.operands(), tokens),
    })?;
    Ok([output.to_dtype(dtype)?, state])
}

/// The sizes of a call.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    len: usize,
    n_heads: usize,
    /// Of queries and keys.
    n_groups: usize,
    n_features: usize,
    width: usize,
}

impl Sizes {
    /// The heads of a group.
    fn group(&self) -> usize {
        self.n_heads / self.n_groups
    }

    /// The elements of a state.
    fn state(&self) -> usize {
        self.n_features * self.width
    }

    fn is_empty(&self) -> bool {
        self.batch * self.len * self.n_heads * self.state() == 0
    }
}

impl Operands<'_> {
    fn sizes(&self) -> Result<Sizes> {
        let (batch, len, n_groups, n_features) = self.query.dims4()?;
        let (_, _, n_heads, width) = self.value.dims4()?;
        let per_group = [batch, len, n_groups, n_features];
        let per_head = [batch, len, n_heads];
        let per_feature = [batch, len, n_heads, n_features];
        let fits =
            |x: Option<&Tensor>, shapes: &[&[usize]]| x.is_none_or(|x| shapes.contains(&x.dims()));
        let (along, erase_key) = match self.erase {
            Erase::Nothing | Erase::Key => (None, None),
            Erase::Along(along) => (Some(along), None),
            Erase::Between { along, key } => (Some(along), Some(key)),
        };
        let checks = [
            ("key", Some(self.key), &[&per_group[..]][..]),
            ("value", Some(self.value), &[&[batch, len, n_heads, width]]),
            ("strength", self.strength, &[&per_head]),
            ("erase", along, &[&per_feature]),
            ("erase_key", erase_key, &[&per_feature]),
            ("log_decay", self.log_decay, &[&per_head, &per_feature]),
            ("state", self.state, &[&[batch, n_heads, n_features, width]]),
        ];
        for (name, x, shapes) in checks {
            if let Some(x) = x.filter(|&x| !fits(Some(x), shapes)) {
                bail!(
                    "gated delta rule of query {:?} and value {:?}: `{name}` is of shape {:?}, expected one of \
                     {shapes:?}",
                    self.query.dims(),
                    self.value.dims(),
                    x.dims()
                )
            }
        }
        if n_groups == 0 || !n_heads.is_multiple_of(n_groups) {
            bail!(
                "gated delta rule of query {:?} and value {:?}: {n_groups} heads of queries for {n_heads} of values, \
                 expected a divisor",
                self.query.dims(),
                self.value.dims()
            )
        }
        Ok(Sizes { batch, len, n_heads, n_groups, n_features, width })
    }
}

fn on_cpu<T: Lanes>(inputs: &Inputs, rule: Rule) -> Result<[Tensor; 2]> {
    let shape = inputs.shape();
    let tensors = contiguous(&inputs.tensors())?;
    let needs_states = tensors.iter().any(Tensor::track_op);
    let forward = || {
        let views = tensors.iter().map(View::<T>::from_tensor).collect::<Result<Vec<_>>>()?;
        Result::Ok(rule.forward(&shape.slices(&views), needs_states))
    };
    let (output, state, states) = timed(NAME, Phase::Forward, forward)?;
    let Sizes { batch, len, n_heads, n_features, width, .. } = rule.sizes;
    let values = vec![
        stored(output, (batch, len, n_heads, width)),
        stored(state, (batch, n_heads, n_features, width)),
    ];
    let results = record_all(NAME, &tensors, values, move |tensors, results| {
        let results = results.iter().map(|x| x.as_ref().map(View::<T>::from_tensor).transpose());
        let results = results.collect::<Result<Vec<_>>>()?;
        let [of_output, of_state] = [0, 1].map(|i| results[i].as_ref().map(|view| &view[..]));
        let views = tensors.iter().map(View::<T>::from_tensor).collect::<Result<Vec<_>>>()?;
        let all = rule.backward(&shape.slices(&views), &states, of_output, of_state);
        gradients(all.into_iter().map(Some), tensors)
    })?;
    Ok(results.try_into().expect("invariant: a tensor for each value"))
}
