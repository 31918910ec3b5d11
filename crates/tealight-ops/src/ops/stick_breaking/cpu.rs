//! The CPU loops, row by row.

use super::Rest;
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel;
use crate::ops::softplus::ln_1_plus;

/// The shape of a matrix of scores.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) q_len: usize,
    pub(super) kv_len: usize,
    pub(super) rest: Rest,
}

impl Matrix {
    /// The position of query `row`.
    #[inline(always)]
    fn own(self, row: usize) -> usize {
        row + self.kv_len - self.q_len
    }

    pub(super) fn forward<T: Element>(self, x: &[T]) -> Vec<T> {
        let mut y = unwritten(x.len());
        let len = (self.q_len * self.kv_len).max(1);
        parallel::run::<T, _, _>(
            x.len(),
            y.chunks_mut(len).zip(x.chunks(len)),
            #[inline(always)]
            |(y, x)| {
                let rows = y.chunks_exact_mut(self.kv_len).zip(x.chunks_exact(self.kv_len));
                for (row, (y, x)) in rows.enumerate() {
                    let own = self.own(row);
                    let mut left = T::ZERO; // its logarithm
                    for (y, &x) in y[..own].iter_mut().zip(&x[..own]).rev() {
                        let (taken, kept) = logarithms(x);
                        *y = (taken + left).exp();
                        left += kept;
                    }
                    y[own..].fill(T::ZERO);
                    if self.rest == Rest::Own {
                        y[own] = left.exp();
                    }
                }
            },
        );
        y
    }

    pub(super) fn backward<T: Element>(self, x: &[T], y: &[T], g: &[T]) -> Vec<T> {
        let mut dx = unwritten(x.len());
        let len = (self.q_len * self.kv_len).max(1);
        let operands = x.chunks(len).zip(y.chunks(len)).zip(g.chunks(len));
        parallel::run::<T, _, _>(
            x.len(),
            dx.chunks_mut(len).zip(operands),
            #[inline(always)]
            |(dx, ((x, y), g))| {
                for (row, dx) in dx.chunks_exact_mut(self.kv_len).enumerate() {
                    let own = self.own(row);
                    let [x, y, g] = [x, y, g].map(|x| &x[row * self.kv_len..][..self.kv_len]);
                    // y_own is 0 if the rest is lost.
                    let mut further = y[own] * g[own];
                    for j in 0..own {
                        let (taken, kept) = logarithms(x[j]);
                        let share = y[j] * g[j];
                        dx[j] = share * kept.exp() - taken.exp() * further;
                        further += share;
                    }
                    dx[own..].fill(T::ZERO);
                }
            },
        );
        dx
    }
}

/// ln σ(x) and ln(1 − σ(x)).
#[inline(always)]
fn logarithms<T: Element>(x: T) -> (T, T) {
    let size = if x > T::ZERO { x } else { -x };
    let small = ln_1_plus((-size).exp());
    if x > T::ZERO { (-small, -x - small) } else { (x - small, -small) }
}
