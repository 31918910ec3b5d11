//! The CPU loops: some channels of one example at a time.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::matrix::MatrixMut;
use crate::backend::parallel::run;
use crate::ops::tokens::Document;

/// Channels at a time.
const CHANNELS: usize = 128;

/// The settings of a convolution.
pub(super) struct Convolution {
    pub(super) documents: Vec<Vec<Document>>,
    pub(super) len: usize,
    pub(super) channels: usize,
    pub(super) size: usize,
}

impl Convolution {
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T]) -> Vec<T> {
        let mut y = self.blank(x.len());
        let weight = self.transposed(weight);
        run::<T, _, _>(
            x.len(),
            self.parts(&mut y),
            #[inline(always)]
            |(example, first, mut y)| {
                let width = y.columns();
                for document in &self.documents[example] {
                    for (n, &t) in document.iter().enumerate() {
                        let y = y.row(t);
                        y.fill(T::ZERO);
                        for behind in 0..self.size.min(n + 1) {
                            let x = self.row(x, example, document[n - behind], first, width);
                            add_product(y, x, self.place(&weight, behind, first, width));
                        }
                    }
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
        let mut dx = self.blank(x.len());
        let weight = self.transposed(weight);
        let sums = run::<T, _, _>(
            x.len(),
            self.parts(&mut dx),
            #[inline(always)]
            |(example, first, mut dx)| {
                let width = dx.columns();
                let mut dweight = vec![T::ZERO; self.size * width];
                for document in &self.documents[example] {
                    for (n, &t) in document.iter().enumerate() {
                        let (dx, x) = (dx.row(t), self.row(x, example, t, first, width));
                        dx.fill(T::ZERO);
                        for ahead in 0..self.size.min(document.len() - n) {
                            let g = self.row(gradient, example, document[n + ahead], first, width);
                            add_product(dx, g, self.place(&weight, ahead, first, width));
                            add_product(&mut dweight[ahead * width..][..width], x, g);
                        }
                    }
                }
                (first, dweight)
            },
        );
        let mut dweight = vec![T::ZERO; weight.len()];
        for (first, sums) in sums {
            let width = sums.len() / self.size;
            for (behind, sums) in sums.chunks_exact(width).enumerate() {
                for (channel, &sum) in sums.iter().enumerate() {
                    dweight[(first + channel) * self.size + self.size - 1 - behind] += sum;
                }
            }
        }
        [dx, dweight]
    }

    /// Memory for a result, which is 0 at padding.
    fn blank<T: Element>(&self, n: usize) -> Vec<T> {
        let n_tokens: usize = self.documents.iter().flatten().map(Vec::len).sum();
        if n_tokens == self.documents.len() * self.len { unwritten(n) } else { vec![T::ZERO; n] }
    }

    /// Of each example and each group of channels: the example, the first channel, and these channels of `x`.
    fn parts<'a, T>(
        &self,
        x: &'a mut [T],
    ) -> impl Iterator<Item = (usize, usize, MatrixMut<'a, T>)> + use<'a, T> {
        let mut parts = Vec::new();
        for (example, x) in x.chunks_mut(self.len * self.channels).enumerate() {
            let mut rest = MatrixMut::new(x, (self.len, self.channels));
            for first in (0..self.channels).step_by(CHANNELS) {
                let (part, others) = rest.split_columns(CHANNELS.min(self.channels - first));
                parts.push((example, first, part));
                rest = others;
            }
        }
        parts.into_iter()
    }

    /// The filters by place, `(size, channels)`
    fn transposed<T: Element>(&self, weight: &[T]) -> Vec<T> {
        let place = |i: usize| weight.iter().skip(i).step_by(self.size).copied();
        (0..self.size).flat_map(place).collect()
    }

    /// The place of the filters that reads the token `behind` the one it writes.
    #[inline(always)]
    fn place<'a, T>(&self, weight: &'a [T], behind: usize, first: usize, width: usize) -> &'a [T] {
        &weight[(self.size - 1 - behind) * self.channels + first..][..width]
    }

    #[inline(always)]
    fn row<'a, T>(
        &self,
        x: &'a [T],
        example: usize,
        t: usize,
        first: usize,
        width: usize,
    ) -> &'a [T] {
        &x[(example * self.len + t) * self.channels + first..][..width]
    }
}

/// y ← y + a ⊙ b
#[inline(always)]
fn add_product<T: Element>(y: &mut [T], a: &[T], b: &[T]) {
    for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y += a * b;
    }
}
