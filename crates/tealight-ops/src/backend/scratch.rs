//! Scratch memory of a thread for the length of one block, reused by later blocks and loops.
//!
//! A block takes some microseconds, an allocation a tenth of one, and longer if several threads allocate at once.

#![expect(unsafe_code, reason = "cache lines are reinterpreted as numbers")]

use std::cell::RefCell;

use pulp::bytemuck::{Pod, Zeroable, cast_slice_mut};

use crate::backend::element::Element;

/// A cache line. Areas start at multiples of it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

// SAFETY: integers without padding, for which zeros are valid.
unsafe impl Zeroable for Line {}
// SAFETY: integers without padding, for which all bit patterns are valid.
unsafe impl Pod for Line {}

thread_local! {
    /// Memory that is not in use.
    static SPARE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of this thread, returned for reuse when it is dropped.
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(SPARE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// Disjoint areas of these lengths. Their values are arbitrary, and NaN in builds with debug assertions.
    pub(crate) fn areas<T: Element + Pod, const N: usize>(
        &mut self,
        lens: [usize; N],
    ) -> [&mut [T]; N] {
        let per_line = size_of::<Line>() / size_of::<T>();
        let n_lines = lens.map(|len| len.div_ceil(per_line));
        let all = n_lines.iter().sum();
        if self.0.len() < all {
            self.0.clear();
            self.0.resize(all, Line([0; 8]));
        }
        let mut rest = &mut self.0[..];
        let mut places = n_lines.iter().zip(lens);
        std::array::from_fn(|_| {
            let (&n_lines, len) = places.next().expect("invariant: N lengths for N areas");
            let (area, behind) = std::mem::take(&mut rest).split_at_mut(n_lines);
            rest = behind;
            let area = &mut cast_slice_mut::<Line, T>(area)[..len];
            if cfg!(debug_assertions) {
                area.fill(T::NAN);
            }
            area
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.0);
        // At the end of a thread, its thread-local may have been destroyed: then the memory is freed.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().push(lines));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_apart_and_begin_at_lines() {
        let mut scratch = Scratch::new();
        let [a, b, c] = scratch.areas::<f32, 3>([17, 0, 5]);
        assert_eq!((a.len(), b.len(), c.len()), (17, 0, 5));
        assert_eq!((a.as_ptr() as usize % 64, c.as_ptr() as usize % 64), (0, 0));
        a.fill(1.);
        c.fill(2.);
        assert!(a.iter().all(|&x| x == 1.) && c.iter().all(|&x| x == 2.));
    }

    #[test]
    fn what_is_given_back_is_lent_again_and_two_do_not_share() {
        let address = |scratch: &mut Scratch| scratch.areas::<f64, 1>([100])[0].as_ptr();
        let mut first = Scratch::new();
        let before = address(&mut first);
        let mut second = Scratch::new();
        assert_ne!(before, address(&mut second));
        drop(first);
        assert_eq!(before, address(&mut Scratch::new()));
    }
}
