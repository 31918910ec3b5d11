//! The division of documents into pieces, for the layouts `padded` and `packed`.

use std::ops::Range;

use super::index::{Counted, Index, SplitDocuments};
use super::{Sequence, SequenceSource};
use crate::data::text::tokenizer::SpecialTokens;
use crate::error::{Error, Result};

/// The sizes of the n = ⌈len / room⌉ pieces of a long document.
#[derive(Clone, Copy, Debug)]
pub(super) enum PieceSizes {
    /// Nearly equal, ⌊k·len/n⌋ … ⌊(k+1)·len/n⌋ − 1: no piece is short.
    Even,
    /// `room` tokens each, and a rest. Packing fills sequences with the rests; equal pieces of little more
    /// than half a sequence could not be packed together.
    Full,
}

/// All pieces of all documents of a split.
#[derive(Debug)]
pub(super) struct Pieces {
    index: Index,
    /// The special tokens before and after each piece, if the tokenizer has them.
    begin: Option<u32>,
    end: Option<u32>,
    /// The number of these special tokens.
    n_edges: usize,
    room: u64,
    sizes: PieceSizes,
}

/// A range of tokens of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) document: u64,
    pub(super) tokens: Range<u64>,
}

impl Pieces {
    /// Pieces of at most `length` tokens, including the special ones.
    pub(super) fn new(
        documents: SplitDocuments,
        special: &SpecialTokens,
        length: usize,
        sizes: PieceSizes,
    ) -> Result<Self> {
        let SpecialTokens { begin, end, .. } = *special;
        let n_edges = usize::from(begin.is_some()) + usize::from(end.is_some());
        if length <= n_edges {
            let message = format!(
                "`task.seq_len` leaves no room for text: a sequence of {length} tokens includes {n_edges} special \
                 tokens and must have at least {}",
                n_edges + 1
            );
            return Err(Error::config(["task.seq_len"], message));
        }
        let room = (length - n_edges) as u64;
        let index = Index::new(documents, Counted::Pieces(room));
        Ok(Self { index, begin, end, n_edges, room, sizes })
    }

    /// The pieces with the given numbers.
    pub(super) fn range(&self, numbers: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity((numbers.end - numbers.start) as usize);
        let (mut document, mut k) = self.index.find(numbers.start);
        while (pieces.len() as u64) < numbers.end - numbers.start {
            let n = self.index.count(document);
            if k < n {
                let len = self.index.documents.n_tokens(document);
                let tokens = match self.sizes {
                    PieceSizes::Even => k * len / n..(k + 1) * len / n,
                    PieceSizes::Full => k * self.room..len.min((k + 1) * self.room),
                };
                pieces.push(Piece { document, tokens });
                k += 1;
            } else {
                (document, k) = (document + 1, 0);
            }
        }
        pieces
    }

    /// The number of tokens of a piece in a sequence.
    pub(super) fn length(&self, piece: &Piece) -> usize {
        (piece.tokens.end - piece.tokens.start) as usize + self.n_edges
    }

    /// Appends a piece with its special tokens.
    pub(super) fn read(&self, piece: Piece, into: &mut Vec<u32>) {
        into.extend(self.begin);
        self.index.documents.store.read(piece.document, piece.tokens, into);
        into.extend(self.end);
    }
}

impl SequenceSource for Pieces {
    fn n(&self) -> u64 {
        self.index.total
    }

    /// One in each piece, unless it has a begin token.
    fn n_without_context(&self) -> u64 {
        if self.begin.is_some() { 0 } else { self.n() }
    }

    fn at(&self, number: u64) -> Sequence {
        let mut ids = Vec::new();
        for piece in self.range(number..number + 1) {
            self.read(piece, &mut ids);
        }
        Sequence { ids, segments: None }
    }
}
