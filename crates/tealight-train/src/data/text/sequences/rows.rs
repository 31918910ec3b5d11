//! Sequences side by side.

use super::Sequence;

/// Sequences of one batch, filled up to the longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// `(batch · seq_len)`, row by row.
    pub ids: Vec<u32>,
    /// `(batch · seq_len)`: which piece of its sequence each token belongs to. Padding is a piece of its
    /// own. `None` if no sequence has more than one.
    pub segments: Option<Vec<u32>>,
    /// `(batch)`: tokens of each sequence, without padding.
    pub lens: Vec<usize>,
    /// Tokens of the longest.
    pub seq_len: usize,
}

impl Rows {
    /// Puts `pad` behind the shorter ones.
    pub fn new(sequences: &[Sequence], pad: u32) -> Self {
        Self::of_len(sequences, pad, 0)
    }

    /// The same, and `pad` behind all that are shorter than `len`.
    pub fn of_len(sequences: &[Sequence], pad: u32, len: usize) -> Self {
        let lens: Vec<usize> = sequences.iter().map(|sequence| sequence.ids.len()).collect();
        let seq_len = lens.iter().copied().max().unwrap_or(0).max(len);
        let ids =
            sequences.iter().flat_map(|sequence| filled(&sequence.ids, seq_len, pad)).collect();
        let segments = |sequence: &Sequence| {
            let segments = sequence.segments.as_deref()?;
            let padding = segments.last().map_or(0, |last| last + 1);
            Some(filled(segments, seq_len, padding).collect::<Vec<_>>())
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

    /// Tokens without padding.
    pub fn n_tokens(&self) -> usize {
        self.lens.iter().sum()
    }
}

fn filled(row: &[u32], len: usize, filler: u32) -> impl Iterator<Item = u32> + '_ {
    row.iter().copied().chain(std::iter::repeat_n(filler, len - row.len()))
}
