//! Pieces of a sequence that is longer than a model reads.
//!
//! ```text
//! 0 1 2 3 4 5            pieces of 6 tokens that share 2 with the one before
//!         4 5 6 7 8 9    what two pieces share is tagged in the one in which it stands farther from the end
//! ```

use std::ops::Range;

/// A piece of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The tokens that the model reads together.
    pub(crate) tokens: Range<usize>,
    /// Those that are tagged in this piece, and in no other.
    pub(crate) owned: Range<usize>,
}

/// Divides `n` tokens into pieces of at most `len` tokens. Neighbouring pieces share `stride` tokens, fewer than `len`.
pub(crate) fn pieces(n: usize, len: usize, stride: usize) -> Vec<Piece> {
    let step = len - stride;
    let n_pieces = if n <= len { usize::from(n > 0) } else { 1 + (n - len).div_ceil(step) };
    let range = |at: usize| at * step..(at * step + len).min(n);
    let middle = |at: usize| at * step + stride / 2;
    let piece = |at: usize| {
        let start = if at == 0 { 0 } else { middle(at) };
        let end = if at + 1 == n_pieces { n } else { middle(at + 1) };
        Piece { tokens: range(at), owned: start..end }
    };
    (0..n_pieces).map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_tagged_once_within_its_piece() {
        for (n, len, stride) in
            [(0, 5, 0), (5, 5, 3), (6, 5, 0), (6, 5, 3), (23, 7, 4), (101, 10, 9)]
        {
            let pieces = pieces(n, len, stride);
            let mut owned = Vec::new();
            for Piece { tokens, owned: own } in &pieces {
                assert!(tokens.len() <= len && tokens.start <= own.start && own.end <= tokens.end);
                owned.extend(own.clone());
            }
            assert_eq!(owned, (0..n).collect::<Vec<_>>(), "{n} {len} {stride}");
            for two in pieces.windows(2) {
                assert_eq!(two[0].tokens.end - two[1].tokens.start, stride);
            }
        }
        assert_eq!(pieces(10, 6, 2).len(), 2);
    }
}
