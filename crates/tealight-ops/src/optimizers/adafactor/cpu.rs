//! The fused loops: passes for the second moment, for U and its norm, and for the parameter.

use super::Hyper;
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run, squares, sum, sum_in_order, sum_of_squares};

/// For matrices of these numbers of rows and columns: updates R and C; returns U and ‖U‖².
pub(super) fn update_factored<T: Element>(
    gradient: &[T],
    [rows, columns]: [&mut [T]; 2],
    [n_rows, n_columns]: [usize; 2],
    beta: f64,
    epsilon: f64,
) -> (Vec<T>, f64) {
    let mut update = unwritten(gradient.len());
    let size = n_rows * n_columns;
    let matrices = update.chunks_exact_mut(size).zip(gradient.chunks_exact(size));
    let moments = rows.chunks_exact_mut(n_rows).zip(columns.chunks_exact_mut(n_columns));
    let mut norm = 0.;
    for ((update, gradient), (rows, columns)) in matrices.zip(moments) {
        average(gradient, rows, columns, beta, epsilon);
        norm += divide(update, gradient, rows, columns);
    }
    (update, norm)
}

/// R ← β R + (1 − β) (G² + ε) 1, and C likewise.
fn average<T: Element>(gradient: &[T], rows: &mut [T], columns: &mut [T], beta: f64, epsilon: f64) {
    let (n_rows, n_columns) = (rows.len(), columns.len());
    let [beta, one_minus_beta, epsilon] = [beta, 1. - beta, epsilon].map(T::from_f64);
    let len = block_len(n_columns);
    let partial = run::<T, _, _>(
        gradient.len(),
        gradient.chunks(len).zip(rows.chunks_mut(len / n_columns)),
        #[inline(always)]
        |(gradient, rows)| {
            let mut columns = vec![T::ZERO; n_columns];
            for (gradient, row) in gradient.chunks_exact(n_columns).zip(rows) {
                for (column, &g) in columns.iter_mut().zip(gradient) {
                    *column += g * g + epsilon;
                }
                *row = beta * *row + one_minus_beta * sum(gradient, |g| g * g + epsilon);
            }
            columns
        },
    );
    debug_assert!(gradient.len() == n_rows * n_columns, "invariant: shapes are checked before");
    for (column, new) in columns.iter_mut().zip(sum_in_order(&partial, n_columns)) {
        *column = beta * *column + one_minus_beta * new;
    }
}

/// U = G / √(R C / 1ᵀR); returns ‖U‖².
fn divide<T: Element>(update: &mut [T], gradient: &[T], rows: &[T], columns: &[T]) -> f64 {
    let n_columns = columns.len();
    let total = T::from_f64(sum(rows, T::widen));
    let columns = columns.iter().map(|&column| T::ONE / column.sqrt()).collect::<Vec<_>>();
    let len = block_len(n_columns);
    let norms = run::<T, _, _>(
        update.len(),
        update.chunks_mut(len).zip(gradient.chunks(len)).zip(rows.chunks(len / n_columns)),
        #[inline(always)]
        |((update, gradient), rows)| {
            let matrix = update.chunks_exact_mut(n_columns).zip(gradient.chunks_exact(n_columns));
            for ((update, gradient), &row) in matrix.zip(rows) {
                let row = T::ONE / (row / total).sqrt();
                for ((u, &g), &column) in update.iter_mut().zip(gradient).zip(&columns) {
                    *u = g * row * column;
                }
            }
            squares(update)
        },
    );
    norms.iter().sum()
}

/// For vectors: updates V; returns U and ‖U‖².
pub(super) fn update_full<T: Element>(
    gradient: &[T],
    moment: &mut [T],
    beta: f64,
    epsilon: f64,
) -> (Vec<T>, f64) {
    let [beta, one_minus_beta, epsilon] = [beta, 1. - beta, epsilon].map(T::from_f64);
    let mut update = unwritten(gradient.len());
    let len = block_len(1);
    let norms = run::<T, _, _>(
        gradient.len(),
        update.chunks_mut(len).zip(gradient.chunks(len)).zip(moment.chunks_mut(len)),
        #[inline(always)]
        |((update, gradient), moment): ((&mut [T], _), _)| {
            for ((u, &g), v) in update.iter_mut().zip(gradient).zip(moment) {
                *v = beta * *v + one_minus_beta * (g * g + epsilon);
                *u = g / v.sqrt();
            }
            squares(update)
        },
    );
    (update, norms.iter().sum())
}

/// X ← X − α (U / max(1, RMS(U) / d) + λ X)
pub(super) fn step<T: Element>(parameter: &mut [T], update: &[T], norm: f64, hyper: &Hyper) {
    let n = parameter.len() as f64;
    let len = block_len(1);
    let step_size = hyper.step_size((sum_of_squares(parameter) / n).sqrt());
    let keep = T::from_f64(1. - step_size * hyper.weight_decay);
    let update_factor = T::from_f64(step_size / hyper.clipping((norm / n).sqrt()));
    run::<T, _, _>(
        parameter.len(),
        parameter.chunks_mut(len).zip(update.chunks(len)),
        #[inline(always)]
        |(parameter, update)| {
            for (theta, &u) in parameter.iter_mut().zip(update) {
                *theta = *theta * keep - update_factor * u;
            }
        },
    );
}
