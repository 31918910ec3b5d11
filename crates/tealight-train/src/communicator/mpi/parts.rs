//! Parts of a buffer, as MPI describes them: lengths and offsets are C integers.

use std::ffi::c_int;
use std::ops::Range;

/// The most bytes that an offset can reach.
pub(super) const LIMIT: usize = c_int::MAX as usize;

/// Lengths and offsets of the parts of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    lens: Vec<c_int>,
    offsets: Vec<c_int>,
    /// The end of the last part.
    end: usize,
}

impl Parts {
    /// Parts of `lens` bytes that lie one after the other, or `None` if they are longer than [`LIMIT`] together.
    pub(super) fn new(lens: &[usize]) -> Option<Self> {
        Self::of_ranges(&side_by_side(lens)?)
    }

    /// Parts in any places, or `None` if one of them ends beyond [`LIMIT`].
    pub(super) fn of_ranges(ranges: &[Range<usize>]) -> Option<Self> {
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let numbers = |of: fn(&Range<usize>) -> usize| {
            ranges.iter().map(|range| c_int::try_from(of(range)).ok()).collect::<Option<_>>()
        };
        let (lens, offsets) = (numbers(ExactSizeIterator::len)?, numbers(|range| range.start)?);
        (end <= LIMIT).then_some(Self { lens, offsets, end })
    }

    /// The number of parts.
    pub(super) fn count(&self) -> usize {
        self.lens.len()
    }

    /// The length of each part.
    pub(super) fn lens(&self) -> &[c_int] {
        &self.lens
    }

    /// Where each part starts.
    pub(super) fn offsets(&self) -> &[c_int] {
        &self.offsets
    }

    /// Where the parts end.
    pub(super) fn end(&self) -> usize {
        self.end
    }
}

/// Parts of one buffer: the part of this rank, which it sends to each other rank, and the parts that it receives from
/// them. No received part overlaps with its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pairs {
    send: Parts,
    receive: Parts,
}

impl Pairs {
    /// The parts of the ranks are of `lens` bytes and lie one after the other. `None` in the cases of [`Parts::new`],
    /// so that all ranks come to the same decision.
    pub(super) fn new(rank: usize, lens: &[usize]) -> Option<Self> {
        Parts::new(lens)?;
        let mut ranges = side_by_side(lens)?;
        let own = ranges[rank].clone();
        let mut to = vec![own.clone(); lens.len()];
        // A rank sends nothing to itself.
        to[rank] = own.start..own.start;
        ranges[rank] = own.start..own.start;
        Some(Self { send: Parts::of_ranges(&to)?, receive: Parts::of_ranges(&ranges)? })
    }

    /// The part that is sent to each rank.
    pub(super) fn send(&self) -> &Parts {
        &self.send
    }

    /// The part that is received from each rank.
    pub(super) fn receive(&self) -> &Parts {
        &self.receive
    }
}

/// Ranges of `lens` bytes, one after the other; `None` if no offset can reach the last.
fn side_by_side(lens: &[usize]) -> Option<Vec<Range<usize>>> {
    let mut end = 0_usize;
    let range = |&len: &usize| {
        let start = end;
        end = start.checked_add(len)?;
        Some(start..end)
    };
    lens.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_one_after_the_other() {
        let parts = Parts::new(&[5, 0, 7]).unwrap();
        assert_eq!((parts.lens(), parts.offsets()), (&[5, 0, 7][..], &[0, 5, 5][..]));
        assert_eq!((parts.count(), parts.end()), (3, 12));
        let parts = Parts::of_ranges(&[7..9, 0..3]).unwrap();
        assert_eq!((parts.lens(), parts.offsets(), parts.end()), (&[2, 3][..], &[7, 0][..], 9));
    }

    #[test]
    fn a_rank_sends_its_own_part_to_all_others() {
        let pairs = Pairs::new(1, &[5, 2, 7]).unwrap();
        assert_eq!((pairs.send().lens(), pairs.send().offsets()), (&[2, 0, 2][..], &[5, 5, 5][..]));
        assert_eq!(pairs.receive().lens(), [5, 0, 7]);
        assert_eq!((pairs.receive().offsets(), pairs.receive().end()), (&[0, 5, 7][..], 14));
        for rank in 0..2 {
            assert_eq!(Pairs::new(rank, &[LIMIT, 1]), None);
        }
    }

    #[test]
    fn parts_beyond_a_c_integer_are_refused() {
        assert!(Parts::new(&[LIMIT, 0]).is_some());
        assert_eq!(Parts::new(&[LIMIT, 1]), None);
        assert_eq!(Parts::new(&[LIMIT + 1]), None);
        assert_eq!(Parts::new(&[1, usize::MAX]), None);
    }
}
