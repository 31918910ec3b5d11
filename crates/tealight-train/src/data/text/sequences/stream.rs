//! All documents in a row.

use tealight_ops::rng::Stream;

use super::index::{Index, Side, Unit};
use super::{Cut, Sequence};
use crate::error::{Error, Result};

/// Documents of a split one after another, with the end token between two of them, in windows of
/// `seq_len` tokens. A window that predicts the next token reaches one further, into the window that
/// follows, so that every token but the first is predicted once.
#[derive(Debug)]
pub(super) struct Windows {
    index: Index,
    mark: Option<u32>,
    seq_len: u64,
    /// Tokens in a window.
    length: u64,
    total: u64,
}

impl Windows {
    pub(super) fn new(
        side: Side,
        mark: Option<u32>,
        seq_len: usize,
        length: usize,
    ) -> Result<Self> {
        let index = Index::new(side, Unit::TokensAndMark);
        // The mark of the last document stands between it and nothing.
        let total = index.total().saturating_sub(1);
        let windows = Self { index, mark, seq_len: seq_len as u64, length: length as u64, total };
        if mark.is_none() && total > 0 && windows.has_more_than_one_document() {
            let message = "`task.sequences` = \"stream\" joins documents by an end token ([SEP], </s>, \
                           <|endoftext|>), and the tokenizer has none";
            return Err(Error::config(["task.sequences", "task.tokenizer"], message));
        }
        Ok(windows)
    }

    fn has_more_than_one_document(&self) -> bool {
        self.index.find(0).0 != self.index.find(self.total).0
    }

    /// The tokens at places `start…` up to the end of the window, or of all.
    fn window(&self, start: u64) -> Sequence {
        let end = self.total.min(start + self.length);
        let mut ids = Vec::with_capacity((end - start) as usize);
        let (mut document, mut at) = self.index.find(start);
        let store = &self.index.side.store;
        while (ids.len() as u64) < end - start {
            let n = self.index.side.n_tokens(document);
            let left = end - start - ids.len() as u64;
            if n > 0 {
                store.read(document, at..n.min(at + left), &mut ids);
                if n < at + left {
                    ids.extend(self.mark);
                }
            }
            (document, at) = (document + 1, 0);
        }
        Sequence { ids, segments: None }
    }
}

impl Cut for Windows {
    fn n(&self) -> u64 {
        // What a window shares with the next is not enough for a window of its own.
        let shared = self.length - self.seq_len;
        self.total.saturating_sub(shared).div_ceil(self.seq_len)
    }

    fn n_first(&self) -> u64 {
        self.total.min(1)
    }

    fn at(&self, number: u64) -> Sequence {
        self.window(number * self.seq_len)
    }

    fn anywhere(&self, stream: Stream, index: u64) -> Option<Sequence> {
        let last = self.total.saturating_sub(self.length);
        Some(self.window(stream.below(index, last + 1)))
    }
}
