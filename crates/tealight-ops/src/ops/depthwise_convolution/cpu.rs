//! The CPU loops: one head of one sequence at a time. For each place of the kernel one loop runs over all
//! positions and features, so that loops are long even for a narrow head.

use std::borrow::Cow;
use std::ops::Range;

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, run, sum_in_order, sum_of_pairs};
use crate::ops::padding_mask;

/// The settings of a convolution.
pub(super) struct Convolution {
    pub(super) n_heads: usize,
    pub(super) len: usize,
    pub(super) head_dim: usize,
    /// `(batch, len)`, 1 = padding; empty without a mask.
    pub(super) padding: Vec<u8>,
}

impl Convolution {
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T]) -> Vec<T> {
        let (plane, kernel) = (self.len * self.head_dim, weight.len() / self.n_heads);
        let mut y = unwritten(x.len());
        run::<T, _, _>(
            x.len(),
            y.chunks_mut(plane).zip(x.chunks(plane)).enumerate(),
            #[inline(always)]
            |(i, (y, x))| {
                let x = self.without_padding(i, x);
                let weight = &weight[i % self.n_heads * kernel..][..kernel];
                y.fill(T::ZERO);
                for (j, &weight) in weight.iter().enumerate() {
                    let (to, from) = self.shift(plane, kernel, j);
                    add_scaled(&mut y[to], &x[from], weight);
                }
            },
        );
        y
    }

    /// The gradients of x and weight.
    pub(super) fn backward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        gradient: &[T],
    ) -> [Vec<T>; 2] {
        let (plane, kernel) = (self.len * self.head_dim, weight.len() / self.n_heads);
        let mut dx = unwritten(x.len());
        let dweight: Vec<Vec<T>> = run::<T, _, _>(
            x.len(),
            dx.chunks_mut(plane).zip(x.chunks(plane).zip(gradient.chunks(plane))).enumerate(),
            #[inline(always)]
            |(i, (dx, (x, g)))| {
                let x = self.without_padding(i, x);
                let weight = &weight[i % self.n_heads * kernel..][..kernel];
                let mut dweight = unwritten(kernel);
                dx.fill(T::ZERO);
                for (j, &weight) in weight.iter().enumerate() {
                    let (to, from) = self.shift(plane, kernel, j);
                    dweight[j] = sum_of_pairs(&g[to.clone()], &x[from.clone()], |g, x| g * x);
                    add_scaled(&mut dx[from], &g[to], weight);
                }
                self.clear_padding(i, dx);
                dweight
            },
        );
        let by_example: Vec<Vec<T>> = dweight.chunks(self.n_heads).map(<[_]>::concat).collect();
        [dx, sum_in_order(&by_example, weight.len())]
    }

    /// The elements that place `j` of the kernel writes, and the elements that it reads.
    #[inline(always)]
    fn shift(&self, plane: usize, kernel: usize, j: usize) -> (Range<usize>, Range<usize>) {
        let (ahead, behind) = (j.saturating_sub(kernel / 2), (kernel / 2).saturating_sub(j));
        let (ahead, behind) = (ahead * self.head_dim, behind * self.head_dim);
        let n = plane.saturating_sub(ahead + behind);
        if n == 0 { (0..0, 0..0) } else { (behind..behind + n, ahead..ahead + n) }
    }

    #[inline(always)]
    fn without_padding<'a, T: Element>(&self, i: usize, x: &'a [T]) -> Cow<'a, [T]> {
        if self.padding.is_empty() {
            return Cow::Borrowed(x);
        }
        let mut x = x.to_vec();
        self.clear_padding(i, &mut x);
        Cow::Owned(x)
    }

    #[inline(always)]
    fn clear_padding<T: Element>(&self, i: usize, x: &mut [T]) {
        let padding = padding_mask::row(&self.padding, i / self.n_heads, self.len);
        for (x, &flag) in x.chunks_exact_mut(self.head_dim).zip(padding) {
            if flag != 0 {
                x.fill(T::ZERO);
            }
        }
    }
}
