//! Which positions each landmark is the mean of.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::ops::padding_mask;

/// How `len` positions are cut into `n_landmarks` segments if they do not divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum SegmentRule {
    /// As `numpy.array_split` does: the first `len mod n_landmarks` segments are longer by one.
    #[default]
    ArraySplit,
    /// As `torch`'s adaptive pooling does: segments of about equal length that overlap by one.
    Adaptive,
    /// All segments are of ⌈len / n_landmarks⌉ positions, but for the last ones.
    CeilLastShort,
}

impl SegmentRule {
    /// The positions of segment `i`. Where there are enough for one each, no segment is empty, but
    /// for the last ones of `CeilLastShort`.
    fn range(self, i: usize, n_landmarks: usize, len: usize) -> Range<usize> {
        if len <= n_landmarks {
            return i.min(len)..(i + 1).min(len);
        }
        match self {
            Self::ArraySplit => {
                let (short, n_longer) = (len / n_landmarks, len % n_landmarks);
                let start = |i: usize| i * short + i.min(n_longer);
                start(i)..start(i + 1)
            }
            Self::Adaptive => i * len / n_landmarks..((i + 1) * len).div_ceil(n_landmarks),
            Self::CeilLastShort => {
                let long = len.div_ceil(n_landmarks);
                (i * long).min(len)..((i + 1) * long).min(len)
            }
        }
    }
}

/// The positions whose mean each landmark is. They are the same for all rows of a batch or, with padding, different for
/// each row.
#[derive(Clone, Debug)]
pub struct Segments {
    pub(super) rule: SegmentRule,
    n_landmarks: usize,
    /// How many positions they cut.
    pub(super) len: usize,
    /// `(batch, len)`, on the CPU: positions that are left out.
    pub(super) key_padding_mask: Option<Tensor>,
    /// One for all rows of a batch, or as many as it has.
    pub(super) rows: Vec<Row>,
}

/// The segments of one row of the batch.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The positions that are not padding.
    positions: Vec<usize>,
    /// By landmark, a range of `positions`.
    ranges: Vec<Range<usize>>,
}

impl Row {
    fn new(rule: SegmentRule, n_landmarks: usize, positions: Vec<usize>) -> Self {
        let range = |i| rule.range(i, n_landmarks, positions.len());
        Self { ranges: (0..n_landmarks).map(range).collect(), positions }
    }

    /// The positions of each landmark.
    #[inline(always)]
    pub(super) fn segments(&self) -> impl Iterator<Item = &[usize]> {
        self.ranges.iter().map(|range| &self.positions[range.clone()])
    }
}

impl Segments {
    /// `n_landmarks` segments, or `len`, if that is less, over the positions that
    /// `key_padding_mask (batch, len)` leaves.
    ///
    /// # Errors
    /// If there are to be no landmarks, or the mask is of another length or not of u8.
    pub fn new(
        rule: SegmentRule,
        n_landmarks: usize,
        len: usize,
        key_padding_mask: Option<&Tensor>,
    ) -> Result<Self> {
        if n_landmarks == 0 {
            bail!("no landmarks for {len} positions")
        }
        if let Some(mask) = key_padding_mask {
            padding_mask::check(key_padding_mask, mask.dims2()?.0, len)?;
        }
        let n_landmarks = n_landmarks.min(len);
        let is_padding = key_padding_mask.map_or(Ok(vec![vec![false; len]]), padding_mask::rows)?;
        let row = |is_padding: Vec<bool>| {
            let positions = (0..is_padding.len()).filter(|&i| !is_padding[i]).collect();
            Row::new(rule, n_landmarks, positions)
        };
        let rows = is_padding.into_iter().map(row).collect();
        let on_cpu = |mask: &Tensor| mask.to_device(&Device::Cpu);
        let key_padding_mask = key_padding_mask.map(on_cpu).transpose()?;
        Ok(Self { rule, n_landmarks, len, key_padding_mask, rows })
    }

    /// The number of segments of a row.
    pub fn n_landmarks(&self) -> usize {
        self.n_landmarks
    }

    /// The table of all rows that the kernels read, as `kernel.cu` describes it. `None` without padding: then the
    /// segments follow from the rule alone.
    pub(super) fn table(&self) -> Option<Vec<u32>> {
        self.key_padding_mask.as_ref()?;
        let mut table = Vec::with_capacity(self.rows.len() * 2 * (self.len + self.n_landmarks));
        for Row { positions, ranges } in &self.rows {
            let mut places = vec![u32::MAX; self.len];
            for (place, &position) in positions.iter().enumerate() {
                places[position] = place as u32;
            }
            table.extend(positions.iter().map(|&position| position as u32));
            table.extend(std::iter::repeat_n(u32::MAX, self.len - positions.len()));
            table.extend(places);
            table.extend(ranges.iter().flat_map(|range| [range.start as u32, range.end as u32]));
        }
        Some(table)
    }

    /// The segments of a row of the batch.
    #[inline(always)]
    pub(super) fn row(&self, example: usize) -> &Row {
        &self.rows[if self.rows.len() == 1 { 0 } else { example }]
    }

    /// By row: whether each position is its own landmark.
    pub(super) fn is_exact(&self) -> Vec<bool> {
        self.rows.iter().map(|row| row.positions.len() <= self.n_landmarks).collect()
    }

    /// `(rows, 1, n_landmarks, len)`: in the row of a landmark, 1 / (length of its segment) at the positions of the
    /// segment, else 0. The product of this matrix and x is the landmarks of x.
    pub(super) fn matrix(&self, dtype: DType, device: &Device) -> Result<Tensor> {
        let mut matrix = vec![0_f64; self.rows.len() * self.n_landmarks * self.len];
        let segments = self.rows.iter().flat_map(Row::segments);
        for (landmark, segment) in matrix.chunks_mut(self.len.max(1)).zip(segments) {
            for &position in segment {
                landmark[position] = 1. / segment.len() as f64;
            }
        }
        let shape = (self.rows.len(), 1, self.n_landmarks, self.len);
        Tensor::from_vec(matrix, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }

    /// `(rows, 1, 1, n_landmarks)`: −∞ at landmarks whose segment is empty, else 0. `None` if no segment is empty.
    pub(super) fn mask(&self, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
        let segments = self.rows.iter().flat_map(Row::segments);
        let is_empty: Vec<u8> = segments.map(|segment| segment.is_empty().into()).collect();
        if !is_empty.contains(&1) {
            return Ok(None);
        }
        let shape = (self.rows.len(), 1, 1, self.n_landmarks);
        padding_mask::additive(&Tensor::from_vec(is_empty, shape, device)?, dtype).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: [SegmentRule; 3] =
        [SegmentRule::ArraySplit, SegmentRule::Adaptive, SegmentRule::CeilLastShort];

    fn segments(rule: SegmentRule, n_landmarks: usize, positions: &[usize]) -> Vec<Vec<usize>> {
        let row = Row::new(rule, n_landmarks, positions.to_vec());
        row.segments().map(<[_]>::to_vec).collect()
    }

    #[test]
    fn thirteen_positions_have_four_segments() {
        let all: Vec<usize> = (0..13).collect();
        let ends = |rule| -> Vec<(usize, usize)> {
            let segments = segments(rule, 4, &all);
            segments.iter().map(|segment| (segment[0], segment[segment.len() - 1] + 1)).collect()
        };
        assert_eq!(ends(SegmentRule::ArraySplit), [(0, 4), (4, 7), (7, 10), (10, 13)]);
        assert_eq!(ends(SegmentRule::Adaptive), [(0, 4), (3, 7), (6, 10), (9, 13)]);
        assert_eq!(ends(SegmentRule::CeilLastShort), [(0, 4), (4, 8), (8, 12), (12, 13)]);
    }

    #[test]
    fn every_position_is_in_a_segment_whatever_the_length() {
        for rule in RULES {
            for (n_landmarks, len) in [(1, 1), (3, 2), (4, 9), (5, 5), (5, 7), (7, 101), (2, 0)] {
                let all: Vec<usize> = (0..len).collect();
                let mut seen = segments(rule, n_landmarks, &all).concat();
                seen.dedup();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen, all, "{rule:?} {n_landmarks} {len}");
            }
        }
    }

    #[test]
    fn padding_is_in_no_segment() {
        let around_padding = segments(SegmentRule::ArraySplit, 2, &[1, 2, 4, 7, 8]);
        assert_eq!(around_padding, [vec![1, 2, 4], vec![7, 8]]);
        let too_few = segments(SegmentRule::ArraySplit, 3, &[2, 5]);
        assert_eq!(too_few, [vec![2], vec![5], vec![]]);
    }
}
