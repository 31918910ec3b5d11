//! Sums of outer products of features and vectors: the recurrent state of linear attention.
//!
//! A state is stored row by row as `(n_features, width)` or transposed as `(width, n_features)`, so that
//! sums over rows need no sum within a register. Several rows are read at a time, so that a result is loaded
//! and stored once for all of them. An empty state stays empty.

use crate::backend::element::Element;

/// Rows read at a time.
const ROWS: usize = 4;

/// A sum of outer products of features and vectors, stored in the orders in which it is read.
pub(crate) struct OuterSum<T> {
    /// `(n_features, width)`, or empty.
    pub(crate) straight: Vec<T>,
    /// `(width, n_features)`, or empty.
    pub(crate) transposed: Vec<T>,
}

impl<T: Element> OuterSum<T> {
    /// Zeros, of `len` = `n_features` · `width`.
    #[inline(always)]
    pub(crate) fn zeros(len: usize) -> Self {
        Self { straight: vec![T::ZERO; len], transposed: vec![T::ZERO; len] }
    }

    /// Zeros that are read as `(n_features, width)` only.
    #[inline(always)]
    pub(crate) fn straight(len: usize) -> Self {
        Self { straight: vec![T::ZERO; len], transposed: Vec::new() }
    }

    /// Zeros that are read as `(width, n_features)` only.
    #[inline(always)]
    pub(crate) fn transposed(len: usize) -> Self {
        Self { straight: Vec::new(), transposed: vec![T::ZERO; len] }
    }

    /// sum ← decay ⊙ sum + feature ⊗ vector: `decay` and `feature (n_features)`, `vector (width)`
    #[inline(always)]
    pub(crate) fn decay_and_add(&mut self, decay: &[T], feature: &[T], vector: &[T]) {
        decay_and_add(&mut self.straight, decay, feature, vector);
        decay_and_add_transposed(&mut self.transposed, decay, feature, vector);
    }
}

/// state ← decay ⊙ state + feature ⊗ vector: `state (n_features, width)`, `decay` and `feature
/// (n_features)`, `vector (width)`
#[inline(always)]
fn decay_and_add<T: Element>(state: &mut [T], decay: &[T], feature: &[T], vector: &[T]) {
    let rows = state.chunks_exact_mut(vector.len());
    for (row, (&decay, &feature)) in rows.zip(decay.iter().zip(feature)) {
        for (state, &x) in row.iter_mut().zip(vector) {
            *state = *state * decay + feature * x;
        }
    }
}

/// As [`decay_and_add`], for the transposed `state (width, n_features)`.
#[inline(always)]
fn decay_and_add_transposed<T: Element>(state: &mut [T], decay: &[T], feature: &[T], vector: &[T]) {
    for (row, &x) in state.chunks_exact_mut(feature.len()).zip(vector) {
        for (state, (&decay, &feature)) in row.iter_mut().zip(decay.iter().zip(feature)) {
            *state = *state * decay + feature * x;
        }
    }
}

/// result ← scale · weightsᵀ state: `weights (n_rows)`, `state (n_rows, len of result)`
#[inline(always)]
pub(crate) fn read<T: Element>(result: &mut [T], scale: T, weights: &[T], state: &[T]) {
    result.fill(T::ZERO);
    let width = result.len();
    let (groups, rest) = weights.as_chunks::<ROWS>();
    let (grouped, others) = state.split_at(groups.len() * ROWS * width);
    for (&[a, b, c, d], rows) in groups.iter().zip(grouped.chunks_exact(ROWS * width)) {
        let (rows_ab, rows_cd) = rows.split_at(2 * width);
        let ((row_a, row_b), (row_c, row_d)) = (rows_ab.split_at(width), rows_cd.split_at(width));
        let rows = row_a.iter().zip(row_b).zip(row_c.iter().zip(row_d));
        for (x, ((&s_a, &s_b), (&s_c, &s_d))) in result.iter_mut().zip(rows) {
            *x += (a * s_a + b * s_b) + (c * s_c + d * s_d);
        }
    }
    for (&weight, row) in rest.iter().zip(others.chunks_exact(width)) {
        for (x, &state) in result.iter_mut().zip(row) {
            *x += weight * state;
        }
    }
    for x in result {
        *x *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_read_at_any_number_of_rows() {
        for n_features in [1, 4, 7, 11] {
            let features: Vec<f64> = (1..=n_features).map(f64::from).collect();
            let n = n_features as usize;
            let [mut state, mut transposed] = [vec![1.; n * 3], vec![1.; 3 * n]];
            let vector = [2., 0., -1.];
            decay_and_add(&mut state, &vec![0.5; n], &features, &vector);
            decay_and_add_transposed(&mut transposed, &vec![0.5; n], &features, &vector);
            let (sum, squares) =
                features.iter().fold((0., 0.), |(sum, squares), x| (sum + x, squares + x * x));

            let mut of_width = [f64::NAN; 3];
            read(&mut of_width, 2., &features, &state);
            assert_eq!(of_width, [sum + 4. * squares, sum, sum - 2. * squares]);

            let mut of_features = vec![f64::NAN; n];
            read(&mut of_features, 1., &[0., 2., 1.], &transposed);
            let expected: Vec<f64> = features.iter().map(|feature| 1.5 - feature).collect();
            assert_eq!(of_features, expected);
        }
    }
}
