//! Packing: several pieces in one sequence, with little padding.

use rayon::prelude::*;
use tealight_ops::rng::Stream;

use super::pieces::{Piece, Pieces};
use super::{Sequence, SequenceSource};

/// Pieces that are packed together: enough to fill sequences well, few enough to repeat the packing for
/// each access to one of its sequences.
const BLOCK: u64 = 512;

/// Packs the pieces of each block by first fit: each piece, in random order, goes into the first sequence
/// with room for it. First fit takes at most about 1.7 times the minimal number of sequences (Johnson et
/// al. 1974); the usual padding is a few percent.
///
/// Cost: every block is packed once to count its sequences, on all threads, and again for each access to
/// one of them: at most 512²/2 comparisons. Memory: 8 bytes for each block.
#[derive(Debug)]
pub(super) struct Packed {
    pieces: Pieces,
    /// The maximal number of tokens of a sequence.
    length: usize,
    stream: Stream,
    /// The cumulative number of sequences, including each block.
    upto: Vec<u64>,
}

impl Packed {
    pub(super) fn new(pieces: Pieces, length: usize, stream: Stream) -> Self {
        let mut packed = Self { pieces, length, stream, upto: Vec::new() };
        let n_blocks = packed.pieces.n().div_ceil(BLOCK);
        let count = |block: u64| packed.pack(block).len() as u64;
        packed.upto = (0..n_blocks).into_par_iter().map(count).collect();
        let mut total = 0;
        for upto in &mut packed.upto {
            total += *upto;
            *upto = total;
        }
        packed
    }

    /// The sequences of a block.
    fn pack(&self, block: u64) -> Vec<Vec<Piece>> {
        let numbers = block * BLOCK..self.pieces.n().min((block + 1) * BLOCK);
        let pieces = self.pieces.range(numbers);
        let order = self.stream.fork(block).permutation(pieces.len());
        let mut packed: Vec<(usize, Vec<Piece>)> = Vec::new();
        for piece in order.into_iter().map(|at| pieces[at].clone()) {
            let needed = self.pieces.length(&piece);
            match packed.iter_mut().find(|(room, _)| *room >= needed) {
                Some((room, pieces)) => {
                    *room -= needed;
                    pieces.push(piece);
                }
                None => packed.push((self.length - needed, vec![piece])),
            }
        }
        packed.into_iter().map(|(_, pieces)| pieces).collect()
    }
}

impl SequenceSource for Packed {
    fn n(&self) -> u64 {
        self.upto.last().copied().unwrap_or(0)
    }

    fn n_without_context(&self) -> u64 {
        self.pieces.n_without_context()
    }

    fn at(&self, number: u64) -> Sequence {
        let block = self.upto.partition_point(|&upto| upto <= number);
        let before = block.checked_sub(1).map_or(0, |before| self.upto[before]);
        let mut sequences = self.pack(block as u64);
        let pieces = sequences.swap_remove((number - before) as usize);
        let (mut ids, mut segments) = (Vec::with_capacity(self.length), Vec::new());
        for (segment, piece) in (0..).zip(pieces) {
            self.pieces.read(piece, &mut ids);
            segments.resize(ids.len(), segment);
        }
        Sequence { ids, segments: Some(segments) }
    }
}
