//! The stationary distribution of a Markov chain whose state is its last n symbols.
//!
//! ```text
//! π′(s₁ … sₙ) = Σ_{s₀} π(s₀ … sₙ₋₁) P(sₙ | s₀ … sₙ₋₁)        until Σ |π′ − π| < 10⁻¹³
//! ```
//!
//! Cost: 3·3ⁿ multiplications and one pass over memory for each step. The three predecessors of a state lie
//! 3ⁿ⁻¹ apart, so that all reads and writes are sequential.

use crate::data::weather::{Distribution, N_CLASSES, sequence};
use tealight_ops::threads::map;

/// A chain over sequences of `n_symbols` symbols in base 3, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) n_symbols: usize,
    /// `(3^n_symbols)`: the row of `table` for each state.
    pub(super) rows: Vec<u8>,
    /// Distributions of the next symbol, shared by many states.
    pub(super) table: Vec<Distribution>,
}

/// The iteration ends when Σ |π′ − π| is below this.
const TOLERANCE: f64 = 1e-13;
/// The iteration ends after this many steps in any case.
const MAX_STEPS: usize = 20_000;
/// States in a unit of parallel work. Fixed, so that sums do not depend on the number of threads.
const BLOCK: usize = 3 * 2048;
/// Steps between two computations of the change, each of which costs another pass.
const STEPS_PER_CHECK: usize = 8;

impl Chain {
    /// The distribution of the symbol after state `index`.
    pub(super) fn next(&self, index: usize) -> &Distribution {
        &self.table[usize::from(self.rows[index])]
    }

    /// The stationary distribution over states, `(3^n_symbols)`.
    pub(super) fn stationary(&self) -> Vec<f64> {
        let n_states = self.rows.len();
        let mut pi = vec![1. / n_states as f64; n_states];
        let mut next = vec![0.; n_states];
        for step in 1..=MAX_STEPS {
            self.step(&pi, &mut next);
            let converged = step % STEPS_PER_CHECK == 0 && change(&pi, &next) < TOLERANCE;
            std::mem::swap(&mut pi, &mut next);
            if converged {
                break;
            }
        }
        // Normalise: rounding errors accumulate over the steps.
        let sums = map(pi.chunks(BLOCK).collect(), &|block: &[f64]| block.iter().sum::<f64>());
        let total: f64 = sums.iter().sum();
        for p in &mut pi {
            *p /= total;
        }
        pi
    }

    /// One step: π → `next`.
    pub(super) fn step(&self, pi: &[f64], next: &mut [f64]) {
        if self.n_symbols == 0 {
            return next.copy_from_slice(pi);
        }
        let stride = pi.len() / N_CLASSES;
        map(next.chunks_mut(BLOCK).enumerate().collect(), &|(block, next): (usize, &mut [f64])| {
            let first = block * BLOCK / N_CLASSES;
            for (i, to) in next.as_chunks_mut::<N_CLASSES>().0.iter_mut().enumerate() {
                *to = [0.; N_CLASSES];
                for oldest in 0..N_CLASSES {
                    let from = oldest * stride + first + i;
                    let row = self.next(from);
                    (0..N_CLASSES).for_each(|symbol| to[symbol] += pi[from] * row[symbol]);
                }
            }
        });
    }

    /// The probability of every sequence of `n_symbols`, given the stationary distribution.
    pub(super) fn joint(&self, stationary: Vec<f64>, n_symbols: usize) -> Vec<f64> {
        if n_symbols <= self.n_symbols {
            return sequence::first_days(&stationary, n_symbols);
        }
        let n_states = stationary.len();
        (self.n_symbols..n_symbols).fold(stationary, |joint, _| {
            let after = |(i, p): (usize, &f64)| self.next(i % n_states).map(|next| p * next);
            joint.iter().enumerate().flat_map(after).collect()
        })
    }
}

/// Σ |a − b|
fn change(a: &[f64], b: &[f64]) -> f64 {
    let of_block =
        |(a, b): (&[f64], &[f64])| -> f64 { a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum() };
    map(a.chunks(BLOCK).zip(b.chunks(BLOCK)).collect(), &of_block).iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P(next | oldest, newest) = table[(oldest + 2·newest) mod 3]
    fn chain() -> Chain {
        let rows = (0..9).map(|i| ((i / 3 + 2 * (i % 3)) % 3) as u8).collect();
        let table = vec![[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.25, 0.7, 0.05]];
        Chain { n_symbols: 2, rows, table }
    }

    #[test]
    fn a_step_leaves_the_stationary_distribution() {
        let chain = chain();
        let pi = chain.stationary();
        let mut expected = [0.; 9];
        for (i, p) in pi.iter().enumerate() {
            (0..3).for_each(|symbol| expected[i % 3 * 3 + symbol] += p * chain.next(i)[symbol]);
        }
        assert!(pi.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-13));
        assert!((pi.iter().sum::<f64>() - 1.).abs() < 1e-13);
    }

    #[test]
    fn joint_probabilities_have_the_same_margin_at_either_end() {
        let chain = chain();
        let joint = chain.joint(chain.stationary(), 5);
        let pi = chain.joint(chain.stationary(), 2);
        let mut last = [0.; 9];
        joint.iter().enumerate().for_each(|(i, p)| last[i % 9] += p);
        let first = sequence::first_days(&joint, 2);
        for i in 0..9 {
            assert!((last[i] - pi[i]).abs() < 1e-13 && (first[i] - pi[i]).abs() < 1e-13);
        }
    }
}
