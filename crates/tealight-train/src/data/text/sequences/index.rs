//! Finds the document that something is in, among many, with little memory.

use std::sync::Arc;

use rayon::prelude::*;

use crate::data::Split;
use crate::data::text::Holdout;
use crate::data::text::store::TokenStore;

/// The documents of a split.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) store: Arc<TokenStore>,
    pub(super) holdout: Holdout,
    pub(super) split: Split,
}

impl Side {
    /// Tokens of a document; 0 if it is on the other side.
    pub(super) fn n_tokens(&self, document: u64) -> u64 {
        let side = self.holdout.side(document, self.store.split_of(document));
        if side == self.split { self.store.n_tokens_of(document) } else { 0 }
    }

    /// Tokens of all documents, and bytes of the text that became them. O(documents) time.
    pub(super) fn extent(&self) -> (u64, u64) {
        let extent = |document: u64| match self.n_tokens(document) {
            0 => (0, 0),
            n_tokens => (n_tokens, self.store.n_bytes_of(document)),
        };
        let documents = (0..self.store.n_documents()).into_par_iter();
        documents.map(extent).reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// What is counted in a document.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    /// Pieces of at most so many tokens.
    Pieces(u64),
    /// Tokens, and one behind them for a mark.
    TokensAndMark,
}

impl Unit {
    /// How many there are in a document of `n_tokens`.
    pub(super) fn count(self, n_tokens: u64) -> u64 {
        match self {
            Self::Pieces(room) => n_tokens.div_ceil(room),
            Self::TokensAndMark if n_tokens == 0 => 0,
            Self::TokensAndMark => n_tokens + 1,
        }
    }
}

/// How many documents stand between two numbers that are kept.
const EVERY: u64 = 64;

/// Units of all documents, numbered through.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) side: Side,
    unit: Unit,
    /// Units before documents 0, 64, 128, …
    before: Vec<u64>,
    total: u64,
}

impl Index {
    /// Counts on all threads; O(documents) time, and 8 bytes for every 64 of them.
    pub(super) fn new(side: Side, unit: Unit) -> Self {
        let n = side.store.n_documents();
        let count = |block: u64| -> u64 {
            let documents = block * EVERY..n.min((block + 1) * EVERY);
            documents.map(|document| unit.count(side.n_tokens(document))).sum()
        };
        let counts: Vec<u64> = (0..n.div_ceil(EVERY)).into_par_iter().map(count).collect();
        let mut total = 0;
        let before = counts
            .into_iter()
            .map(|count| {
                total += count;
                total - count
            })
            .collect();
        Self { side, unit, before, total }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The document of unit `place`, and which of its own units that is.
    pub(super) fn find(&self, place: u64) -> (u64, u64) {
        assert!(place < self.total, "invariant: the number of a unit");
        let block = self.before.partition_point(|&before| before <= place) - 1;
        let (mut document, mut left) = (block as u64 * EVERY, place - self.before[block]);
        loop {
            let count = self.count(document);
            if left < count {
                return (document, left);
            }
            left -= count;
            document += 1;
        }
    }

    /// Units of a document.
    pub(super) fn count(&self, document: u64) -> u64 {
        self.unit.count(self.side.n_tokens(document))
    }
}
