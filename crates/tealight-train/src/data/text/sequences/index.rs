//! Finds the document that contains a piece or token, with little memory.

use std::sync::Arc;

use rayon::prelude::*;

use crate::data::split::Split;
use crate::data::text::holdout::Holdout;
use crate::data::text::store::TokenStore;

/// The documents of a split.
#[derive(Clone, Debug)]
pub(super) struct SplitDocuments {
    pub(super) store: Arc<TokenStore>,
    pub(super) holdout: Holdout,
    pub(super) split: Split,
}

impl SplitDocuments {
    /// The number of tokens of a document; 0 if it belongs to the other split.
    pub(super) fn n_tokens(&self, document: u64) -> u64 {
        let split = self.holdout.split(document, self.store.split_of(document));
        if split == self.split { self.store.n_tokens_of(document) } else { 0 }
    }

    /// The numbers of tokens and of bytes of text of all documents. O(documents) time.
    pub(super) fn size(&self) -> (u64, u64) {
        let size = |document: u64| match self.n_tokens(document) {
            0 => (0, 0),
            n_tokens => (n_tokens, self.store.n_bytes_of(document)),
        };
        let documents = (0..self.store.n_documents()).into_par_iter();
        documents.map(size).reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// The unit that an index counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    /// Pieces of at most this many tokens.
    Pieces(u64),
    /// Tokens, and a separator after each document.
    TokensAndSeparator,
}

impl Counted {
    /// The number of units in a document of `n_tokens`.
    pub(super) fn count(self, n_tokens: u64) -> u64 {
        match self {
            Self::Pieces(room) => n_tokens.div_ceil(room),
            Self::TokensAndSeparator if n_tokens == 0 => 0,
            Self::TokensAndSeparator => n_tokens + 1,
        }
    }
}

/// The number of documents between two stored counts.
const BLOCK: u64 = 64;

/// The units of all documents, numbered consecutively.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) documents: SplitDocuments,
    unit: Counted,
    /// The number of units before documents 0, 64, 128, …
    before: Vec<u64>,
    /// The number of units.
    pub(super) total: u64,
}

impl Index {
    /// Counts on all threads. O(documents) time; 8 bytes for every 64 documents.
    pub(super) fn new(documents: SplitDocuments, unit: Counted) -> Self {
        let n = documents.store.n_documents();
        let count = |block: u64| -> u64 {
            let of_block = block * BLOCK..n.min((block + 1) * BLOCK);
            of_block.map(|document| unit.count(documents.n_tokens(document))).sum()
        };
        let mut before: Vec<u64> = (0..n.div_ceil(BLOCK)).into_par_iter().map(count).collect();
        let mut total = 0;
        for before in &mut before {
            total += std::mem::replace(before, total);
        }
        Self { documents, unit, before, total }
    }

    /// The document of unit `place`, and the number of the unit in that document.
    pub(super) fn find(&self, place: u64) -> (u64, u64) {
        assert!(place < self.total, "invariant: the number of a unit");
        let block = self.before.partition_point(|&before| before <= place) - 1;
        let (mut document, mut left) = (block as u64 * BLOCK, place - self.before[block]);
        loop {
            let count = self.count(document);
            if left < count {
                return (document, left);
            }
            left -= count;
            document += 1;
        }
    }

    /// The number of units of a document.
    pub(super) fn count(&self, document: u64) -> u64 {
        self.unit.count(self.documents.n_tokens(document))
    }
}
