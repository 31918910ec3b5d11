//! Pieces of documents: what `padded` reads one by one, and `packed` together.

use std::ops::Range;

use super::index::{Index, Side, Unit};
use super::{Cut, Sequence};
use crate::data::text::tokenizer::SpecialTokens;
use crate::error::{Error, Result};

/// What stands before and after each piece, where the tokenizer has such tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    begin: Option<u32>,
    end: Option<u32>,
}

impl Ends {
    pub(super) fn of(special: &SpecialTokens) -> Self {
        Self { begin: special.begin, end: special.end }
    }

    fn n(self) -> usize {
        usize::from(self.begin.is_some()) + usize::from(self.end.is_some())
    }
}

/// Where a document is cut that has no room in one piece. It takes n = ⌈len / room⌉ of them either way.
#[derive(Clone, Copy, Debug)]
pub(super) enum CutInto {
    /// Pieces of about one length, ⌊k·len/n⌋ … ⌊(k+1)·len/n⌋ − 1: none has little to read.
    Even,
    /// Pieces of `room` tokens and a rest. The rests fill sequences; two pieces of a little more than half
    /// a sequence would leave the other half of two empty.
    Full,
}

/// All pieces of all documents of a split.
#[derive(Debug)]
pub(super) struct Pieces {
    index: Index,
    ends: Ends,
    room: u64,
    cut_into: CutInto,
}

/// Tokens of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) document: u64,
    pub(super) tokens: Range<u64>,
}

impl Pieces {
    /// Pieces of at most `length` tokens, with those at their ends.
    pub(super) fn new(side: Side, ends: Ends, length: usize, cut_into: CutInto) -> Result<Self> {
        let Some(room) = length.checked_sub(ends.n()).filter(|&room| room > 0) else {
            let key = "task.seq_len";
            let (n, needed) = (ends.n(), ends.n() + 1);
            let message = format!(
                "`{key}` leaves no room for text: a sequence of {length} tokens begins and ends with {n} \
                 of the tokenizer's own, and must have at least {needed}"
            );
            return Err(Error::config([key], message));
        };
        let room = room as u64;
        Ok(Self { index: Index::new(side, Unit::Pieces(room)), ends, room, cut_into })
    }

    pub(super) fn total(&self) -> u64 {
        self.index.total()
    }

    /// Tokens of the text that no other stands before: one in each piece, unless it has a begin token.
    pub(super) fn n_first(&self) -> u64 {
        if self.ends.begin.is_some() { 0 } else { self.total() }
    }

    /// Pieces one after another.
    pub(super) fn range(&self, numbers: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity((numbers.end - numbers.start) as usize);
        let (mut document, mut k) = self.index.find(numbers.start);
        while (pieces.len() as u64) < numbers.end - numbers.start {
            let n = self.index.count(document);
            if k < n {
                let len = self.index.side.n_tokens(document);
                let tokens = match self.cut_into {
                    CutInto::Even => k * len / n..(k + 1) * len / n,
                    CutInto::Full => k * self.room..len.min((k + 1) * self.room),
                };
                pieces.push(Piece { document, tokens });
                k += 1;
            } else {
                (document, k) = (document + 1, 0);
            }
        }
        pieces
    }

    /// Tokens that a piece takes in a sequence.
    pub(super) fn length(&self, piece: &Piece) -> usize {
        (piece.tokens.end - piece.tokens.start) as usize + self.ends.n()
    }

    /// Appends a piece, with the tokens at its ends.
    pub(super) fn read(&self, piece: Piece, into: &mut Vec<u32>) {
        into.extend(self.ends.begin);
        self.index.side.store.read(piece.document, piece.tokens, into);
        into.extend(self.ends.end);
    }
}

impl Cut for Pieces {
    fn n(&self) -> u64 {
        self.total()
    }

    fn n_first(&self) -> u64 {
        self.n_first()
    }

    fn at(&self, number: u64) -> Sequence {
        let mut ids = Vec::new();
        for piece in self.range(number..number + 1) {
            self.read(piece, &mut ids);
        }
        Sequence { ids, segments: None }
    }
}
