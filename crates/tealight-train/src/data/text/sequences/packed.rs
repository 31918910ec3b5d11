//! Several pieces in one sequence, so that little of it is padding.

use rayon::prelude::*;
use tealight_ops::rng::Stream;

use super::pieces::{Piece, Pieces};
use super::{Cut, Sequence};

/// Pieces that are packed together: enough to fill sequences well, few enough to be packed again
/// whenever one of these sequences is asked for.
const BLOCK: u64 = 512;

/// Packs neighbouring pieces, a block at a time: each piece, in random order, goes into the first
/// sequence that has room for it (first fit; Johnson et al. 1974 show that it never takes more than 1.7
/// times the fewest sequences, and a little; the usual waste is a few percent).
///
/// Cost: every block is packed once, on all threads, and again for each of its sequences that is asked
/// for. That is at most 512²/2 looks at sequences that may have room; 8 bytes are kept of a block.
#[derive(Debug)]
pub(super) struct Packed {
    pieces: Pieces,
    /// The most tokens of a sequence.
    length: usize,
    stream: Stream,
    /// Sequences up to and with each block.
    upto: Vec<u64>,
}

impl Packed {
    pub(super) fn new(pieces: Pieces, length: usize, stream: Stream) -> Self {
        let mut packed = Self { pieces, length, stream, upto: Vec::new() };
        let n_blocks = packed.pieces.total().div_ceil(BLOCK);
        let count = |block: u64| packed.pack(block).len() as u64;
        let counts: Vec<u64> = (0..n_blocks).into_par_iter().map(count).collect();
        let mut total = 0;
        packed.upto = counts
            .into_iter()
            .map(|count| {
                total += count;
                total
            })
            .collect();
        packed
    }

    /// The sequences of a block.
    fn pack(&self, block: u64) -> Vec<Vec<Piece>> {
        let numbers = block * BLOCK..self.pieces.total().min((block + 1) * BLOCK);
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

impl Cut for Packed {
    fn n(&self) -> u64 {
        self.upto.last().copied().unwrap_or(0)
    }

    fn n_first(&self) -> u64 {
        self.pieces.n_first()
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
