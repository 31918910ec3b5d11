//! Parts of a buffer, as MPI describes them: lengths and offsets are C integers.

use std::ffi::c_int;

/// The most bytes that an offset can reach.
pub(super) const LIMIT: usize = c_int::MAX as usize;

/// Lengths and offsets of parts that lie one after the other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    lens: Vec<c_int>,
    offsets: Vec<c_int>,
    total: usize,
}

impl Parts {
    /// Parts of `lens` bytes, or `None` if they are longer than [`LIMIT`] together.
    pub(super) fn new(lens: &[usize]) -> Option<Self> {
        let mut total = 0_usize;
        let mut parts = Self { lens: Vec::new(), offsets: Vec::new(), total };
        for &len in lens {
            parts.lens.push(c_int::try_from(len).ok()?);
            parts.offsets.push(c_int::try_from(total).ok()?);
            total = total.checked_add(len).filter(|&total| total <= LIMIT)?;
        }
        Some(Self { total, ..parts })
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

    /// The length of all parts.
    pub(super) fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_one_after_the_other() {
        let parts = Parts::new(&[5, 0, 7]).unwrap();
        assert_eq!((parts.lens(), parts.offsets()), (&[5, 0, 7][..], &[0, 5, 5][..]));
        assert_eq!((parts.count(), parts.total()), (3, 12));
    }

    #[test]
    fn parts_beyond_a_c_integer_are_refused() {
        assert!(Parts::new(&[LIMIT, 0]).is_some());
        assert_eq!(Parts::new(&[LIMIT, 1]), None);
        assert_eq!(Parts::new(&[LIMIT + 1]), None);
        assert_eq!(Parts::new(&[1, usize::MAX]), None);
    }
}
