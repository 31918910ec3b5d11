//! Softmax attention that never stores the matrix of weights (Rabe and Staats 2021,
//! <https://arxiv.org/abs/2112.05682>; Dao 2023, "FlashAttention-2",
//! <https://arxiv.org/abs/2307.08691>).
//!
//! ```text
//! S = scale · Q Kᵀ + M,   P = softmax(S),   O = P V      Vaswani et al. 2017, eq. (1); M an additive mask
//!
//! tile by tile of keys, with m and ℓ the running maximum and sum (Dao 2023, §2.3.1, §3.1):
//! m' = max(m, max S),   ℓ' = e^(m − m') ℓ + Σ e^(S − m'),   O' = e^(m − m') O + e^(S − m') V
//! at the end:   O ← O / ℓ
//!
//! backward (Dao 2023, algorithm 2):   P = e^(S − m) / ℓ,   delta = rowsum(dO ⊙ O)
//! dV = Pᵀ dO,   dS = P ⊙ (dO Vᵀ − delta),   dQ = scale · dS K,   dK = scale · dSᵀ Q,   dM = Σ dS
//! ```
//!
//! The papers save m + ln ℓ of every row for the backward; we save m and ℓ, because for scores of
//! thousands that sum rounds ℓ away.
//!
//! Exact: only the order of the sums differs. Cost: O(q_len·kv_len) time forward, 2.5 times that
//! backward; memory O(q_len + kv_len) beyond the operands and their gradients, in both. If there
//! are fewer heads than needed to occupy the threads, the backward sums the gradients of keys and values in
//! up to 32 parts. Under a window w of keys, time falls to O(q_len·w).
//!
//! Several heads of queries may share a head of keys and values: all of them (Shazeer 2019,
//! multi-query, <https://arxiv.org/abs/1911.02150>) or groups of them (Ainslie et al. 2023,
//! grouped-query, <https://arxiv.org/abs/2305.13245>).
//!
//! Segments separate documents that were packed into one sequence (Krell et al. 2021,
//! <https://arxiv.org/abs/2107.02027>, §3.2.2): S = −∞ between positions of different documents.
//! Tiles without a pair of the same document are skipped.
//!
//! A sink z_h of each head takes weight and has no value (Agarwal et al. 2025, "gpt-oss",
//! <https://arxiv.org/abs/2508.10925>): it joins the sum of a row when all keys are read. It is not scaled.
//!
//! ```text
//! P = e^S / (e^z + Σ e^S);   backward: dz = −Σ over rows (e^z / (e^z + Σ e^S)) · delta
//! ```
//!
//! Forgetting (Lin et al. 2025, <https://arxiv.org/abs/2503.02130>) adds the logarithms of the gates f between key and
//! query to a causal score, with c their cumulative sum, to which padding adds nothing:
//!
//! ```text
//! S_ij = scale · q_i·k_j + c_i − c_j;   backward: dc_i = Σ_j dS_ij − Σ_j dS_ji,   d log f_t = Σ_{i ≥ t} dc_i
//! ```
//!
//! c is summed in f64 and kept as two numbers, of which the second is the rounding error of the first: |c| grows with
//! the sequence, and rounded to f32 it would move near keys by 1e-3. c_i is the same in a whole row and would drop out
//! without a sink; it stays, so that near keys have small exponents.
//!
//! Dropout of P drops the same elements as `tealight_ops::dropout` would. The backward draws the mask again
//! instead of storing it.

mod cpu;
mod cuda;
mod problem;
pub mod reference;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::buffer::{gradients, stored, tensor};
use crate::backend::choice::{dispatch, widened_all};
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::vector::Lanes;
use crate::ops::dropout::Draw;
use crate::ops::softmax::softmax;
use cpu::{ForwardResults, Masks, Operands, Places, Strided};
use problem::Problem;

const NAME: &str = "attention";

/// Masks, scale, dropout, and what joins the scores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The factor of the products; `None` is 1/√head_dim (Vaswani et al. 2017, §3.2.1).
    pub scale: Option<f64>,
    /// Query i reads keys up to i + kv_len − q_len: the last query stands at the last key.
    pub causal: bool,
    /// Query i reads keys nearer than this, |i + kv_len − q_len − j| < window. Other keys cost no time.
    pub window: Option<usize>,
    /// Dropout of the weights.
    pub dropout: Option<Draw>,
    /// `(batch, kv_len)` of u8: `1` = padding, ignored.
    pub key_padding_mask: Option<&'a Tensor>,
    /// `(batch, len)` of u32, for queries and keys of one sequence: a query reads only the keys of
    /// its own segment. If the ids rise along the sequence, other segments cost no time.
    pub segments: Option<&'a Tensor>,
    /// Added to the scores: `(q_len, kv_len)` or `(n_heads, q_len, kv_len)`, where `-inf` drops. It
    /// may be learnt, as a bias of relative positions is.
    pub attn_mask: Option<&'a Tensor>,
    /// `(n_heads)`: a score of each head that joins the sum of a row and has no value. It may be learnt.
    pub sink: Option<&'a Tensor>,
    /// `(batch, n_heads, kv_len)`, finite: log f of every key. The weight of a key falls by the f of all keys after it,
    /// up to that of the query. For causal attention of no more queries than keys.
    pub log_forget: Option<&'a Tensor>,
    /// The order of the axes of query, key, value and output.
    pub layout: Layout,
}

/// The order of the axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `(batch, n_heads, len, head_dim)`
    #[default]
    HeadsFirst,
    /// `(batch, len, n_heads, head_dim)`: the order of the results of linear maps, without a
    /// transposition, which is slow in Candle.
    HeadsLast,
}

/// `query (batch, n_heads, q_len, head_dim)`, `key (batch, n_kv_heads, kv_len, head_dim)`,
/// `value (batch, n_kv_heads, kv_len, value_dim)` → `(batch, n_heads, q_len, value_dim)`, or in another
/// order of axes, see [`Layout`]. `n_kv_heads` divides `n_heads`.
///
/// Operands need not be contiguous: heads split off by a transposition are read without a copy. A query that
/// may read no key gets zeros and has a gradient of zero.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use tealight_ops::attention::{Options, attention, weights};
///
/// # fn main() -> Result<()> {
/// // One query against three keys, which are their own values: Q Kᵀ = (30, 16, −16), halved by
/// // √head_dim = 2.
/// let query = Tensor::new(&[[[[1_f64, -2., 3., -4.]]]], &Device::Cpu)?; // (1, 1, 1, 4)
/// let key = [[1_f64, -2., 3., -4.], [-8., 7., 6., -5.], [10., 9., 12., 11.]];
/// let key = Tensor::new(&[[key]], &Device::Cpu)?; // (1, 1, 3, 4)
/// # let close = |actual: Tensor, expected: &[f64]| -> Result<bool> {
/// #     let actual = actual.flatten_all()?.to_vec1::<f64>()?;
/// #     Ok(actual.iter().zip(expected).all(|(a, e)| (a - e).abs() < 6e-7))
/// # };
/// let p = weights(&query, &key, &Options::default())?;
/// assert!(close(p, &[0.999_089, 0.000_911, 0.])?);
/// let output = attention(&query, &key, &key, &Options::default())?;
/// assert!(close(output, &[0.991_801, -1.991_801, 3.002_733, -4.000_911])?);
///
/// // Four words that read each other.
/// let words = [[1_f64, 0.5, 0., 0.], [0.5, 1., 0., 0.5], [0., 0., 1., 0.5], [0., 0.5, 0.5, 1.]];
/// let words = Tensor::new(&[[words]], &Device::Cpu)?; // (1, 1, 4, 4)
/// let p = weights(&words, &words, &Options::default())?;
/// assert!(close(p.narrow(2, 0, 1)?, &[0.330_656, 0.291_803, 0.176_988, 0.200_553])?);
/// assert!(close(p.narrow(2, 1, 1)?, &[0.251_806, 0.323_325, 0.173_063, 0.251_806])?);
/// let output = attention(&words, &words, &words, &Options::default())?;
/// assert!(close(output.narrow(2, 0, 1)?, &[0.476_558, 0.557_408, 0.277_264, 0.434_948])?);
/// assert!(close(output.narrow(2, 1, 1)?, &[0.413_468, 0.575_131, 0.298_966, 0.5])?);
/// assert!(close(output.narrow(2, 2, 1)?, &[0.277_264, 0.434_948, 0.476_558, 0.557_408])?);
/// assert!(close(output.narrow(2, 3, 1)?, &[0.298_966, 0.5, 0.413_468, 0.575_131])?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If shapes do not match, the window is 0, or the dropout rate is not in [0, 1).
pub fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: &Options<'_>,
) -> Result<Tensor> {
    let problem = Problem::new(query, key, value, options)?;
    dispatch!(match [query, key, value] {
        Cpu(T) => on_cpu::<T>(problem, [query, key, value], options),
        Cuda if cuda::takes(&problem, query, options) => {
            cuda::attention(problem, query, key, value, options)
        }
        Cuda | Reference => plain(&problem, query, key, value, options),
    })
}

/// The matrix of weights, without dropout: `query (batch, n_heads, q_len, head_dim)`,
/// `key (batch, n_kv_heads, kv_len, head_dim)` → `(batch, n_heads, q_len, kv_len)`
///
/// Zero for pairs that are masked. For plots: it takes the memory that [`attention`] saves.
///
/// # Errors
/// As [`attention`].
pub fn weights(query: &Tensor, key: &Tensor, options: &Options<'_>) -> Result<Tensor> {
    let problem = Problem::new(query, key, key, options)?;
    if query.elem_count() == 0 || key.elem_count() == 0 {
        let shape = (problem.batch, problem.n_heads, problem.q_len, problem.kv_len);
        return Tensor::zeros(shape, query.dtype(), query.device());
    }
    widened_all([query, key], |[query, key]| {
        reference::distribution(&reference::scores(query, key, options)?, options, softmax)
    })
}

/// The definition. Operands without elements give zeros.
fn plain(
    problem: &Problem,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: &Options<'_>,
) -> Result<Tensor> {
    if [query, key, value].iter().any(|operand| operand.elem_count() == 0) {
        return Tensor::zeros(&problem.output_shape()[..], query.dtype(), query.device());
    }
    widened_all([query, key, value], |[query, key, value]| {
        reference::attention(query, key, value, options)
    })
}

fn on_cpu<T: Lanes>(
    problem: Problem,
    operands: [&Tensor; 3],
    options: &Options<'_>,
) -> Result<Tensor> {
    let padding = options.key_padding_mask.map(|mask| mask.flatten_all()?.to_vec1());
    let segments = options.segments.map(|segments| segments.flatten_all()?.to_vec1());
    let masks = Masks { padding: padding.transpose()?, segments: segments.transpose()? };
    let mut inputs = operands.into_iter().map(with_rows).collect::<Result<Vec<_>>>()?;
    let mut place = |x: Option<&Tensor>| -> Result<Option<usize>> {
        let Some(x) = x else { return Ok(None) };
        inputs.push(x.to_dtype(T::DTYPE)?.contiguous()?);
        Ok(Some(inputs.len() - 1))
    };
    let places = Places {
        attn_mask: place(options.attn_mask)?,
        sink: place(options.sink)?,
        log_forget: place(options.log_forget)?,
    };
    let (output, rows) = timed(NAME, Phase::Forward, || {
        let operands = Operands::<T>::from_tensors(&problem, &masks, &inputs, places)?;
        Result::Ok(cpu::forward(&problem, &operands))
    })?;
    let output = stored(output, &problem.output_shape()[..]);
    let inputs: Vec<_> = inputs.iter().collect();
    let saved = Saved::InputsAndOutput;
    record_saving(NAME, &inputs, output, saved, move |inputs, output, gradient| {
        let results = ForwardResults {
            rows: &rows,
            output: Strided::from_tensor(output, problem.layout)?,
            gradient: Strided::from_tensor(gradient, problem.layout)?,
        };
        let operands = Operands::<T>::from_tensors(&problem, &masks, inputs, places)?;
        let all = cpu::backward(&problem, &operands, &results);
        let mut gradients = gradients([all.query, all.key, all.value].map(Some), inputs)?;
        gradients.resize(inputs.len(), None);
        let Problem { batch, n_heads, q_len, kv_len, .. } = problem;
        if let (Some(at), Some(dmask)) = (places.attn_mask, all.attn_mask) {
            let dmask = tensor(dmask, (n_heads, q_len, kv_len))?;
            gradients[at] = Some(if inputs[at].rank() == 2 { dmask.sum(0)? } else { dmask });
        }
        if let (Some(at), Some(dsink)) = (places.sink, all.sink) {
            gradients[at] = Some(tensor(dsink, n_heads)?);
        }
        if let (Some(at), Some(dlog_forget)) = (places.log_forget, all.log_forget) {
            gradients[at] = Some(tensor(dlog_forget, (batch, n_heads, kv_len))?);
        }
        Ok(gradients)
    })
}

/// `x`, copied unless its rows are contiguous.
fn with_rows(x: &Tensor) -> Result<Tensor> {
    if x.stride().last() == Some(&1) { Ok(x.clone()) } else { x.contiguous() }
}
