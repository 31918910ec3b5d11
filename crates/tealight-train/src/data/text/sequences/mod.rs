//! Sequences of tokens, as a function of (seed, split, index).
//!
//! ```text
//! padded   [CLS] a a a [SEP]                     a piece of one document
//! packed   [CLS] a a [SEP] [CLS] b b b [SEP]     pieces of several documents, numbered by `segments`
//! stream   a a a a a [SEP] b b b …               concatenated documents, cut every `seq_len` tokens
//! ```
//!
//! The sequences are the same in every epoch, but in another order. Both are computed on access from the
//! lengths of the documents; only one number for every 64 documents is stored.

mod index;
mod packed;
mod pieces;
mod rows;
mod stream;

use std::fmt;
use std::sync::Arc;

use tealight_model::names;
use tealight_ops::rng::{Purpose, Stream};

use self::index::SplitDocuments;
use self::pieces::{PieceSizes, Pieces};
use super::holdout::Holdout;
use super::store::TokenStore;
use super::tokenizer::SpecialTokens;
use crate::checks::positive;
use crate::data::permutation::Permutation;
use crate::data::split::Split;
use crate::error::{Error, Result};

pub use self::rows::Rows;

names! {
    /// `task.sequences`: how documents form sequences.
    pub enum Layout {
        /// One piece of a document, padded to the longest of the batch.
        "padded" => Padded,
        /// As many pieces of documents as fit; attention stays within a piece.
        "packed" => Packed,
        /// Windows of the concatenated documents, with an end token between two of them.
        "stream" => Stream,
    }
}

/// The tokens that a model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicts {
    /// Masked tokens of the sequence, which has `seq_len` tokens.
    Masked,
    /// The token after each: a sequence has one more token, whose last is a label only.
    Next,
}

/// A sequence of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// `(len)`: at most [`Spec::seq_len`] tokens, and one more with [`Predicts::Next`].
    pub ids: Vec<u32>,
    /// `(len)`: the number of each token's piece, from 0; `None` for layouts with one piece in a sequence.
    pub segments: Option<Vec<u32>>,
}

/// The settings of sequences.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// How documents form sequences.
    pub layout: Layout,
    /// The maximal number of tokens that a model reads.
    pub seq_len: usize,
    /// The tokens that it predicts.
    pub predicts: Predicts,
}

/// All sequences of a split.
#[derive(Debug)]
pub struct Sequences {
    source: Box<dyn SequenceSource>,
    documents: SplitDocuments,
    order: Stream,
}

/// The sequences of a layout.
trait SequenceSource: fmt::Debug + Send + Sync {
    /// The number of sequences.
    fn n(&self) -> u64;

    /// Sequence `number`, in the order of the corpus.
    fn at(&self, number: u64) -> Sequence;

    /// The number of text tokens of all sequences without a token before them.
    fn n_without_context(&self) -> u64;

    /// A sequence that begins at a random token, draw `index` of the stream; `None` if the layout has no
    /// such sequences.
    fn random_window(&self, _stream: Stream, _index: u64) -> Option<Sequence> {
        None
    }
}

impl Sequences {
    /// The sequences of a split; `seed` decides their order.
    ///
    /// # Errors
    /// If the split has no text, or `seq_len` has no room for text.
    pub fn new(
        store: &Arc<TokenStore>,
        holdout: Holdout,
        split: Split,
        spec: Spec,
        special: &SpecialTokens,
        seed: u64,
    ) -> Result<Self> {
        let documents = SplitDocuments { store: store.clone(), holdout, split };
        let Spec { layout, seq_len, predicts } = spec;
        positive("task.seq_len", seq_len)?;
        let order = Stream::new(seed, Purpose::Shuffle);
        let length = seq_len + usize::from(predicts == Predicts::Next);
        let pieces = |sizes| Pieces::new(documents.clone(), special, length, sizes);
        let source: Box<dyn SequenceSource> = match layout {
            Layout::Padded => Box::new(pieces(PieceSizes::Even)?),
            Layout::Packed => {
                let pieces = pieces(PieceSizes::Full)?;
                Box::new(packed::Packed::new(pieces, length, order.fork_name("packing")))
            }
            Layout::Stream => {
                Box::new(stream::Windows::new(documents.clone(), special.end, seq_len, length)?)
            }
        };
        if source.n() == 0 {
            return Err(empty_split(split, store.n_documents()));
        }
        Ok(Self { source, documents, order })
    }

    /// The number of sequences in an epoch.
    pub fn n(&self) -> u64 {
        self.source.n()
    }

    /// Sequence `number`, in the order of the corpus.
    ///
    /// # Panics
    /// If `number` is not below [`Self::n`].
    pub fn at(&self, number: u64) -> Sequence {
        assert!(number < self.n(), "invariant: the number of a sequence");
        self.source.at(number)
    }

    /// The number of bytes of text whose tokens are predicted from the tokens before them. Tokens without a
    /// token before them are not predicted; they count with the mean number of bytes of a token.
    pub fn n_predicted_bytes(&self) -> f64 {
        let (n_tokens, n_bytes) = self.documents.size();
        n_bytes as f64 * (1. - self.source.n_without_context() as f64 / n_tokens as f64)
    }

    /// The sequence at `place` of the endless sequence of epochs, each a new permutation of all sequences.
    pub fn shuffled(&self, place: u64) -> Sequence {
        let n = self.n();
        self.source.at(Permutation::new(self.order.fork(place / n), n).at(place % n))
    }

    /// A sequence that begins at a random token, draw `index`. Layouts other than `stream` have no such
    /// sequences and use [`Self::shuffled`].
    pub fn random_window(&self, index: u64) -> Sequence {
        // The name decides the random numbers.
        let stream = self.order.fork_name("anywhere");
        self.source.random_window(stream, index).unwrap_or_else(|| self.shuffled(index))
    }
}

fn empty_split(split: Split, n_documents: u64) -> Error {
    let message = match split {
        Split::Train => format!(
            "nothing is left of `task.corpus` to train on: it has {n_documents} documents, and all that have \
             text are held out"
        ),
        Split::Validation => format!(
            "nothing of `task.corpus` is held out: it has {n_documents} documents; hold out a larger share, \
             use smaller documents, or hold out the end of a file (`task.corpus.validation_tail`)"
        ),
    };
    Error::config(["task.corpus"], message)
}

#[cfg(test)]
mod tests;
