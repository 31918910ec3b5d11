//! Random numbers as a pure function of (seed, purpose, index). No generator has state, so checkpoints save none.
//!
//! A [`Stream`] is a key: draw 7 is the same number each time, and [`fork`](Stream::fork) derives an independent
//! stream, so that "the dropout of step 12, layer 3, element 5" has an address. The bits are those of
//! Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), which is as cheap on a GPU
//! as on a CPU:
//!
//! ```text
//! one round:  (L₀, R₀, L₁, R₁) ← (hi(M₁·L₁) ⊕ R₀ ⊕ k₀, lo(M₁·L₁), hi(M₀·L₀) ⊕ R₁ ⊕ k₁, lo(M₀·L₀))
//!             (k₀, k₁) ← (k₀ + W₀, k₁ + W₁)
//! ```

use std::array::from_fn;
use std::f64::consts::TAU;

/// The use of a stream. Streams of two purposes are independent, whatever their seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Initial values of parameters.
    Initialisation = 1,
    /// Dropout masks.
    Dropout = 2,
    /// The order of the training examples.
    Shuffle = 3,
    /// Examples drawn from a generator.
    Data = 4,
    /// Tokens drawn from a model.
    Sampling = 5,
    /// Tables and other constants of a task.
    Task = 6,
    /// Which positions a sparse attention reads.
    Pattern = 7,
}

/// A seeded family of random numbers, addressed by index.
///
/// ```
/// use tealight_ops::rng::{Purpose, Stream};
/// let stream = Stream::new(17, Purpose::Data);
/// assert_eq!(stream.uniform(3), stream.uniform(3));
/// assert_ne!(stream.uniform(3), stream.fork(0).uniform(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    /// The key of the stream that this one was forked from.
    parent: [u32; 2],
    /// The index of this fork of the parent.
    number: u64,
}

/// The third word of the counter distinguishes draws from forks, so that a fork's key is never a draw.
const DRAW: u32 = 0;
const FORK: u32 = 0x10_0000;

impl Stream {
    /// The stream of a seed and a purpose.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        let root = Self { key: split(seed), parent: [0; 2], number: 0 };
        root.child(0, FORK + purpose as u32)
    }

    /// The Philox key, for kernels that draw from this stream.
    pub(crate) fn key(self) -> [u32; 2] {
        self.key
    }

    /// The index of this stream among the forks of `parent`; `None` if it is not one of them.
    pub(crate) fn number_in(self, parent: Self) -> Option<u64> {
        (parent.fork(self.number) == self).then_some(self.number)
    }

    /// An independent stream for `index`: a step, a layer, an example.
    #[must_use]
    pub fn fork(self, index: u64) -> Self {
        self.child(index, FORK)
    }

    /// An independent stream for a name, such as a parameter's.
    #[must_use]
    pub fn fork_name(self, name: &str) -> Self {
        self.fork(hash(name.bytes()))
    }

    /// Block `index`: four independent words, from which all draws are made.
    #[inline(always)]
    pub fn block(self, index: u64) -> [u32; 4] {
        let [low, high] = split(index);
        philox1([low, high, DRAW, 0], self.key)
    }

    /// Blocks `first` to `first + N − 1`, as arrays of their first, second, .. words. Vectorised.
    #[inline(always)]
    pub(crate) fn blocks<const N: usize>(self, first: u64) -> [[u32; N]; 4] {
        let half = |half: usize| from_fn(|lane| split(first + lane as u64)[half]);
        philox([half(0), half(1), [DRAW; N], [0; N]], self.key)
    }

    /// Draw `index`, uniform in [0, 1) with 53 random bits.
    pub fn uniform(self, index: u64) -> f64 {
        let words = self.block(index / 2);
        let at = 2 * (index % 2) as usize;
        unit(words[at], words[at + 1])
    }

    /// Draw `index`, uniform in `0..n`. The bias is below n / 2⁶⁴.
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn below(self, index: u64, n: u64) -> u64 {
        assert!(n > 0, "invariant: a draw needs something to choose from");
        let words = self.block(index);
        let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
        ((u128::from(bits) * u128::from(n)) >> 64) as u64
    }

    /// Draw `index`, standard normal (Box–Muller; a pair of draws shares a block).
    pub fn normal(self, index: u64) -> f64 {
        let [a, b, c, d] = self.block(index / 2);
        let radius = (-2. * (1. - unit(a, b)).ln()).sqrt();
        let angle = TAU * unit(c, d);
        radius * if index.is_multiple_of(2) { angle.cos() } else { angle.sin() }
    }

    /// Draw `index` from a distribution given by its (not necessarily normalised) weights.
    ///
    /// An outcome of weight zero is never drawn.
    ///
    /// # Panics
    /// If there is no positive weight.
    pub fn categorical(self, index: u64, weights: &[f64]) -> usize {
        let mut left = self.uniform(index) * weights.iter().sum::<f64>();
        for (outcome, &weight) in weights.iter().enumerate() {
            if left < weight {
                return outcome;
            }
            left -= weight;
        }
        // Rounding of the sum can leave a remainder after the last weight: the last possible outcome.
        weights.iter().rposition(|&w| w > 0.).expect("invariant: some outcome is possible")
    }

    /// A random order of `0..n` (Fisher–Yates).
    pub fn permutation(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }

    fn child(self, index: u64, tag: u32) -> Self {
        let [low, high] = split(index);
        let [a, b, ..] = philox1([low, high, tag, 0], self.key);
        Self { key: [a, b], parent: self.key, number: index }
    }
}

/// FNV-1a: stable across versions of Rust, unlike `std::hash`.
pub(crate) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn split(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// The upper 53 of the 64 bits as a number in [0, 1).
fn unit(high: u32, low: u32) -> f64 {
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

/// Philox4x32-10 of `N` counters, given as arrays of words, so that each round is a loop that vectorises.
#[inline(always)]
fn philox<const N: usize>(mut counter: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    const M: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let [mut left0, mut right0, mut left1, mut right1] = [[0; N]; 4];
        for lane in 0..N {
            let a = M[0] * u64::from(counter[0][lane]);
            let b = M[1] * u64::from(counter[2][lane]);
            left0[lane] = (b >> 32) as u32 ^ counter[1][lane] ^ key[0];
            right0[lane] = b as u32;
            left1[lane] = (a >> 32) as u32 ^ counter[3][lane] ^ key[1];
            right1[lane] = a as u32;
        }
        counter = [left0, right0, left1, right1];
        key = [key[0].wrapping_add(W[0]), key[1].wrapping_add(W[1])];
    }
    counter
}

/// Philox of a single counter.
#[inline(always)]
fn philox1(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox(counter.map(|word| [word]), key).map(|[word]| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123 (`kat_vectors`).
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox1([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox1([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox1(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn many_blocks_are_the_single_ones() {
        let stream = Stream::new(17, Purpose::Data);
        let first = u64::from(u32::MAX) - 3; // The counter overflows into its second word.
        let words = stream.blocks::<7>(first);
        for lane in 0..7 {
            assert_eq!(words.map(|word| word[lane]), stream.block(first + lane as u64));
        }
    }

    #[test]
    fn seeds_purposes_and_forks_are_different_streams() {
        let stream = Stream::new(17, Purpose::Data);
        let others = [
            Stream::new(18, Purpose::Data),
            Stream::new(17, Purpose::Dropout),
            stream.fork(0),
            stream.fork(1),
            stream.fork(0).fork(0),
            stream.fork_name("a"),
            stream.fork_name("b"),
        ];
        for (i, a) in others.iter().enumerate() {
            assert_ne!(a.block(0), stream.block(0));
            for b in &others[..i] {
                assert_ne!(a.block(0), b.block(0));
            }
        }
    }

    #[test]
    fn moments_are_those_of_the_distribution() {
        let stream = Stream::new(3, Purpose::Initialisation);
        let n = 100_000_u64;
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        assert!((mean(&|i| stream.uniform(i)) - 0.5).abs() < 0.005);
        assert!((mean(&|i| stream.uniform(i).powi(2)) - 1. / 3.).abs() < 0.005);
        assert!(mean(&|i| stream.normal(i)).abs() < 0.01);
        assert!((mean(&|i| stream.normal(i).powi(2)) - 1.).abs() < 0.02);
        // The two draws of one block are uncorrelated.
        assert!(mean(&|i| stream.normal(2 * i) * stream.normal(2 * i + 1)).abs() < 0.01);
        assert!((mean(&|i| stream.below(i, 7) as f64) - 3.).abs() < 0.03);
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = Stream::new(5, Purpose::Shuffle).permutation(101);
        assert_ne!(order, (0..101).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..101).collect::<Vec<_>>());
        assert!(Stream::new(5, Purpose::Shuffle).permutation(0).is_empty());
    }

    #[test]
    fn an_impossible_outcome_is_never_drawn() {
        let stream = Stream::new(9, Purpose::Sampling);
        let mut counts = [0_u32; 4];
        for i in 0..10_000 {
            counts[stream.categorical(i, &[1., 0., 3., 0.])] += 1;
        }
        assert_eq!(counts[1] + counts[3], 0);
        assert!((f64::from(counts[2]) / 10_000. - 0.75).abs() < 0.02);
    }
}
