//! The CPU loops, in tiles of queries and keys.

mod backward;
mod forgetting;
mod forward;
mod plan;
mod product;
mod tile;

use candle_core::{D, Result, Tensor, bail};

pub(super) use backward::{ForwardResults, backward};
pub(super) use forward::forward;

use super::Layout;
use super::problem::Problem;
use crate::backend::buffer::View;
use crate::backend::gemm::RoundedProducts;
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::Lanes;
use forgetting::Forgetting;
use tile::Queries;

/// A struct of scratch memory for a [`Problem`]: fields are slices, given with their lengths.
macro_rules! scratch_memory {
    ($(#[$doc:meta])* struct $name:ident($problem:ident) { $($field:ident: $len:expr,)* }) => {
        $(#[$doc])*
        struct $name<'a, T> {
            $($field: &'a mut [T],)*
        }

        impl<'a, T: Lanes> $name<'a, T> {
            fn from_scratch(memory: &'a mut Scratch, $problem: &Problem) -> Self {
                let [$($field),*] = memory.areas([$($len),*]);
                Self { $($field),* }
            }
        }
    };
}
use scratch_memory;

/// Padding and segments.
pub(super) struct Masks {
    /// `(batch, kv_len)`, 1 = ignored.
    pub(super) padding: Option<Vec<u8>>,
    /// `(batch, len)`
    pub(super) segments: Option<Vec<u32>>,
}

/// Where the optional operands stand in a list that begins with query, key and value.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) attn_mask: Option<usize>,
    pub(super) sink: Option<usize>,
    pub(super) log_forget: Option<usize>,
}

/// The operands, locked for reading.
pub(super) struct Operands<'a, T: 'static> {
    query: Strided<'a, T>,
    key: Strided<'a, T>,
    value: Strided<'a, T>,
    /// The additive mask, broadcast to `(batch, heads, q_len, kv_len)` by its strides.
    attn_mask: Option<Strided<'a, T>>,
    /// Whether the gradient of the additive mask is needed.
    is_mask_learnt: bool,
    /// `(n_heads)`
    sink: Option<View<'a, T>>,
    forgetting: Option<Forgetting<T>>,
    masks: &'a Masks,
    /// For products with operands rounded to bf16.
    rounded: Option<RoundedProducts<T>>,
}

impl<'a, T: Lanes> Operands<'a, T> {
    /// The operands: query, key and value with contiguous rows, and the optional ones at their `places`.
    pub(super) fn from_tensors(
        problem: &Problem,
        masks: &'a Masks,
        tensors: &'a [Tensor],
        places: Places,
    ) -> Result<Self> {
        let attn_mask = places.attn_mask.map(|at| &tensors[at]);
        let sink = places.sink.map(|at| View::from_tensor(&tensors[at]));
        let log_forget = places.log_forget.map(|at| View::from_tensor(&tensors[at])).transpose()?;
        let forgetting = log_forget
            .map(|log_forget| Forgetting::new(problem, &log_forget, masks.padding.as_deref()));
        Ok(Self {
            query: Strided::from_tensor(&tensors[0], problem.layout)?,
            key: Strided::from_tensor(&tensors[1], problem.layout)?,
            value: Strided::from_tensor(&tensors[2], problem.layout)?,
            attn_mask: attn_mask.map(Strided::of_mask).transpose()?,
            is_mask_learnt: attn_mask.is_some_and(Tensor::track_op),
            sink: sink.transpose()?,
            forgetting,
            masks,
            rounded: problem.rounding.and_then(RoundedProducts::with),
        })
    }
}

/// The softmax statistics of a row: its weights are scale · exp(score − shift).
#[derive(Clone, Copy)]
pub(super) struct RowStatistics<T> {
    /// The largest score.
    shift: T,
    /// One over the sum of exponentials; 0 if the row reads nothing.
    scale: T,
}

/// `(batch, heads, len, width)`, with contiguous rows.
pub(super) struct Strided<'a, T> {
    elements: View<'a, T>,
    /// The distance between examples, heads and rows.
    strides: [usize; 3],
    len: usize,
    width: usize,
}

impl<'a, T: Lanes> Strided<'a, T> {
    pub(super) fn from_tensor(tensor: &'a Tensor, layout: Layout) -> Result<Self> {
        let [.., len, width] = layout.heads_first(tensor)?;
        let &[batch, a, b, 1] = tensor.stride() else {
            bail!("attention was given rows that are not contiguous")
        };
        let [batch, heads, rows, _] = layout.ordered([batch, a, b, 1]);
        Ok(Self { elements: View::from_start(tensor)?, strides: [batch, heads, rows], len, width })
    }

    /// `(q_len, kv_len)` for all heads, or `(n_heads, q_len, kv_len)`, contiguous.
    fn of_mask(mask: &'a Tensor) -> Result<Self> {
        let (len, width) = (mask.dim(D::Minus2)?, mask.dim(D::Minus1)?);
        let head = if mask.rank() == 2 { 0 } else { len * width };
        Ok(Self { elements: View::from_tensor(mask)?, strides: [0, head, width], len, width })
    }

    /// `(len, width)`
    fn matrix(&self, batch: usize, head: usize) -> Matrix<'_, T> {
        let [batches, heads, rows] = self.strides;
        let elements = &self.elements[batch * batches + head * heads..];
        Matrix::strided(elements, (self.len, self.width), (rows, 1))
    }
}

/// The matrices `(len, width)` of all heads, example by example, to write results to.
fn heads<T>(
    layout: Layout,
    data: &mut [T],
    [n_heads, len, width]: [usize; 3],
) -> impl Iterator<Item = MatrixMut<'_, T>> {
    // With the heads first, each head is treated as an example of one head.
    let across = if layout == Layout::HeadsFirst { 1 } else { n_heads };
    data.chunks_exact_mut(len * across * width).flat_map(move |example| {
        let mut rest = Some(MatrixMut::new(example, (len, across * width)));
        std::iter::from_fn(move || {
            let (head, others) = rest.take()?.split_columns(width);
            rest = (others.columns() > 0).then_some(others);
            Some(head)
        })
    })
}

/// Some queries of one head, and their rows of a result.
struct QueryTile<'a, T> {
    queries: Queries,
    result: MatrixMut<'a, T>,
}

/// The tiles of all queries.
fn query_tiles<'a, T>(
    problem: &Problem,
    result: &'a mut [T],
    width: usize,
) -> Vec<QueryTile<'a, T>> {
    let Problem { batch, n_heads, q_len, layout, .. } = *problem;
    let n_queries = problem.n_queries();
    let mut tiles = Vec::with_capacity(batch * n_heads * q_len.div_ceil(n_queries));
    for (i, head) in heads(layout, result, [n_heads, q_len, width]).enumerate() {
        let mut below = head;
        for first in (0..q_len).step_by(n_queries) {
            let rows = first..(first + n_queries).min(q_len);
            let (result, rest) = below.split_rows(rows.len());
            below = rest;
            let queries = Queries { batch: i / n_heads, head: i % n_heads, rows };
            tiles.push(QueryTile { queries, result });
        }
    }
    tiles
}

impl Problem {
    /// Multiply-adds of the forward if only keys outside of the window are skipped.
    fn multiply_adds(&self) -> usize {
        let widest = self.band.keys(self.q_len - 1).len().max(1);
        self.batch * self.n_heads * self.q_len * widest * (self.head_dim + self.value_dim)
    }

    /// How many of `n_units` equal units of work make a block large enough for a thread.
    fn units_per_block(&self, n_units: usize) -> usize {
        /// Multiply-adds of a block: some microseconds.
        const BLOCK: usize = 1 << 15;
        let per_unit = (self.multiply_adds() / n_units).max(1);
        (BLOCK / per_unit).clamp(1, n_units)
    }
}
