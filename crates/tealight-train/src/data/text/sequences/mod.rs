//! Sequences of tokens, as a function of (seed, split, index).
//!
//! ```text
//! padded   [CLS] a a a [SEP]                     a piece of one document
//! packed   [CLS] a a [SEP] [CLS] b b b [SEP]     pieces of several, numbered by `segments`
//! stream   a a a a a [SEP] b b b …               documents in a row, cut where they happen to be
//! ```
//!
//! Which tokens a sequence has does not change from epoch to epoch; the order of the sequences does.
//! Both are computed when they are asked for, from the lengths of the documents: what is kept in
//! memory is a number for every 64 documents.

mod index;
mod packed;
mod pieces;
mod rows;
mod stream;

use std::fmt;
use std::sync::Arc;

use tealight_model::names;
use tealight_ops::rng::{Purpose, Stream};

use self::index::Side;
use self::pieces::{CutInto, Pieces};
use super::Holdout;
use super::store::TokenStore;
use super::tokenizer::SpecialTokens;
use crate::data::Permutation;
use crate::data::Split;
use crate::error::{Error, Result};
use crate::limits::positive;

pub use self::rows::Rows;

names! {
    /// `task.sequences`: what makes a sequence.
    pub enum Layout {
        /// One piece of a document, filled up to the longest of the batch.
        "padded" => Padded,
        /// As many pieces of documents as have room; none reads from another.
        "packed" => Packed,
        /// Whatever stands in a row, document after document, with a mark in between.
        "stream" => Stream,
    }
}

/// What a model learns to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicts {
    /// Tokens of the sequence that it does not see: a sequence has `seq_len` tokens.
    Masked,
    /// The token after each: a sequence has one more, the last of which is never read.
    Next,
}

/// Tokens that a model reads together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// `(len)`: at most as many tokens as [`Spec::seq_len`], and one more where [`Predicts::Next`].
    pub ids: Vec<u32>,
    /// `(len)`: which piece each token belongs to, from 0; `None` where sequences have but one.
    pub segments: Option<Vec<u32>>,
}

/// What all sequences have in common.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// What makes a sequence.
    pub layout: Layout,
    /// The most tokens that a model reads.
    pub seq_len: usize,
    /// What it learns to tell.
    pub predicts: Predicts,
}

/// All sequences of a split.
#[derive(Debug)]
pub struct Sequences {
    cut: Box<dyn Cut>,
    side: Side,
    order: Stream,
}

/// Where sequences begin and end.
trait Cut: fmt::Debug + Send + Sync {
    /// How many there are.
    fn n(&self) -> u64;

    /// Number `number` of them, in the order of the corpus.
    fn at(&self, number: u64) -> Sequence;

    /// Tokens of the text that no other stands before, whatever the sequence.
    fn n_first(&self) -> u64;

    /// One that begins anywhere, as draw `index` of the stream has it; `None` where sequences cannot.
    fn anywhere(&self, _stream: Stream, _index: u64) -> Option<Sequence> {
        None
    }
}

impl Sequences {
    /// The sequences of a split, in an order that follows from the seed.
    ///
    /// # Errors
    /// If no document is in the split, or a sequence has no room.
    pub fn new(
        store: &Arc<TokenStore>,
        holdout: Holdout,
        split: Split,
        spec: Spec,
        special: &SpecialTokens,
        seed: u64,
    ) -> Result<Self> {
        let side = Side { store: store.clone(), holdout, split };
        let Spec { layout, seq_len, predicts } = spec;
        positive("task.seq_len", seq_len)?;
        let order = Stream::new(seed, Purpose::Shuffle);
        let ends = pieces::Ends::of(special);
        let length = seq_len + usize::from(predicts == Predicts::Next);
        let cut: Box<dyn Cut> = match layout {
            Layout::Padded => Box::new(Pieces::new(side.clone(), ends, length, CutInto::Even)?),
            Layout::Packed => {
                let pieces = Pieces::new(side.clone(), ends, length, CutInto::Full)?;
                Box::new(packed::Packed::new(pieces, length, order.fork_name("packing")))
            }
            Layout::Stream => {
                Box::new(stream::Windows::new(side.clone(), special.end, seq_len, length)?)
            }
        };
        if cut.n() == 0 {
            return Err(nothing_in(split, store.n_documents()));
        }
        Ok(Self { cut, side, order })
    }

    /// Sequences in an epoch.
    pub fn n(&self) -> u64 {
        self.cut.n()
    }

    /// Sequence `number` in `0..n`, in the order of the corpus.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn at(&self, number: u64) -> Sequence {
        assert!(number < self.n(), "invariant: the number of a sequence");
        self.cut.at(number)
    }

    /// Bytes of the text whose tokens are guessed from those before them. Where nothing stands before a
    /// token, it is given and not guessed; it has as many bytes as the mean token.
    pub fn n_guessed_bytes(&self) -> f64 {
        let (n_tokens, n_bytes) = self.side.extent();
        n_bytes as f64 * (1. - self.cut.n_first() as f64 / n_tokens as f64)
    }

    /// The sequence at a place of an endless row of epochs, each with all sequences in an order of its
    /// own.
    pub fn shuffled(&self, place: u64) -> Sequence {
        let n = self.n();
        self.cut.at(Permutation::new(self.order.fork(place / n), n).at(place % n))
    }

    /// Draw `index` of sequences that begin anywhere; in layouts other than `stream`, where they begin
    /// with a piece, [`Self::shuffled`].
    pub fn anywhere(&self, index: u64) -> Sequence {
        let stream = self.order.fork_name("anywhere");
        self.cut.anywhere(stream, index).unwrap_or_else(|| self.shuffled(index))
    }
}

fn nothing_in(split: Split, n_documents: u64) -> Error {
    let message = match split {
        Split::Train => format!(
            "nothing is left of `task.corpus` to train on: it has {n_documents} documents, and all with \
             any text are held out"
        ),
        Split::Validation => format!(
            "nothing of `task.corpus` is held out: it has {n_documents} documents; hold out more of them, \
             cut them smaller, or hold out a part of a file (`task.corpus.validation_tail`)"
        ),
    };
    Error::config(["task.corpus"], message)
}

#[cfg(test)]
mod tests;
