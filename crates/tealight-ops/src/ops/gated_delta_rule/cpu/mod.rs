//! The CPU loops: one head of one example at a time, chunk by chunk, as products of small matrices.

mod gradient;
mod pairs;
mod solve;
mod workspace;

use candle_core::Result;

use super::Sizes;
use super::inputs::{Each, EraseKind, Inputs};
use crate::backend::buffer::unwritten;
use crate::backend::gemm::SerialProducts;
use crate::backend::matrix::MatrixMut;
use crate::backend::parallel::run;
use crate::backend::simd::vector::Lanes;
use crate::ops::tokens::{Document, Tokens};
use workspace::Workspace;

/// The settings of a call.
pub(super) struct Rule {
    pub(super) sizes: Sizes,
    erase: EraseKind,
    decays_features: bool,
    /// Of each example.
    chunks: Vec<Vec<Chunk>>,
    has_padding: bool,
    /// The most tokens of a chunk.
    longest: usize,
}

/// Some tokens of one document.
struct Chunk {
    /// Whether the state before it is 0, because a document begins that is not the first of the sequence.
    begins_anew: bool,
    positions: Vec<usize>,
}

/// The operands of one head of one example.
#[derive(Clone, Copy)]
struct Head<'a, T> {
    operands: &'a Each<&'a [T]>,
    sizes: Sizes,
    example: usize,
    index: usize,
}

impl<'a, T> Head<'a, T> {
    /// What `x (batch, len, n_heads, width)` holds for this head at position `t`.
    #[inline(always)]
    fn row(&self, x: &'a [T], t: usize, width: usize) -> &'a [T] {
        let Sizes { len, n_heads, .. } = self.sizes;
        &x[((self.example * len + t) * n_heads + self.index) * width..][..width]
    }
}

impl Rule {
    pub(super) fn new(
        sizes: Sizes,
        inputs: &Inputs,
        tokens: Tokens<'_>,
        longest: usize,
    ) -> Result<Self> {
        let chunks_of = |documents: Vec<Document>| {
            let of_document = |(i, document): (usize, Document)| {
                let mut chunks: Vec<_> = document
                    .chunks(longest)
                    .map(|positions| Chunk { begins_anew: false, positions: positions.to_vec() })
                    .collect();
                if chunks.is_empty() {
                    chunks.push(Chunk { begins_anew: false, positions: Vec::new() });
                }
                chunks[0].begins_anew = i > 0;
                chunks
            };
            documents.into_iter().enumerate().flat_map(of_document).collect()
        };
        let documents = tokens.documents(sizes.batch, sizes.len)?;
        let chunks: Vec<Vec<Chunk>> = documents.into_iter().map(chunks_of).collect();
        let lens = chunks.iter().flatten().map(|chunk| chunk.positions.len());
        Ok(Self {
            sizes,
            erase: inputs.shape().erase(),
            decays_features: inputs.decays_features(),
            has_padding: tokens.key_padding_mask.is_some(),
            longest: lens.max().unwrap_or(0),
            chunks,
        })
    }

    /// The outputs, the last states and, if `keeps_states`, the states before each chunk, by example, head and chunk.
    pub(super) fn forward<T: Lanes>(
        &self,
        operands: &Each<&[T]>,
        keeps_states: bool,
    ) -> (Vec<T>, Vec<T>, Vec<T>) {
        let Sizes { batch, n_heads, width, .. } = self.sizes;
        let n_state = self.sizes.state();
        let mut output = self.blank(operands.value.len());
        let mut last = match operands.state {
            Some(state) => state.to_vec(),
            None => vec![T::ZERO; batch * n_heads * n_state],
        };
        let n_kept: usize = self.chunks.iter().map(Vec::len).sum();
        let mut kept = unwritten(if keeps_states { n_kept * n_heads * n_state } else { 0 });
        let products = SerialProducts::exact();
        let heads = self.heads(operands).zip(by_head(&mut output, self.sizes, width));
        let states = last.chunks_mut(n_state).zip(self.kept(&mut kept));
        run::<T, _, _>(
            self.work(),
            heads.zip(states),
            #[inline(always)]
            |((head, mut output), (state, kept))| {
                let mut space = Workspace::new(self, &products);
                let mut kept = kept.chunks_exact_mut(n_state);
                for chunk in &self.chunks[head.example] {
                    if chunk.begins_anew {
                        state.fill(T::ZERO);
                    }
                    if let Some(kept) = kept.next() {
                        kept.copy_from_slice(state);
                    }
                    space.load(&head, chunk);
                    pairs::of(&mut space);
                    space.solve(state);
                    for (&t, row) in chunk.positions.iter().zip(space.read(state)) {
                        output.row(t).copy_from_slice(row);
                    }
                    space.advance(state);
                }
            },
        );
        (output, last, kept)
    }

    /// The gradients of the operands, from the states before each chunk and the gradients of outputs and last states.
    pub(super) fn backward<T: Lanes>(
        &self,
        operands: &Each<&[T]>,
        kept: &[T],
        of_output: Option<&[T]>,
        of_state: Option<&[T]>,
    ) -> Vec<Vec<T>> {
        let Sizes { batch, n_heads, .. } = self.sizes;
        let n_state = self.sizes.state();
        let mut dstate = match of_state {
            Some(gradient) => gradient.to_vec(),
            None => vec![T::ZERO; batch * n_heads * n_state],
        };
        let mut gradients = operands.as_ref().map(|operand| self.blank(operand.len()));
        gradients.state = None;
        let tasks = {
            let mut rows = gradients.as_mut().map(|x| {
                let width = x.len() / (batch * self.sizes.len * n_heads);
                by_head(x, self.sizes, width).into_iter()
            });
            let mut states = dstate.chunks_mut(n_state);
            let next = move |head| {
                let rows = rows.as_mut().map(|rows| rows.next().expect(A_HEAD));
                (head, rows, states.next().expect(A_HEAD))
            };
            self.heads(operands).map(next)
        };
        let products = SerialProducts::exact();
        run::<T, _, _>(
            2 * self.work(),
            tasks.zip(self.kept_of(kept)),
            #[inline(always)]
            |((head, mut rows, dstate), kept)| {
                let mut space = Workspace::new(self, &products);
                let mut slopes = gradient::Slopes::new(self);
                let chunks = self.chunks[head.example].iter().zip(kept.chunks_exact(n_state));
                for (chunk, state) in chunks.rev() {
                    space.load(&head, chunk);
                    pairs::of(&mut space);
                    space.solve(state);
                    slopes.chunk(&mut space, &head, chunk, of_output, state, dstate);
                    slopes.write(&space, &head, chunk, &mut rows);
                    if chunk.begins_anew {
                        dstate.fill(T::ZERO);
                    }
                }
            },
        );
        gradients.state = operands.state.map(|_| dstate);
        gradients.into_vec()
    }

    /// Multiply-adds, roughly: whether several threads pay.
    fn work(&self) -> usize {
        let Sizes { batch, len, n_heads, .. } = self.sizes;
        batch * len * n_heads * self.sizes.state()
    }

    /// Memory for results, which are 0 at padding.
    fn blank<T: Lanes>(&self, n: usize) -> Vec<T> {
        if self.has_padding { vec![T::ZERO; n] } else { unwritten(n) }
    }

    fn heads<'a, T>(
        &self,
        operands: &'a Each<&'a [T]>,
    ) -> impl Iterator<Item = Head<'a, T>> + use<'a, T> {
        let (sizes, n) = (self.sizes, self.sizes.batch * self.sizes.n_heads);
        (0..n).map(move |i| Head {
            operands,
            sizes,
            example: i / sizes.n_heads,
            index: i % sizes.n_heads,
        })
    }

    /// The elements of the kept states of each head.
    fn lens_of_kept(&self) -> impl Iterator<Item = usize> {
        let per_chunk = self.sizes.state();
        self.chunks.iter().flat_map(move |chunks| {
            std::iter::repeat_n(chunks.len() * per_chunk, self.sizes.n_heads)
        })
    }

    /// The memory for the kept states of each head; empty if none are kept.
    fn kept<'a, T>(&self, mut all: &'a mut [T]) -> Vec<&'a mut [T]> {
        let are_kept = !all.is_empty();
        let mut take = |len: usize| {
            let (first, rest) =
                std::mem::take(&mut all).split_at_mut(if are_kept { len } else { 0 });
            all = rest;
            first
        };
        self.lens_of_kept().map(&mut take).collect()
    }

    /// The kept states of each head.
    fn kept_of<'a, T>(&self, mut all: &'a [T]) -> Vec<&'a [T]> {
        let mut take = |len: usize| {
            let (first, rest) = all.split_at(len);
            all = rest;
            first
        };
        self.lens_of_kept().map(&mut take).collect()
    }
}

const A_HEAD: &str = "invariant: one for each head";

/// `x (batch, len, n_heads, width)` as one matrix `(len, width)` for each head of each example.
fn by_head<T>(x: &mut [T], sizes: Sizes, width: usize) -> Vec<MatrixMut<'_, T>> {
    let Sizes { batch, len, n_heads, .. } = sizes;
    let mut all = Vec::with_capacity(batch * n_heads);
    for example in x.chunks_mut(len * n_heads * width) {
        let mut rest = MatrixMut::new(example, (len, n_heads * width));
        for _ in 0..n_heads {
            let (head, others) = rest.split_columns(width);
            all.push(head);
            rest = others;
        }
    }
    all
}
