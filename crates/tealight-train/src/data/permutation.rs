//! A random permutation of `0..n` with random access and without a table.

use tealight_ops::rng::Stream;

/// A Feistel network over the smallest domain 2²ʰ ≥ n (Luby & Rackoff 1988), applied until the result is
/// below n (cycle walking; Black & Rogaway 2002, "Ciphers with arbitrary finite domains", method 2):
///
/// ```text
/// (L, R) ← (R, L ⊕ F_round(R))          x ← network(x) until x < n; fewer than 4 times on average
/// ```
///
/// Cost: O(1) time and memory for each place. [`Stream::permutation`] is a table of all places, which is
/// faster to read repeatedly.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    rounds: [Stream; ROUNDS],
    half: u32,
    n: u64,
}

/// Four rounds give a strong pseudo-random permutation of a large domain; small domains need more.
const ROUNDS: usize = 8;

impl Permutation {
    /// The permutation of `0..n` for a stream.
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn new(stream: Stream, n: u64) -> Self {
        assert!(n > 0, "invariant: there is something to order");
        let bits = u64::BITS - (n - 1).leading_zeros();
        let rounds = std::array::from_fn(|round| stream.fork(round as u64));
        Self { rounds, half: bits.div_ceil(2).max(1), n }
    }

    /// The number at `place`.
    ///
    /// # Panics
    /// If `place` is not below n.
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.n, "invariant: a place of the permutation");
        let mut x = self.network(place);
        while x >= self.n {
            x = self.network(x);
        }
        x
    }

    fn network(&self, x: u64) -> u64 {
        let mask = (1_u64 << self.half) - 1;
        let (mut left, mut right) = (x >> self.half, x & mask);
        for round in &self.rounds {
            let bits = u64::from(round.block(right)[0]);
            (left, right) = (right, left ^ (bits & mask));
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use tealight_ops::rng::Purpose;

    use super::*;

    fn order(seed: u64, n: u64) -> Vec<u64> {
        let permutation = Permutation::new(Stream::new(seed, Purpose::Shuffle), n);
        (0..n).map(|place| permutation.at(place)).collect()
    }

    #[test]
    fn every_number_stands_at_one_place() {
        for n in [1, 2, 3, 5, 16, 17, 101, 1009] {
            let mut order = order(17, n);
            assert!(n < 20 || order != (0..n).collect::<Vec<_>>());
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_place_is_as_likely_to_hold_one_number_as_another() {
        let n = 5;
        let mut counts = [[0_u32; 5]; 5];
        for seed in 0..2000 {
            for (place, number) in order(seed, n).into_iter().enumerate() {
                counts[place][number as usize] += 1;
            }
        }
        // 2000 draws of probability 0.2: 400, with a standard deviation of 18.
        assert!(counts.iter().flatten().all(|n| (320..480).contains(n)), "{counts:?}");
    }

    #[test]
    fn large_orders_cost_nothing_to_begin() {
        let n = u64::from(u32::MAX) * 1000;
        let permutation = Permutation::new(Stream::new(17, Purpose::Shuffle), n);
        let places: std::collections::BTreeSet<u64> =
            (0..1000).map(|place| permutation.at(place)).collect();
        assert_eq!(places.len(), 1000);
        assert!(places.iter().all(|&place| place < n));
        let mean = places.iter().map(|&place| place as f64).sum::<f64>() / 1000. / n as f64;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
    }
}
