//! The CPU loops: one head of one example at a time, or a team of heads in turns, chunk by chunk, as products of small
//! matrices.

mod gradient;
mod heads;
mod pairs;
mod solve;
mod workspace;

use candle_core::Result;

use super::Sizes;
use super::inputs::{Each, EraseKind, Inputs};
use crate::backend::buffer::unwritten;
use crate::backend::gemm::SerialProducts;
use crate::backend::parallel::run;
use crate::backend::simd::vector::Lanes;
use crate::ops::tokens::{Document, Tokens};
use heads::{Head, Rows, Teams, split};
use workspace::Workspace;

/// The settings of a call.
pub(super) struct Rule {
    pub(super) sizes: Sizes,
    erase: EraseKind,
    decays_features: bool,
    teams: Teams,
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
        let (erase, decays_features) = (inputs.shape().erase(), inputs.decays_features());
        Ok(Self {
            sizes,
            erase,
            decays_features,
            teams: Teams::new(sizes, erase == EraseKind::Nothing && !decays_features),
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
        let Sizes { batch, n_heads, .. } = self.sizes;
        let n_state = self.sizes.state();
        let mut output = self.blank(operands.value.len());
        let mut last = match operands.state {
            Some(state) => state.to_vec(),
            None => vec![T::ZERO; batch * n_heads * n_state],
        };
        let n_kept: usize = self.chunks.iter().map(Vec::len).sum();
        let mut kept = unwritten(if keeps_states { n_kept * n_heads * n_state } else { 0 });
        let products = SerialProducts::exact();
        let heads = self.heads(operands).zip(split(&mut output, self.sizes, n_heads));
        let states = last.chunks_mut(n_state).zip(self.kept(&mut kept));
        run::<T, _, _>(
            self.work(),
            self.teams.of(heads.zip(states)).into_iter(),
            #[inline(always)]
            |mut team: Vec<_>| {
                let mut space = Workspace::new(self, &products);
                let ((first, _), _) = team[0];
                for (i, chunk) in self.chunks[first.example].iter().enumerate() {
                    space.load_shared(&first, chunk);
                    for ((head, output), (state, kept)) in &mut team {
                        if chunk.begins_anew {
                            state.fill(T::ZERO);
                        }
                        if let Some(kept) = kept.chunks_exact_mut(n_state).nth(i) {
                            kept.copy_from_slice(state);
                        }
                        space.load(head, chunk);
                        pairs::of(&mut space);
                        space.solve(state);
                        for (&t, row) in chunk.positions.iter().zip(space.read(state)) {
                            output.row(t).copy_from_slice(row);
                        }
                        space.advance(state);
                    }
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
        let Sizes { batch, n_heads, n_features, .. } = self.sizes;
        let n_state = self.sizes.state();
        let mut dstate = match of_state {
            Some(gradient) => gradient.to_vec(),
            None => vec![T::ZERO; batch * n_heads * n_state],
        };
        let mut gradients = self.gradients(operands);
        let Each { query, key, value, strength, erase, erase_key, log_decay, .. } =
            gradients.as_mut();
        let optional = [strength, erase, erase_key, log_decay];
        let rows = Rows::all(value, optional, self.sizes);
        let states = dstate.chunks_mut(n_state).zip(self.kept_of(kept));
        let teams = self.teams.of(self.heads(operands).zip(rows).zip(states));
        let [query, key] =
            [query, key].map(|x| split(x, self.sizes, self.teams.per_example()).into_iter());
        let products = SerialProducts::exact();
        run::<T, _, _>(
            2 * self.work(),
            teams.into_iter().zip(query.zip(key)),
            #[inline(always)]
            |(mut team, (mut query, mut key)): (Vec<_>, _)| {
                let mut space = Workspace::new(self, &products);
                let mut slopes = gradient::Slopes::new(self);
                let ((first, _), _) = team[0];
                for (i, chunk) in self.chunks[first.example].iter().enumerate().rev() {
                    space.load_shared(&first, chunk);
                    for (place, ((head, rows), (dstate, kept))) in team.iter_mut().enumerate() {
                        let state = &kept[i * n_state..][..n_state];
                        space.load(head, chunk);
                        pairs::of(&mut space);
                        space.solve(state);
                        let head = (&*head, place == 0);
                        slopes.of_head(&mut space, head, chunk, of_output, state, dstate);
                        slopes.write(&space, head.0, chunk, rows);
                        if chunk.begins_anew {
                            dstate.fill(T::ZERO);
                        }
                    }
                    slopes.of_team(&space);
                    slopes.write_shared(&space, chunk, [&mut query, &mut key]);
                    if let [((head, rows), _)] = &mut team[..]
                        && self.erase != EraseKind::Nothing
                    {
                        slopes.write_erased(&space, head, chunk, &mut key, rows);
                    }
                }
            },
        );
        gradients.query = self.teams.sums(gradients.query, n_features);
        gradients.key = self.teams.sums(gradients.key, n_features);
        gradients.state = operands.state.map(|_| dstate);
        gradients.into_vec()
    }

    /// Multiply-adds, roughly: whether several threads pay.
    fn work(&self) -> usize {
        let Sizes { batch, len, n_heads, .. } = self.sizes;
        batch * len * n_heads * self.sizes.state()
    }

    /// Memory for the gradients of all operands but the state; of queries and keys, those of each team.
    fn gradients<T: Lanes>(&self, operands: &Each<&[T]>) -> Each<Vec<T>> {
        let Sizes { batch, len, n_features, .. } = self.sizes;
        let shared = || self.blank(batch * len * self.teams.per_example() * n_features);
        let like = |operand: &[T]| self.blank(operand.len());
        Each {
            query: shared(),
            key: shared(),
            value: like(operands.value),
            strength: operands.strength.map(like),
            erase: operands.erase.map(like),
            erase_key: operands.erase_key.map(like),
            log_decay: operands.log_decay.map(like),
            state: None,
        }
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
