//! A sequence of days as a number in base 3, the oldest day first.

use super::{Distribution, N_CLASSES};

/// The number of sequences of `n_days`.
pub(super) fn count(n_days: usize) -> usize {
    N_CLASSES.pow(n_days as u32)
}

/// The index of `days` among the sequences of its length, in lexical order.
pub(super) fn index(days: &[u8]) -> usize {
    days.iter().fold(0, |index, &day| N_CLASSES * index + usize::from(day))
}

/// Writes the sequence at `index` into `days`.
pub(super) fn write_days(mut index: usize, days: &mut [u8]) {
    for day in days.iter_mut().rev() {
        *day = (index % N_CLASSES) as u8;
        index /= N_CLASSES;
    }
}

/// Probabilities of all sequences of `from` days → of all sequences of `to` days, by the rule `next(history)`.
pub(super) fn extend(
    mut joint: Vec<f64>,
    from: usize,
    to: usize,
    next: impl Fn(&[u8]) -> Distribution,
) -> Vec<f64> {
    debug_assert_eq!(joint.len(), count(from));
    for n_days in from..to {
        let mut days = vec![0; n_days];
        let mut longer = Vec::with_capacity(N_CLASSES * joint.len());
        for (index, &probability) in joint.iter().enumerate() {
            write_days(index, &mut days);
            longer.extend(next(&days).map(|p| probability * p));
        }
        joint = longer;
    }
    joint
}

/// Probabilities of all sequences → of their first `n_days` days.
pub(super) fn first_days(joint: &[f64], n_days: usize) -> Vec<f64> {
    joint.chunks(joint.len() / count(n_days)).map(|tail| tail.iter().sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_and_days_are_inverse() {
        let mut days = [0; 5];
        for i in 0..count(5) {
            write_days(i, &mut days);
            assert_eq!(index(&days), i);
        }
        assert_eq!(index(&[1, 0, 2]), 11);
    }

    #[test]
    fn extending_then_dropping_days_changes_nothing() {
        let start = vec![0.2, 0.5, 0.3];
        let joint = extend(start.clone(), 1, 4, |days| {
            if days[0] == 2 { [0.1, 0.2, 0.7] } else { [0.6, 0.4, 0.] }
        });
        assert_eq!(joint.len(), 81);
        assert_eq!(joint[index(&[2, 2, 0, 1])], 0.3 * 0.7 * 0.1 * 0.2);
        let again = first_days(&joint, 1);
        assert!(again.iter().zip(&start).all(|(a, b)| (a - b).abs() < 1e-15));
    }
}
