//! A state that is a sum of outer products: what linear attention keeps in place of keys and values.
//!
//! `state (n_features, width)`, row after row. Several rows are taken at a time, so that what all
//! of them share is read and written once.

use crate::element::Element;
use crate::parallel::sum_of_pairs;

/// Rows that are taken at a time.
const ROWS: usize = 4;

/// state ← fade ⊙ state + feature ⊗ vector: `fade` and `feature (n_features)`, `vector (width)`
#[inline(always)]
pub(crate) fn fade_and_add<T: Element>(state: &mut [T], fade: &[T], feature: &[T], vector: &[T]) {
    let rows = state.chunks_exact_mut(vector.len());
    for (row, (&fade, &feature)) in rows.zip(fade.iter().zip(feature)) {
        for (state, &x) in row.iter_mut().zip(vector) {
            *state = *state * fade + feature * x;
        }
    }
}

/// vector ← scale · featureᵀ state
#[inline(always)]
pub(crate) fn read<T: Element>(vector: &mut [T], scale: T, feature: &[T], state: &[T]) {
    vector.fill(T::ZERO);
    let width = vector.len();
    let (groups, rest) = feature.as_chunks::<ROWS>();
    let (grouped, others) = state.split_at(groups.len() * ROWS * width);
    for (&[a, b, c, d], rows) in groups.iter().zip(grouped.chunks_exact(ROWS * width)) {
        let (rows_ab, rows_cd) = rows.split_at(2 * width);
        let ((row_a, row_b), (row_c, row_d)) = (rows_ab.split_at(width), rows_cd.split_at(width));
        let rows = row_a.iter().zip(row_b).zip(row_c.iter().zip(row_d));
        for (x, ((&s_a, &s_b), (&s_c, &s_d))) in vector.iter_mut().zip(rows) {
            *x += (a * s_a + b * s_b) + (c * s_c + d * s_d);
        }
    }
    for (&feature, row) in rest.iter().zip(others.chunks_exact(width)) {
        for (x, &state) in vector.iter_mut().zip(row) {
            *x += feature * state;
        }
    }
    for x in vector {
        *x *= scale;
    }
}

/// features ← state vector: `features (n_features)`, `vector (width)`
#[inline(always)]
pub(crate) fn read_features<T: Element>(features: &mut [T], state: &[T], vector: &[T]) {
    for (feature, row) in features.iter_mut().zip(state.chunks_exact(vector.len())) {
        *feature = sum_of_pairs(row, vector, |state, x| state * x);
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
            let mut state = vec![1.; n * 3];
            fade_and_add(&mut state, &vec![0.5; n], &features, &[2., 0., -1.]);
            let (sum, squares) =
                features.iter().fold((0., 0.), |(sum, squares), x| (sum + x, squares + x * x));

            let mut vector = [f64::NAN; 3];
            read(&mut vector, 2., &features, &state);
            assert_eq!(vector, [sum + 4. * squares, sum, sum - 2. * squares]);

            let mut read_back = vec![f64::NAN; n];
            read_features(&mut read_back, &state, &[0., 2., 1.]);
            let expected: Vec<f64> = features.iter().map(|feature| 1.5 - feature).collect();
            assert_eq!(read_back, expected);
        }
    }
}
