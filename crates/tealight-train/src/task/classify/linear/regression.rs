//! Multinomial logistic regression on sparse rows, by L-BFGS (Nocedal 1980,
//! <https://doi.org/10.1090/S0025-5718-1980-0572855-7>).
//!
//! ```text
//! q(c | x) = softmax_c(b_c + W_c · x)
//! J(W, b)  = (−Σ_i w_i ln q(y_i | x_i) + ½ ‖W‖²) / Σ_i w_i
//! ```
//!
//! The penalty is that of scikit-learn's `C = 1`. A pass costs O(entries · classes); sums have one order, whatever the
//! number of threads.

use std::collections::VecDeque;

use rayon::prelude::*;

use crate::task::calibration::softmax;

/// Steps that are remembered.
const MEMORY: usize = 6;
const MAX_STEPS: usize = 100;
/// The iteration ends when no element of ∇J is larger.
const TOLERANCE: f64 = 1e-5;
const MAX_HALVINGS: usize = 30;
/// Rows, or terms, of a unit of parallel work.
const BLOCK: usize = 256;

/// Sparse rows, one after the other.
#[derive(Debug)]
pub(super) struct Rows {
    /// Places of terms and values.
    entries: Vec<(u32, f32)>,
    /// Where each row ends.
    ends: Vec<usize>,
}

impl Rows {
    pub(super) fn new(rows: impl IntoIterator<Item = Vec<(u32, f32)>>) -> Self {
        let (mut entries, mut ends) = (Vec::new(), Vec::new());
        for row in rows {
            entries.extend(row);
            ends.push(entries.len());
        }
        Self { entries, ends }
    }

    fn n(&self) -> usize {
        self.ends.len()
    }

    fn row(&self, at: usize) -> &[(u32, f32)] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.entries[start..self.ends[at]]
    }

    /// The columns as rows: places of rows and values for each of `n_columns`.
    fn transposed(&self, n_columns: usize) -> Self {
        let mut starts = vec![0; n_columns + 1];
        self.entries.iter().for_each(|&(column, _)| starts[column as usize + 1] += 1);
        for column in 0..n_columns {
            starts[column + 1] += starts[column];
        }
        let ends = starts[1..].to_vec();
        let mut entries = vec![(0, 0.); self.entries.len()];
        for at in 0..self.n() {
            for &(column, value) in self.row(at) {
                let place = &mut starts[column as usize];
                entries[*place] = (at as u32, value);
                *place += 1;
            }
        }
        Self { entries, ends }
    }
}

/// A fitted model.
#[derive(Debug)]
pub(super) struct Regression {
    n_classes: usize,
    /// `(n_terms + 1, n_classes)`: W, and b as the last row.
    weights: Vec<f64>,
}

impl Regression {
    /// Fits rows of `n_terms` with their classes and weights.
    pub(super) fn fit(
        rows: &Rows,
        classes: &[usize],
        weights: &[f64],
        [n_terms, n_classes]: [usize; 2],
    ) -> Self {
        let objective = Objective {
            rows,
            columns: rows.transposed(n_terms),
            classes,
            weights,
            total: weights.iter().sum(),
            n_classes,
        };
        let weights = minimise(vec![0.; (n_terms + 1) * n_classes], |at| objective.at(at));
        Self { n_classes, weights }
    }

    /// The probabilities of the classes, for each row.
    pub(super) fn probabilities(&self, rows: &Rows) -> Vec<Vec<f64>> {
        let row = |at| softmax(&logits(&self.weights, rows.row(at), self.n_classes), 1.).0;
        (0..rows.n()).into_par_iter().with_min_len(BLOCK).map(row).collect()
    }
}

/// b + Σ W · x
fn logits(weights: &[f64], row: &[(u32, f32)], n_classes: usize) -> Vec<f64> {
    let mut sum = weights[weights.len() - n_classes..].to_vec();
    for &(term, value) in row {
        add(&mut sum, &weights[term as usize * n_classes..][..n_classes], value.into());
    }
    sum
}

/// a ← a + scale · b
fn add(a: &mut [f64], b: &[f64], scale: f64) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += scale * b);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

struct Objective<'a> {
    rows: &'a Rows,
    columns: Rows,
    classes: &'a [usize],
    weights: &'a [f64],
    total: f64,
    n_classes: usize,
}

impl Objective<'_> {
    /// J and ∇J.
    fn at(&self, parameters: &[f64]) -> (f64, Vec<f64>) {
        let Self { rows, columns, classes, weights, total, n_classes } = self;
        let n_classes = *n_classes;
        let of_row = |at: usize| {
            let logits = logits(parameters, rows.row(at), n_classes);
            let (mut slope, normaliser) = softmax(&logits, 1.);
            slope[classes[at]] -= 1.;
            for slope in &mut slope {
                *slope *= weights[at] / total;
            }
            (weights[at] * (normaliser - logits[classes[at]]), slope)
        };
        let of_rows: Vec<(f64, Vec<f64>)> =
            (0..rows.n()).into_par_iter().with_min_len(BLOCK).map(of_row).collect();
        let (matrix, _) = parameters.split_at(parameters.len() - n_classes);
        let mut gradient = vec![0.; parameters.len()];
        let (of_matrix, of_bias) = gradient.split_at_mut(matrix.len());
        let terms = of_matrix.par_chunks_mut(n_classes).zip(matrix.par_chunks(n_classes));
        terms.enumerate().with_min_len(BLOCK).for_each(|(term, (gradient, weights))| {
            add(gradient, weights, 1. / total);
            for &(row, value) in columns.row(term) {
                add(gradient, &of_rows[row as usize].1, value.into());
            }
        });
        for (_, slope) in &of_rows {
            add(of_bias, slope, 1.);
        }
        let loss: f64 = of_rows.iter().map(|row| row.0).sum();
        ((loss + 0.5 * dot(matrix, matrix)) / total, gradient)
    }
}

/// A step, the change of the gradient along it, and their product.
struct Step {
    moved: Vec<f64>,
    change: Vec<f64>,
    product: f64,
}

/// Where the convex function `at` of value and gradient is least, beginning with `x`.
fn minimise(mut x: Vec<f64>, at: impl Fn(&[f64]) -> (f64, Vec<f64>)) -> Vec<f64> {
    let (mut value, mut gradient) = at(&x);
    let mut steps: VecDeque<Step> = VecDeque::new();
    for _ in 0..MAX_STEPS {
        if gradient.iter().all(|g| g.abs() <= TOLERANCE) {
            break;
        }
        let direction = direction(&steps, &gradient);
        let slope = dot(&direction, &gradient);
        let mut scale = 1.;
        let reached = (0..MAX_HALVINGS).find_map(|_| {
            let mut moved = x.clone();
            add(&mut moved, &direction, scale);
            let (lower, gradient) = at(&moved);
            let is_enough = lower <= value + 1e-4 * scale * slope;
            scale *= 0.5;
            is_enough.then_some((moved, lower, gradient))
        });
        // Near the minimum the decrease is below the rounding of J.
        let Some((to, lower, slopes)) = reached else { break };
        let difference = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a - b).collect();
        let (moved, change): (Vec<f64>, Vec<f64>) =
            (difference(&to, &x), difference(&slopes, &gradient));
        let product = dot(&moved, &change);
        if product > 0. {
            steps.push_back(Step { moved, change, product });
        }
        if steps.len() > MEMORY {
            steps.pop_front();
        }
        (x, value, gradient) = (to, lower, slopes);
    }
    x
}

/// −H⁻¹ ∇J, with the H that the steps tell (two-loop recursion).
fn direction(steps: &VecDeque<Step>, gradient: &[f64]) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut shares = Vec::with_capacity(steps.len());
    for Step { moved, change, product } in steps.iter().rev() {
        let share = dot(moved, &direction) / product;
        add(&mut direction, change, -share);
        shares.push(share);
    }
    let scale = match steps.back() {
        Some(Step { change, product, .. }) => product / dot(change, change),
        None => 1. / dot(gradient, gradient).sqrt(),
    };
    for d in &mut direction {
        *d *= scale;
    }
    for (Step { moved, change, product }, share) in steps.iter().zip(shares.into_iter().rev()) {
        let other = dot(change, &direction) / product;
        add(&mut direction, moved, share - other);
    }
    direction
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of 5 terms, separable, with classes 0, 1, 2.
    fn rows() -> (Rows, Vec<usize>) {
        let row = |n: usize| {
            let value = |term: u32| (term, 0.25 + 0.5 * (n as f32 * 0.7 + term as f32).sin());
            [n % 5, (n + 2) % 5].map(|term| value(term as u32)).to_vec()
        };
        (Rows::new((0..31).map(row)), (0..31).map(|n| n % 5 / 2).collect())
    }

    #[test]
    fn the_gradient_is_that_of_the_objective_and_vanishes_at_the_fit() {
        let (rows, classes) = rows();
        let weights: Vec<f64> = classes.iter().map(|&class| [1., 2., 0.5][class]).collect();
        let objective = Objective {
            rows: &rows,
            columns: rows.transposed(5),
            classes: &classes,
            weights: &weights,
            total: weights.iter().sum(),
            n_classes: 3,
        };
        let at: Vec<f64> = (0..18).map(|n| f64::from(n).cos()).collect();
        let (_, gradient) = objective.at(&at);
        for (place, slope) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut moved = at.clone();
                moved[place] += by;
                objective.at(&moved).0
            };
            let expected = (moved(1e-4) - moved(-1e-4)) / 2e-4;
            assert!((slope - expected).abs() < 1e-8, "{place}: {slope}, {expected}");
        }
        let fitted = Regression::fit(&rows, &classes, &weights, [5, 3]);
        let (least, gradient) = objective.at(&fitted.weights);
        assert!(gradient.iter().all(|g| g.abs() <= TOLERANCE), "{gradient:?}");
        assert!(least < objective.at(&at).0);
    }

    #[test]
    fn a_matrix_is_transposed() {
        let (rows, _) = rows();
        let columns = rows.transposed(5);
        let entries = (0..rows.n()).flat_map(|at| rows.row(at).iter().map(move |one| (one, at)));
        for (&(column, value), at) in entries {
            assert!(columns.row(column as usize).contains(&(at as u32, value)));
        }
        assert_eq!(columns.entries.len(), rows.entries.len());
    }
}
