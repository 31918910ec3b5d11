//! Softmax attention without its matrix of weights (Rabe and Staats 2021,
//! <https://arxiv.org/abs/2112.05682>; Dao 2023, "FlashAttention-2",
//! <https://arxiv.org/abs/2307.08691>).
//!
//! ```text
//! S = scale · Q Kᵀ + bias,   P = softmax(S),   O = P V           Vaswani et al. 2017, eq. (1)
//!
//! tile after tile of keys, with m and ℓ the maximum and the sum so far (Dao 2023, §2.3.1, §3.1):
//! m' = max(m, max S),   ℓ' = e^(m − m') ℓ + Σ e^(S − m'),   O' = e^(m − m') O + e^(S − m') V
//! at the end:   O ← O / ℓ
//!
//! backward (Dao 2023, algorithm 2):   P = e^(S − m) / ℓ,   delta = rowsum(dO ⊙ O)
//! dV = Pᵀ dO,   dS = P ⊙ (dO Vᵀ − delta),   dQ = scale · dS K,   dK = scale · dSᵀ Q,   dbias = Σ dS
//! ```
//!
//! The papers keep m + ln ℓ of every row for the backward; we keep m and ℓ, since among scores of
//! thousands the sum of the two rounds ℓ away.
//!
//! Exact: only the order of the sums differs. Cost: O(q_len·kv_len) time forward, 2.5 times that
//! backward; memory O(q_len + kv_len) beyond the operands and their gradients, in both. Where there
//! are too few heads to share out, the backward sums the gradients of keys and values in several
//! parts, up to 32. Under a window w of keys, time falls to O(q_len·w).
//!
//! Several heads of queries may share a head of keys and values: all of them (Shazeer 2019,
//! multi-query, <https://arxiv.org/abs/1911.02150>) or groups of them (Ainslie et al. 2023,
//! grouped-query, <https://arxiv.org/abs/2305.13245>).
//!
//! Documents that were packed into one sequence are told apart by segments (Krell et al. 2021,
//! <https://arxiv.org/abs/2107.02027>, §3.2.2): S = −∞ between positions of different ones. Tiles
//! that hold no pair of the same document are left out.
//!
//! With dropout, P is what `tealight_ops::dropout` makes of it, to the element. The mask is drawn
//! again in the backward, by address, and never stored.

mod cpu;
mod problem;
pub mod reference;

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp3, D, DType, Layout as Memory, Result, Shape, Tensor, bail};

use crate::buffer::{View, slice, stored, strided, tensor};
use crate::dropout::Draw;
use crate::graph::apply3;
use crate::lanes::Lanes;
use crate::path::Path;
use crate::softmax::softmax;
use crate::transpose::swapped;
use cpu::{Bias, Given, Operands, Row, ScoreBias, Strided};
use problem::Problem;

/// What a query may read, and how its scores become weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The factor of the products; `None` is 1/√head_dim (Vaswani et al. 2017, §3.2.1).
    pub scale: Option<f64>,
    /// Query i reads keys up to i + kv_len − q_len: the last query stands at the last key.
    pub causal: bool,
    /// Query i reads keys nearer than this, |i + kv_len − q_len − j| < window. Others cost nothing.
    pub window: Option<usize>,
    /// Drops weights.
    pub dropout: Option<Draw>,
    /// `(batch, kv_len)` of u8: `1` = padding, ignored.
    pub key_padding_mask: Option<&'a Tensor>,
    /// `(batch, len)` of u32, for queries and keys of one sequence: a query reads the keys of its own
    /// segment alone. Where the ids rise along the sequence, other segments cost nothing.
    pub segments: Option<&'a Tensor>,
    /// Added to the scores: `(q_len, kv_len)` or `(n_heads, q_len, kv_len)`, where `-inf` drops. It
    /// may be learnt.
    pub bias: Option<&'a Tensor>,
    /// The order of the axes of query, key, value and output.
    pub layout: Layout,
}

/// Where the heads stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `(batch, n_heads, len, head_dim)`
    #[default]
    HeadsFirst,
    /// `(batch, len, n_heads, head_dim)`: as linear maps give them, with no transposition, of which
    /// Candle's is slow in both directions.
    HeadsLast,
}

/// `query (batch, n_heads, q_len, head_dim)`, `key (batch, n_kv_heads, kv_len, head_dim)`,
/// `value (batch, n_kv_heads, kv_len, value_dim)` → `(batch, n_heads, q_len, value_dim)`, or the same
/// with the heads in another place, see [`Layout`]. `n_kv_heads` divides `n_heads`.
///
/// Operands need not be contiguous: heads that were split off by a transposition are read where they
/// lie. A query that may read nothing gets zeros, and has a gradient of zero.
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
    match Path::of(&[query, key, value]) {
        Path::F32 => fused::<f32>(problem, query, key, value, options),
        Path::F64 => fused::<f64>(problem, query, key, value, options),
        Path::Reference => plain(&problem, query, key, value, options),
    }
}

/// The matrix of weights, without dropout: `query (batch, n_heads, q_len, head_dim)`,
/// `key (batch, n_kv_heads, kv_len, head_dim)` → `(batch, n_heads, q_len, kv_len)`
///
/// Zero where reading is forbidden. For pictures: it costs what [`attention`] saves.
///
/// # Errors
/// As [`attention`].
pub fn weights(query: &Tensor, key: &Tensor, options: &Options<'_>) -> Result<Tensor> {
    let problem = Problem::new(query, key, key, options)?;
    if query.elem_count() == 0 || key.elem_count() == 0 {
        let shape = (problem.batch, problem.n_heads, problem.q_len, problem.kv_len);
        return Tensor::zeros(shape, query.dtype(), query.device());
    }
    let wide = widest(query.dtype());
    let (query_wide, key) = (query.to_dtype(wide)?, key.to_dtype(wide)?);
    softmax(&reference::scores(&problem, &query_wide, &key, options)?)?.to_dtype(query.dtype())
}

/// The dtype to compute in.
fn widest(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The definition, in f32 where the operands are of half precision.
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
    let wide = |x: &Tensor| x.to_dtype(widest(query.dtype()));
    reference::attention(&wide(query)?, &wide(key)?, &wide(value)?, options)?
        .to_dtype(query.dtype())
}

fn fused<T: Lanes>(
    problem: Problem,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: &Options<'_>,
) -> Result<Tensor> {
    let padding = options.key_padding_mask.map(|mask| mask.flatten_all()?.to_vec1());
    let segments = options.segments.map(|segments| segments.flatten_all()?.to_vec1());
    let bias = options.bias.map(|bias| bias.to_dtype(T::DTYPE)?.contiguous()).transpose()?;
    let op = Attention::<T> {
        problem,
        padding: padding.transpose()?,
        segments: segments.transpose()?,
        bias: bias.as_ref().map(Tensor::detach),
        rows: OnceLock::new(),
    };
    match bias.filter(Tensor::track_op) {
        None => apply3(&with_rows(query)?, &with_rows(key)?, &with_rows(value)?, op),
        Some(bias) => {
            // An operation of Candle's has three operands at the most: key and value become one.
            let key_value = Tensor::cat(&[key, value], D::Minus1)?;
            apply3(&with_rows(query)?, &with_rows(&key_value)?, &bias, WithBias(op))
        }
    }
}

/// `x` itself, if its rows are contiguous.
fn with_rows(x: &Tensor) -> Result<Tensor> {
    if x.stride().last() == Some(&1) { Ok(x.clone()) } else { x.contiguous() }
}

/// Of query, key and value.
struct Attention<T> {
    problem: Problem,
    padding: Option<Vec<u8>>,
    segments: Option<Vec<u32>>,
    /// Without its history.
    bias: Option<Tensor>,
    /// What the forward leaves for the backward.
    rows: OnceLock<Vec<Row<T>>>,
}

/// Of query, key and value side by side, and a bias that is learnt.
struct WithBias<T>(Attention<T>);

impl<T: Lanes> Attention<T> {
    /// Runs `f` on the operands.
    fn with<R>(
        &self,
        query: Strided<'_, T>,
        key: Strided<'_, T>,
        value: Strided<'_, T>,
        f: impl FnOnce(&Operands<'_, T>) -> Result<R>,
    ) -> Result<R> {
        let bias = self.bias.as_ref().map(View::of).transpose()?;
        let shared = self.bias.as_ref().is_none_or(|bias| bias.rank() == 2);
        let head_stride = if shared { 0 } else { self.problem.q_len * self.problem.kv_len };
        let bias =
            bias.as_ref().map(|data| ScoreBias { data, head_stride, kv_len: self.problem.kv_len });
        let (padding, segments) = (self.padding.as_deref(), self.segments.as_deref());
        f(&Operands { query, key, value, bias, padding, segments })
    }

    fn forward(
        &self,
        query: Strided<'_, T>,
        key: Strided<'_, T>,
        value: Strided<'_, T>,
    ) -> Result<(CpuStorage, Shape)> {
        let (output, known) =
            self.with(query, key, value, |operands| Ok(cpu::forward(&self.problem, operands)))?;
        // A second forward would leave the same.
        self.rows.get_or_init(|| known);
        let Problem { n_heads, q_len, value_dim, .. } = self.problem;
        let output = self.ordered(output, [n_heads, q_len, value_dim]);
        Ok(stored(output, &self.problem.output_shape()[..]))
    }

    fn backward(
        &self,
        query: Strided<'_, T>,
        key: Strided<'_, T>,
        value: Strided<'_, T>,
        output: &Tensor,
        gradient: &Tensor,
        bias: Bias,
    ) -> Result<cpu::Gradients<T>> {
        let gradient = with_rows(gradient)?;
        let (output, gradient) = (self.operand(output)?, self.operand(&gradient)?);
        let given = Given {
            rows: self.rows.get().expect("invariant: the backward comes after the forward"),
            output: output.rows(),
            gradient: gradient.rows(),
        };
        let all = self.with(query, key, value, |operands| {
            Ok(cpu::backward(&self.problem, operands, &given, bias))
        })?;
        let Problem { n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim, .. } = self.problem;
        Ok(cpu::Gradients {
            query: self.ordered(all.query, [n_heads, q_len, head_dim]),
            key: self.ordered(all.key, [n_kv_heads, kv_len, head_dim]),
            value: self.ordered(all.value, [n_kv_heads, kv_len, value_dim]),
            bias: all.bias,
        })
    }

    /// `(batch, heads, len, width)` in the order of the operands' axes.
    fn ordered(&self, x: Vec<T>, dims: [usize; 3]) -> Vec<T> {
        match self.problem.layout {
            Layout::HeadsFirst => x,
            Layout::HeadsLast => swapped(&x, dims),
        }
    }

    fn operand<'a>(&self, tensor: &'a Tensor) -> Result<Operand<'a, T>> {
        let (.., width) = tensor.dims4()?;
        let strides = strides(tensor.stride(), self.problem.layout)?;
        Ok(Operand { view: View::from_start(tensor)?, strides, width })
    }

    fn rows<'a>(&self, storage: &'a CpuStorage, layout: &Memory) -> Result<Strided<'a, T>> {
        let (.., width) = layout.shape().dims4()?;
        let strides = strides(layout.stride(), self.problem.layout)?;
        Ok(Strided { data: strided(storage, layout)?, strides, width })
    }
}

/// A tensor of four axes, locked for reading.
struct Operand<'a, T> {
    view: View<'a, T>,
    strides: [usize; 3],
    width: usize,
}

impl<T: Lanes> Operand<'_, T> {
    fn rows(&self) -> Strided<'_, T> {
        Strided { data: &self.view, strides: self.strides, width: self.width }
    }
}

/// From example to example, head to head and row to row, of operands made by [`with_rows`].
fn strides(all: &[usize], layout: Layout) -> Result<[usize; 3]> {
    match *all {
        [batch, a, b, 1] => {
            let [batch, heads, rows, _] = layout.ordered([batch, a, b, 1]);
            Ok([batch, heads, rows])
        }
        _ => bail!("attention was given rows that are not contiguous"),
    }
}

/// Key and value that lie side by side.
fn split<'a, T: Copy>(problem: &Problem, both: Strided<'a, T>) -> [Strided<'a, T>; 2] {
    let (key, value) = (problem.head_dim, problem.value_dim);
    [Strided { width: key, ..both }, Strided { data: &both.data[key..], width: value, ..both }]
}

impl<T: Lanes> CustomOp3 for Attention<T> {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Memory,
        key: &CpuStorage,
        key_layout: &Memory,
        value: &CpuStorage,
        value_layout: &Memory,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward(
            self.rows(query, query_layout)?,
            self.rows(key, key_layout)?,
            self.rows(value, value_layout)?,
        )
    }

    fn bwd(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let operands = [self.operand(query)?, self.operand(key)?, self.operand(value)?];
        let [q, k, v] = [0, 1, 2].map(|i| operands[i].rows());
        let gradients = self.backward(q, k, v, output, gradient, Bias::Constant)?;
        Ok((
            Some(tensor(gradients.query, query.shape())?),
            Some(tensor(gradients.key, key.shape())?),
            Some(tensor(gradients.value, value.shape())?),
        ))
    }
}

impl<T: Lanes> CustomOp3 for WithBias<T> {
    fn name(&self) -> &'static str {
        "attention with bias"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Memory,
        key_value: &CpuStorage,
        key_value_layout: &Memory,
        bias: &CpuStorage,
        bias_layout: &Memory,
    ) -> Result<(CpuStorage, Shape)> {
        // The same numbers as those without history, which the backward reads, too.
        slice::<T>(bias, bias_layout)?;
        let [key, value] = split(&self.0.problem, self.0.rows(key_value, key_value_layout)?);
        self.0.forward(self.0.rows(query, query_layout)?, key, value)
    }

    fn bwd(
        &self,
        query: &Tensor,
        key_value: &Tensor,
        bias: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (q, both) = (self.0.operand(query)?, self.0.operand(key_value)?);
        let [k, v] = split(&self.0.problem, both.rows());
        let gradients = self.0.backward(q.rows(), k, v, output, gradient, Bias::Learnt)?;
        let Problem {
            batch, n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim, layout, ..
        } = self.0.problem;
        let shape = |width| layout.ordered([batch, n_kv_heads, kv_len, width]);
        let key = tensor(gradients.key, &shape(head_dim)[..])?;
        let value = tensor(gradients.value, &shape(value_dim)[..])?;
        let dbias = gradients.bias.unwrap_or_default();
        let dbias = tensor(dbias, (n_heads, q_len, kv_len))?;
        let dbias = if bias.rank() == 2 { dbias.sum(0)? } else { dbias };
        Ok((
            Some(tensor(gradients.query, query.shape())?),
            Some(Tensor::cat(&[key, value], D::Minus1)?),
            Some(dbias),
        ))
    }
}
