//! Newton's method for multinomial logistic regression (iteratively reweighted least squares).
//!
//! ```text
//! ∇J   = Σ_w P(w) x(w) ⊗ (q(w) − P(· | w)) + λ θ
//! ∇²J  = Σ_w P(w) x(w) x(w)ᵀ ⊗ (diag q(w) − q(w) q(w)ᵀ) + λ I
//! θ    ← θ − 2⁻ʰ (∇²J)⁻¹ ∇J            the smallest h ≥ 0 that lowers J enough
//! ```
//!
//! x(w) has one 1 for each day and one for the bias, so a window costs O(window²). A step costs O((9·window)³)
//! for the linear system; ten steps are usual. Memory: O(window²) for each of [`GROUP`] blocks.

use crate::data::weather::evaluation::Evaluation;
use crate::data::weather::{Distribution, N_CLASSES};
use rayon::prelude::*;
use std::ops::Range;

/// The minimisation of J.
#[derive(Debug)]
pub(super) struct Newton<'a> {
    reference: &'a Evaluation,
    ridge: f64,
    n_features: usize,
}

/// J's first two derivatives, summed over windows.
struct Derivatives {
    /// `(n_features, 3)`
    gradient: Vec<Distribution>,
    /// `(n_features, n_features, 6)`, filled for columns ≥ rows: a value for each pair of classes.
    hessian: Vec<[f64; N_PAIRS]>,
}

/// Windows in a unit of parallel work. Fixed, so that sums do not depend on the number of threads.
pub(super) const BLOCK: usize = 2048;
/// Pairs of classes, the smaller first.
const PAIRS: [[usize; 2]; N_PAIRS] = [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2], [2, 2]];
const N_PAIRS: usize = 6;
/// Blocks of windows whose derivatives are in memory at the same time.
const GROUP: usize = 16;
/// The iteration ends when ‖∇J‖ is below this.
const TOLERANCE: f64 = 1e-10;
const MAX_STEPS: usize = 200;
const MAX_HALVINGS: i32 = 30;

impl<'a> Newton<'a> {
    pub(super) fn new(reference: &'a Evaluation, ridge: f64) -> Self {
        Self { reference, ridge, n_features: N_CLASSES * reference.window + 1 }
    }

    /// θ `(n_features, 3)` and ‖∇J‖.
    pub(super) fn minimise(&self) -> (Vec<Distribution>, f64) {
        let mut theta = vec![[0.; N_CLASSES]; self.n_features];
        let mut objective = self.objective(&theta);
        let mut n_steps = 0;
        loop {
            let derivatives = self.derivatives(&theta);
            let gradient = derivatives.gradient.as_flattened();
            let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            if norm < TOLERANCE || n_steps == MAX_STEPS {
                return (theta, norm);
            }
            let direction = solve(self.dense(&derivatives.hessian), gradient.to_vec());
            let slope: f64 = direction.iter().zip(gradient).map(|(d, g)| d * g).sum();
            let lower = (0..MAX_HALVINGS).find_map(|halvings| {
                let scale = 0.5_f64.powi(halvings);
                let moved = minus(&theta, &direction, scale);
                let reached = self.objective(&moved);
                // Near the minimum the decrease is below the rounding of J: accept full steps.
                let rounding = 1e-14 * objective.abs();
                (reached <= objective - 1e-4 * scale * slope + rounding).then_some((moved, reached))
            });
            let Some((moved, reached)) = lower else { return (theta, norm) };
            (theta, objective) = (moved, reached);
            n_steps += 1;
        }
    }

    /// J
    fn objective(&self, theta: &[Distribution]) -> f64 {
        let losses: Vec<f64> = self.blocks(0..self.n_blocks(), |windows| {
            windows
                .map(|(days, weight, next)| {
                    let logits = logits(theta, days);
                    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let normaliser = max + logits.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
                    let loss = |(p, z): (&f64, f64)| p * (normaliser - z);
                    weight * next.iter().zip(logits).map(loss).sum::<f64>()
                })
                .sum()
        });
        let square: f64 = theta.as_flattened().iter().map(|w| w * w).sum();
        losses.iter().sum::<f64>() + 0.5 * self.ridge * square
    }

    /// ∇J, and ∇²J without λ.
    fn derivatives(&self, theta: &[Distribution]) -> Derivatives {
        let mut sum = Derivatives::zero(self.n_features);
        sum.gradient = theta.iter().map(|row| row.map(|w| self.ridge * w)).collect();
        for start in (0..self.n_blocks()).step_by(GROUP) {
            let blocks = self.blocks(start..self.n_blocks().min(start + GROUP), |windows| {
                let mut sum = Derivatives::zero(self.n_features);
                windows.for_each(|(days, weight, next)| {
                    sum.add(days, weight, next, &softmax(&logits(theta, days)));
                });
                sum
            });
            // Added in order, so that the sum does not depend on the groups.
            for block in blocks {
                add_assign(sum.gradient.as_flattened_mut(), block.gradient.as_flattened());
                add_assign(sum.hessian.as_flattened_mut(), block.hessian.as_flattened());
            }
        }
        sum
    }

    fn n_blocks(&self) -> usize {
        self.reference.len().div_ceil(BLOCK)
    }

    /// `f` of each block of windows of a range, in order.
    fn blocks<T: Send>(
        &self,
        range: Range<usize>,
        f: impl Fn(&mut dyn Iterator<Item = (&[u8], f64, &Distribution)>) -> T + Sync,
    ) -> Vec<T> {
        let Evaluation { window, windows, weights, next, .. } = self.reference;
        let rows = range.start * BLOCK..weights.len().min(range.end * BLOCK);
        let days = windows[rows.start * window..rows.end * window].par_chunks(BLOCK * window);
        let weights = weights[rows.clone()].par_chunks(BLOCK);
        let blocks = days.zip(weights).zip(next[rows].par_chunks(BLOCK));
        let windows = blocks.map(|((days, weights), next)| {
            let weighted = days.chunks_exact(*window).zip(weights.iter().copied()).zip(next);
            f(&mut weighted.map(|((days, weight), next)| (days, weight, next)))
        });
        windows.collect()
    }

    /// `(n_features, n_features, 6)` → ∇²J, `(3·n_features, 3·n_features)`, lower triangle.
    fn dense(&self, hessian: &[[f64; N_PAIRS]]) -> Vec<Vec<f64>> {
        let mut dense: Vec<Vec<f64>> =
            (0..N_CLASSES * self.n_features).map(|row| vec![0.; row + 1]).collect();
        for column in 0..self.n_features {
            for row in column..self.n_features {
                let values = &hessian[column * self.n_features + row];
                for (&[a, b], value) in PAIRS.iter().zip(values) {
                    dense[N_CLASSES * row + b][N_CLASSES * column + a] = *value;
                    // On the diagonal of features, this entry lies above the diagonal of the matrix.
                    if row > column || a == b {
                        dense[N_CLASSES * row + a][N_CLASSES * column + b] = *value;
                    }
                }
            }
        }
        for (i, row) in dense.iter_mut().enumerate() {
            row[i] += self.ridge;
        }
        dense
    }
}

impl Derivatives {
    fn zero(n_features: usize) -> Self {
        Self {
            gradient: vec![[0.; N_CLASSES]; n_features],
            hessian: vec![[0.; N_PAIRS]; n_features * n_features],
        }
    }

    /// Adds a window with the forecast `q`.
    fn add(&mut self, days: &[u8], weight: f64, next: &Distribution, q: &Distribution) {
        let n_features = self.gradient.len();
        let curvature = PAIRS.map(|[a, b]| weight * q[a] * (f64::from(u8::from(a == b)) - q[b]));
        let mut columns = features(days);
        while let Some(column) = columns.next() {
            for class in 0..N_CLASSES {
                self.gradient[column][class] += weight * (q[class] - next[class]);
            }
            let row_of_column = &mut self.hessian[column * n_features..][..n_features];
            for row in [column].into_iter().chain(columns.clone()) {
                add_assign(&mut row_of_column[row], &curvature);
            }
        }
    }
}

/// The rows of θ that a window selects: one for each day, and the bias.
fn features(days: &[u8]) -> impl Iterator<Item = usize> + Clone {
    let selected = days.iter().enumerate().map(|(i, &day)| N_CLASSES * i + usize::from(day));
    selected.chain([N_CLASSES * days.len()])
}

/// b + Σᵢ W[i, wᵢ]
pub(super) fn logits(weights: &[Distribution], days: &[u8]) -> Distribution {
    features(days).fold([0.; N_CLASSES], |sum, feature| {
        std::array::from_fn(|class| sum[class] + weights[feature][class])
    })
}

/// exp(z) / Σ exp(z)
pub(super) fn softmax(logits: &Distribution) -> Distribution {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp = logits.map(|z| (z - max).exp());
    let sum: f64 = exp.iter().sum();
    exp.map(|e| e / sum)
}

/// a ← a + b
fn add_assign(a: &mut [f64], b: &[f64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
}

/// θ − scale · direction
fn minus(theta: &[Distribution], direction: &[f64], scale: f64) -> Vec<Distribution> {
    let rows = theta.iter().zip(direction.as_chunks::<N_CLASSES>().0);
    rows.map(|(row, by)| std::array::from_fn(|class| row[class] - scale * by[class])).collect()
}

/// A⁻¹ b by Cholesky's A = L Lᵀ, given the lower triangle of a positive definite A.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for i in 0..a.len() {
        let (done, rest) = a.split_at_mut(i);
        let row = &mut rest[0];
        for (j, other) in done.iter().enumerate() {
            row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
        }
        // λ bounds the pivots from below, except for rounding.
        row[i] = (row[i] - dot(&row[..i], &row[..i])).max(f64::EPSILON * row[i]).sqrt();
        b[i] = (b[i] - dot(&row[..i], &b[..i])) / row[i];
    }
    for i in (0..a.len()).rev() {
        b[i] /= a[i][i];
        let solved = b[i];
        b.iter_mut().zip(&a[i][..i]).for_each(|(b, l)| *b -= l * solved);
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::weather::examples::Examples;
    use crate::data::weather::generator::markov;
    use tealight_ops::rng::{Purpose, Stream};

    /// Two groups, the second of one block and a part of another.
    #[test]
    fn groups_of_blocks_add_up_to_the_sum_over_all_windows() {
        let generator = markov::Config::default().build().unwrap();
        let n = (GROUP + 1) * BLOCK + 101;
        let examples = Examples::sample(&generator, 2, n, Stream::new(2, Purpose::Data));
        let reference = Evaluation::empirical(&examples);
        let newton = Newton::new(&reference, 0.1);
        assert_eq!(newton.n_blocks(), GROUP + 2);
        let theta: Vec<Distribution> = (0..7).map(|i| [0.1 * f64::from(i), 0.2, -0.3]).collect();
        let mut whole = Derivatives::zero(newton.n_features);
        for block in newton.blocks(0..newton.n_blocks(), |windows| {
            let mut sum = Derivatives::zero(7);
            windows.for_each(|(days, weight, next)| {
                sum.add(days, weight, next, &softmax(&logits(&theta, days)));
            });
            sum
        }) {
            add_assign(whole.hessian.as_flattened_mut(), block.hessian.as_flattened());
        }
        let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
        for n_threads in [1, 3] {
            let grouped = pool(n_threads).install(|| newton.derivatives(&theta));
            assert!(grouped.hessian == whole.hessian, "{n_threads} threads");
        }
        // Every window has the bias: its curvature is the mean of q(1 − q).
        assert!(whole.hessian[7 * 7 - 1][0] > 0.);
    }

    #[test]
    fn a_linear_system_is_solved() {
        let a = vec![vec![4.], vec![2., 5.], vec![-1., 0.5, 3.]];
        // [4 2 −1; 2 5 0.5; −1 0.5 3] · [1, −2, 3]
        let x = solve(a, vec![-3., -6.5, 7.]);
        assert!(x.iter().zip([1., -2., 3.]).all(|(a, b)| (a - b).abs() < 1e-14));
    }
}
