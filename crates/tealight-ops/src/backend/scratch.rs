//! Memory for what a thread needs within a block, used again for the next block and the next loop.
//!
//! Blocks take some microseconds. Asking for memory takes a tenth of one, and longer where several
//! threads ask at once.

#![expect(unsafe_code, reason = "lines of bytes are read as numbers of any type")]

use std::cell::RefCell;

use pulp::bytemuck::{Pod, Zeroable, cast_slice_mut};

use crate::backend::element::Element;

/// A line of the cache, which what is used together begins at.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

// SAFETY: numbers without padding, of which any bits are one.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

thread_local! {
    /// What nobody uses now.
    static SPARE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of a thread's, lent until this is dropped.
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(SPARE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// Areas of so many elements, which hold whatever was left there; where assertions are on, NaN.
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
            let (&n_lines, len) = places.next().expect("invariant: as many as there are areas");
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
        // A thread that ends has nowhere to put it.
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
