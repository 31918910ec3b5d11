//! Windows of the concatenated documents.

use tealight_ops::rng::Stream;

use super::index::{Counted, Index, SplitDocuments};
use super::{Sequence, SequenceSource};
use crate::error::{Error, Result};

/// Windows of `seq_len` tokens over the concatenated documents of a split, with the end token between two
/// of them. With prediction of the next token, a window overlaps the following one by one token, so that
/// every token except the first is predicted once.
#[derive(Debug)]
pub(super) struct Windows {
    index: Index,
    separator: Option<u32>,
    seq_len: u64,
    /// The number of tokens in a window.
    length: u64,
    /// The number of tokens, including separators.
    total: u64,
}

impl Windows {
    pub(super) fn new(
        documents: SplitDocuments,
        separator: Option<u32>,
        seq_len: usize,
        length: usize,
    ) -> Result<Self> {
        let index = Index::new(documents, Counted::TokensAndSeparator);
        // The last document has no separator after it.
        let total = index.total.saturating_sub(1);
        let has_several_documents = || index.find(0).0 != index.find(total).0;
        if separator.is_none() && total > 0 && has_several_documents() {
            let message = "`task.sequences` = \"stream\" joins documents by an end token ([SEP], </s>, \
                           <|endoftext|>), and the tokenizer has none";
            return Err(Error::config(["task.sequences", "task.tokenizer"], message));
        }
        Ok(Self { index, separator, seq_len: seq_len as u64, length: length as u64, total })
    }

    /// The window that begins at token `start`; the last one may be shorter.
    fn window(&self, start: u64) -> Sequence {
        let end = self.total.min(start + self.length);
        let mut ids = Vec::with_capacity((end - start) as usize);
        let (mut document, mut at) = self.index.find(start);
        let store = &self.index.documents.store;
        while (ids.len() as u64) < end - start {
            let n = self.index.documents.n_tokens(document);
            let left = end - start - ids.len() as u64;
            if n > 0 {
                store.read(document, at..n.min(at + left), &mut ids);
                if n < at + left {
                    ids.extend(self.separator);
                }
            }
            (document, at) = (document + 1, 0);
        }
        Sequence { ids, segments: None }
    }
}

impl SequenceSource for Windows {
    fn n(&self) -> u64 {
        // The tokens shared with the next window do not make a window of their own.
        let shared = self.length - self.seq_len;
        self.total.saturating_sub(shared).div_ceil(self.seq_len)
    }

    fn n_without_context(&self) -> u64 {
        self.total.min(1)
    }

    fn at(&self, number: u64) -> Sequence {
        self.window(number * self.seq_len)
    }

    fn random_window(&self, stream: Stream, index: u64) -> Option<Sequence> {
        let last = self.total.saturating_sub(self.length);
        Some(self.window(stream.below(index, last + 1)))
    }
}
