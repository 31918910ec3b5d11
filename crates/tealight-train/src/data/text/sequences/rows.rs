//! Batches of sequences.

use super::Sequence;

/// The sequences of a batch, padded to the longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// `(batch · seq_len)`, row by row.
    pub ids: Vec<u32>,
    /// `(batch · seq_len)`: the number of each token's piece in its sequence; padding is another piece.
    /// `None` for sequences of one piece.
    pub segments: Option<Vec<u32>>,
    /// `(batch)`: the number of tokens of each sequence, without padding.
    pub lens: Vec<usize>,
    /// The number of columns.
    pub seq_len: usize,
}

impl Rows {
    /// Pads the shorter sequences with `pad`.
    pub fn new(sequences: &[Sequence], pad: u32) -> Self {
        Self::with_min_len(sequences, pad, 0)
    }

    /// Pads all sequences with `pad` to the longest, and at least to `min_len`.
    pub fn with_min_len(sequences: &[Sequence], pad: u32, min_len: usize) -> Self {
        let lens: Vec<usize> = sequences.iter().map(|sequence| sequence.ids.len()).collect();
        let seq_len = lens.iter().copied().max().unwrap_or(0).max(min_len);
        let ids =
            sequences.iter().flat_map(|sequence| padded(&sequence.ids, seq_len, pad)).collect();
        let segments = |sequence: &Sequence| {
            let segments = sequence.segments.as_deref()?;
            let padding = segments.last().map_or(0, |last| last + 1);
            Some(padded(segments, seq_len, padding).collect::<Vec<_>>())
        };
        let segments: Option<Vec<_>> = sequences.iter().map(segments).collect();
        let segments = segments.map(|rows| rows.concat());
        Self { ids, segments, lens, seq_len }
    }

    /// `(batch · seq_len)`: 1 = padding.
    pub fn key_padding_mask(&self) -> Vec<u8> {
        let row = |&len: &usize| (0..self.seq_len).map(move |at| u8::from(at >= len));
        self.lens.iter().flat_map(row).collect()
    }

    /// The number of tokens without padding.
    pub fn n_tokens(&self) -> usize {
        self.lens.iter().sum()
    }
}

fn padded(row: &[u32], len: usize, pad: u32) -> impl Iterator<Item = u32> + '_ {
    row.iter().copied().chain(std::iter::repeat_n(pad, len - row.len()))
}
