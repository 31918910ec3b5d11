//! Nyström attention (Xiong et al. 2021, <https://arxiv.org/abs/2102.03902>): the matrix of weights,
//! approximated through a few landmarks.
//!
//! ```text
//! softmax(Q Kᵀ / √head_dim) ≈ kernel_1 kernel_2⁺ kernel_3                              eq. (13)
//!     kernel_1 = softmax(Q K̃ᵀ / √head_dim)    (len, n_landmarks)
//!     kernel_2 = softmax(Q̃ K̃ᵀ / √head_dim)    (n_landmarks, n_landmarks)
//!     kernel_3 = softmax(Q̃ Kᵀ / √head_dim)    (n_landmarks, len)
//! ```
//!
//! Q̃ and K̃, the landmarks, are means over segments of the sequence ([`segment_means()`]), and the
//! inverse is six steps of an iteration ([`pseudo_inverse()`]). These do not converge, so the number of
//! steps is part of the definition. The approximate weights may be negative, and their rows sum to 1 only
//! approximately.
//!
//! **Short sequences are exact.** Where a sequence has no more than `n_landmarks` positions to read,
//! each of them is its own landmark, K̃ = K, and kernel_1 alone is the softmax attention of
//! Vaswani et al. This is decided for each row of the batch separately.
//!
//! **Padding.** By default ([`Padding::Excluded`]) segments are laid over the real positions of each
//! row, and padding does not influence real positions, wherever it stands. A row without real positions
//! gives zeros. The authors' code and `transformers` let padding influence landmarks; [`Padding`] has both
//! variants, to reproduce their results.
//!
//! Every query landmark depends on every position, so this attention cannot be causal.
//!
//! Cost: O(len·n_landmarks·head_dim + n_landmarks³·n_iterations) time, O(len·n_landmarks) memory per
//! head.

mod cuda;
mod normalisation;
mod pseudo_inverse;
pub mod reference;
mod segment_means;
mod segments;

use candle_core::{D, Result, Tensor, bail};

pub use normalisation::Normalisation;
pub use pseudo_inverse::pseudo_inverse;
pub use segment_means::segment_means;
pub use segments::{SegmentRule, Segments};

use crate::backend::choice::{at_least_f32, widened};
use crate::ops::matmul::{matmul, matmul_transposed};
use crate::ops::padding_mask;
use crate::ops::softmax::softmax;

/// The settings of the approximation. The default is the paper's, for each row of the batch separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The landmarks of a sequence. The paper has 64, at lengths of 512 to 8192.
    pub n_landmarks: usize,
    /// Steps of the iteration for the inverse of kernel_2. The paper has 6.
    pub n_iterations: usize,
    /// The divisor of the start of the iteration.
    pub normalisation: Normalisation,
    /// The influence of padding.
    pub padding: Padding,
    /// How a length that `n_landmarks` does not divide is cut.
    pub segment_rule: SegmentRule,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            n_landmarks: 64,
            n_iterations: 6,
            normalisation: Normalisation::default(),
            padding: Padding::default(),
            segment_rule: SegmentRule::default(),
        }
    }
}

impl Settings {
    /// The settings of `transformers` for Nyströmformer: an example depends on the others of the batch, and
    /// real positions depend on padding.
    #[must_use]
    pub fn transformers(self) -> Self {
        let normalisation = Normalisation::WholeTensor;
        Self { normalisation, padding: Padding::KeysOfKernel3, ..self }
    }
}

/// The influence of padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// None: it belongs to no segment and is masked everywhere.
    #[default]
    Excluded,
    /// As in `transformers`: landmarks are means over padding, too; it is masked in kernel_3 alone.
    KeysOfKernel3,
    /// As in the authors' code: queries and keys there are zeros, landmarks are means over them,
    /// too, and kernel_3 is masked.
    Zeroed,
}

/// The matrices whose product approximates the weights.
#[derive(Clone, Debug)]
pub struct Factors {
    /// `(batch, n_heads, len, n_landmarks)`: the weights of landmarks for each position.
    pub kernel_1: Tensor,
    /// `(batch, n_heads, n_landmarks, n_landmarks)`: the weights of landmarks for each landmark.
    pub kernel_2: Tensor,
    /// `(batch, n_heads, n_landmarks, n_landmarks)`: the iteration's inverse of kernel_2.
    pub inverse: Tensor,
    /// `(batch, n_heads, n_landmarks, len)`: the weights of positions for each landmark.
    pub kernel_3: Tensor,
}

impl Factors {
    /// `value (batch, n_heads, len, head_dim)` → `(batch, n_heads, len, head_dim)`, with eq. (13)
    /// whatever the length.
    ///
    /// # Errors
    /// If the shapes do not match.
    pub fn read(&self, value: &Tensor) -> Result<Tensor> {
        matmul(&self.kernel_1, &matmul(&self.inverse, &matmul(&self.kernel_3, value)?)?)
    }
}

/// `query`, `key`, `value (batch, n_heads, len, head_dim)`, `key_padding_mask (batch, len)` of
/// u8 with 1 = padding → `(batch, n_heads, len, head_dim)`
///
/// # Errors
/// If the shapes do not match, or there is no position or no landmark.
pub fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    settings: &Settings,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (batch, n_heads, len, _) = value.dims4()?;
    // Candle multiplies batches of the same size even if their shapes differ.
    if query.dims() != [batch, n_heads, len, query.dim(D::Minus1)?] {
        bail!(
            "Nyström attention of queries {:?} to values {:?}: expected \
             the same (batch, n_heads, len, ..)",
            query.shape(),
            value.shape()
        )
    }
    widened(query, |query| {
        let (key, value) = (key.to_dtype(query.dtype())?, value.to_dtype(query.dtype())?);
        let value = value.contiguous()?;
        let plan = Plan::new(query, &key, settings, key_padding_mask)?;
        plan.read(|| segment_means(&value, &plan.segments), |kernel_3| matmul(kernel_3, &value))
    })
}

/// `query`, `key (batch, n_heads, len, head_dim)`, `key_padding_mask (batch, len)` →
/// `(batch, n_heads, len, len)`: the weights that [`attention`] applies without computing the whole matrix.
///
/// # Errors
/// As [`attention`].
pub fn weights(
    query: &Tensor,
    key: &Tensor,
    settings: &Settings,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    widened(query, |query| {
        let key = key.to_dtype(query.dtype())?;
        let plan = Plan::new(query, &key, settings, key_padding_mask)?;
        let (batch, n_heads, len, _) = query.dims4()?;
        let membership = plan.segments.matrix(query.dtype(), query.device())?; // (rows, 1, n_landmarks, len)
        let (_, _, n_landmarks, _) = membership.dims4()?;
        let membership = membership.broadcast_as((batch, n_heads, n_landmarks, len))?;
        plan.read(|| membership.contiguous(), |kernel_3| Ok(kernel_3.clone()))
    })
}

/// `query`, `key (batch, n_heads, len, head_dim)`, `key_padding_mask (batch, len)` → the matrices of
/// eq. (13), of `n_landmarks` landmarks or `len`, if that is less.
///
/// # Errors
/// As [`attention`].
pub fn factors(
    query: &Tensor,
    key: &Tensor,
    settings: &Settings,
    key_padding_mask: Option<&Tensor>,
) -> Result<Factors> {
    let query = at_least_f32(query)?;
    Plan::new(&query, &key.to_dtype(query.dtype())?, settings, key_padding_mask)?.factors()
}

/// Scaled queries and keys, their landmarks, and the masks.
struct Plan {
    settings: Settings,
    segments: Segments,
    query: Tensor,
    query_landmarks: Tensor,
    key: Tensor,
    key_landmarks: Tensor,
    /// `(batch or 1, 1, 1, n_landmarks)`: −∞ at a landmark without positions.
    landmark_mask: Option<Tensor>,
    /// `(batch or 1, 1, n_landmarks, 1)`: the same numbers, for rows of scores.
    landmark_rows: Option<Tensor>,
    /// `(batch, 1, 1, len)`: −∞ at padding.
    key_mask: Option<Tensor>,
}

impl Plan {
    fn new(
        query: &Tensor,
        key: &Tensor,
        settings: &Settings,
        key_padding_mask: Option<&Tensor>,
    ) -> Result<Self> {
        let (batch, _, len, head_dim) = query.dims4()?;
        if query.dims() != key.dims() || query.elem_count() == 0 || settings.n_landmarks == 0 {
            let (shapes, n) = ((query.shape(), key.shape()), settings.n_landmarks);
            bail!(
                "Nyström attention of queries and keys {shapes:?} with {n} landmarks: expected \
                 the same (batch, n_heads, len, head_dim) with elements, and at least 1 landmark"
            )
        }
        padding_mask::check(key_padding_mask, batch, len)?;
        let is_short = len <= settings.n_landmarks;
        let excluded = settings.padding == Padding::Excluded || is_short;
        let segments = Segments::new(
            settings.segment_rule,
            settings.n_landmarks,
            len,
            key_padding_mask.filter(|_| excluded),
        )?;
        let zeroed = key_padding_mask.filter(|_| settings.padding == Padding::Zeroed);
        let query = (query / (head_dim as f64).sqrt())?;
        let query = padding_mask::zeroed(&query, zeroed)?.contiguous()?;
        let key = padding_mask::zeroed(key, zeroed)?.contiguous()?;
        let key_mask = |mask| {
            padding_mask::additive(mask, key.dtype())?.unsqueeze(1)?.unsqueeze(1) // (batch, 1, 1, len)
        };
        let landmark_mask = segments.mask(key.dtype(), key.device())?;
        Ok(Self {
            settings: *settings,
            query_landmarks: segment_means(&query, &segments)?,
            key_landmarks: segment_means(&key, &segments)?,
            landmark_rows: landmark_mask.as_ref().map(|mask| mask.transpose(2, 3)).transpose()?,
            landmark_mask,
            key_mask: key_padding_mask.map(key_mask).transpose()?,
            segments,
            query,
            key,
        })
    }

    /// kernel_1 times `of_segments` for rows that are exact, kernel_1 times the inverse times `of_kernel_3` for other
    /// rows.
    fn read(
        &self,
        of_segments: impl Fn() -> Result<Tensor>,
        of_kernel_3: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let is_exact = self.segments.is_exact();
        if is_exact.iter().all(|&exact| exact) {
            return matmul(&self.kernel_1()?, &of_segments()?);
        }
        let factors = self.factors()?;
        let mut read = matmul(&factors.inverse, &of_kernel_3(&factors.kernel_3)?)?; // (.., n_landmarks, _)
        if is_exact.contains(&true) {
            let flags: Vec<u8> = is_exact.iter().map(|&exact| exact.into()).collect();
            let is_exact = Tensor::from_vec(flags, (is_exact.len(), 1, 1, 1), read.device())?;
            let is_exact = is_exact.broadcast_as(read.shape())?;
            read = is_exact.where_cond(&of_segments()?, &read)?;
        }
        matmul(&factors.kernel_1, &read)
    }

    fn factors(&self) -> Result<Factors> {
        let Settings { n_iterations, normalisation, .. } = self.settings;
        let kernel_2 = weights_of(
            &self.query_landmarks,
            &self.key_landmarks,
            [&self.landmark_mask, &self.landmark_rows],
        )?;
        let inverse = pseudo_inverse(&kernel_2, n_iterations, normalisation)?;
        let kernel_1 = self.kernel_1()?;
        let kernel_3 =
            weights_of(&self.query_landmarks, &self.key, [&self.key_mask, &self.landmark_rows])?;
        Ok(Factors { kernel_1, kernel_2, inverse, kernel_3 })
    }

    fn kernel_1(&self) -> Result<Tensor> {
        weights_of(&self.query, &self.key_landmarks, [&self.landmark_mask, &None])
    }
}

/// The softmax of the products of queries and keys, with additive masks.
fn weights_of(query: &Tensor, key: &Tensor, masks: [&Option<Tensor>; 2]) -> Result<Tensor> {
    let mut scores = matmul_transposed(query, key)?;
    for mask in masks.into_iter().flatten() {
        scores = scores.broadcast_add(mask)?;
    }
    softmax(&scores)
}
