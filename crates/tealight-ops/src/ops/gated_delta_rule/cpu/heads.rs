//! Heads, and teams of heads that are computed together because they share their queries and keys.

use super::super::Sizes;
use super::super::inputs::Each;
use crate::backend::matrix::MatrixMut;
use crate::backend::parallel::{add_scaled, run};
use crate::backend::simd::vector::Lanes;

/// The most heads of a team: larger teams would share more products, but keep fewer threads busy.
const TEAM: usize = 4;

/// The operands of one head of one example.
#[derive(Clone, Copy)]
pub(super) struct Head<'a, T> {
    pub(super) operands: &'a Each<&'a [T]>,
    pub(super) sizes: Sizes,
    pub(super) example: usize,
    pub(super) index: usize,
}

impl<'a, T: Copy> Head<'a, T> {
    /// What `x (batch, len, n_heads, width)` holds for this head at position `t`.
    #[inline(always)]
    pub(super) fn row(&self, x: &'a [T], t: usize, width: usize) -> &'a [T] {
        let Sizes { len, n_heads, .. } = self.sizes;
        &x[((self.example * len + t) * n_heads + self.index) * width..][..width]
    }

    /// What `x (batch, len, n_groups, width)` holds for the group of this head at position `t`.
    #[inline(always)]
    pub(super) fn shared_row(&self, x: &'a [T], t: usize, width: usize) -> &'a [T] {
        let Sizes { len, n_groups, .. } = self.sizes;
        let group = self.index / self.sizes.group();
        &x[((self.example * len + t) * n_groups + group) * width..][..width]
    }

    /// β at position `t`.
    #[inline(always)]
    pub(super) fn strength(&self, t: usize) -> Option<T> {
        self.operands.strength.map(|strength| self.row(strength, t, 1)[0])
    }
}

/// The gradients of the operands of one head, a row for each position.
pub(super) struct Rows<'a, T> {
    pub(super) value: MatrixMut<'a, T>,
    pub(super) strength: Option<MatrixMut<'a, T>>,
    pub(super) erase: Option<MatrixMut<'a, T>>,
    pub(super) erase_key: Option<MatrixMut<'a, T>>,
    pub(super) log_decay: Option<MatrixMut<'a, T>>,
}

impl<'a, T> Rows<'a, T> {
    /// Those of all heads of all examples.
    pub(super) fn all(
        value: &'a mut [T],
        optional: [Option<&'a mut Vec<T>>; 4],
        sizes: Sizes,
    ) -> impl Iterator<Item = Self> {
        let mut optional = optional.map(|x| x.map(|x| split(x, sizes, sizes.n_heads).into_iter()));
        split(value, sizes, sizes.n_heads).into_iter().map(move |value| {
            let next = |x: &mut Option<std::vec::IntoIter<_>>| {
                x.as_mut().map(|rows| rows.next().expect("invariant: one for each head"))
            };
            let [strength, erase, erase_key, log_decay] = optional.each_mut().map(next);
            Self { value, strength, erase, erase_key, log_decay }
        })
    }
}

/// How the heads of an example form teams.
#[derive(Clone, Copy)]
pub(super) struct Teams {
    sizes: Sizes,
    /// Heads of a team; the last team of a group may have fewer.
    len: usize,
}

impl Teams {
    /// Teams of several heads, as equal as possible, or of one if heads share no products.
    pub(super) fn new(sizes: Sizes, share_products: bool) -> Self {
        let n_teams = sizes.group().div_ceil(if share_products { TEAM } else { 1 });
        Self { sizes, len: sizes.group().div_ceil(n_teams) }
    }

    /// The number of teams of a group.
    fn per_group(self) -> usize {
        self.sizes.group().div_ceil(self.len)
    }

    /// The number of teams of an example.
    pub(super) fn per_example(self) -> usize {
        self.sizes.n_groups * self.per_group()
    }

    /// Things of all heads of all examples, by team.
    pub(super) fn of<X>(self, heads: impl Iterator<Item = X>) -> Vec<Vec<X>> {
        let mut teams: Vec<Vec<X>> = Vec::new();
        for (i, head) in heads.enumerate() {
            let place = i % self.sizes.group();
            match teams.last_mut() {
                Some(team) if !place.is_multiple_of(self.len) => team.push(head),
                _ => teams.push(vec![head]),
            }
        }
        teams
    }

    /// The sums over the teams of each group: `(batch, len, per_example, width)` → `(batch, len, n_groups, width)`
    pub(super) fn sums<T: Lanes>(self, x: Vec<T>, width: usize) -> Vec<T> {
        /// Rows of a block.
        const BLOCK: usize = 64;
        let n = self.per_group();
        if n == 1 {
            return x;
        }
        let mut sums = vec![T::ZERO; x.len() / n];
        run::<T, _, _>(
            x.len(),
            sums.chunks_mut(BLOCK * width).zip(x.chunks(BLOCK * width * n)),
            #[inline(always)]
            |(sums, x): (&mut [T], &[T])| {
                for (sum, teams) in sums.chunks_exact_mut(width).zip(x.chunks_exact(width * n)) {
                    for team in teams.chunks_exact(width) {
                        add_scaled(sum, team, T::ONE);
                    }
                }
            },
        );
        sums
    }
}

/// `x (batch, len, n, width)` as one matrix `(len, width)` for each of `n` of each example.
pub(super) fn split<T>(x: &mut [T], sizes: Sizes, n: usize) -> Vec<MatrixMut<'_, T>> {
    let Sizes { batch, len, .. } = sizes;
    let width = x.len() / (batch * len * n);
    let mut all = Vec::with_capacity(batch * n);
    for example in x.chunks_mut(len * n * width) {
        let mut rest = MatrixMut::new(example, (len, n * width));
        for _ in 0..n {
            let (one, others) = rest.split_columns(width);
            all.push(one);
            rest = others;
        }
    }
    all
}
