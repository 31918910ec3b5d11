//! The weather of the diaries, and the exact distribution of a day given its neighbours.
//!
//! ```text
//! P(x_t | all other days) = P(x_t | x_{t−1}, x_{t+1}) ∝ T[x_{t−1}, x_t] · T[x_t, x_{t+1}]
//! the first day:            P(x_1 | x_2)              ∝ π[x_1] · T[x_1, x_2]
//! the last day:             P(x_n | x_{n−1})          = T[x_{n−1}, x_n]
//!
//! accuracy      = Σ P(neighbours) · max_x P(x | neighbours)
//! cross-entropy = − Σ P(neighbours) Σ_x P(x | neighbours) ln P(x | neighbours)
//! ```
//!
//! A diary begins with the stationary distribution π = πT, so that all days have the same distribution. The
//! chain is cyclic: cloud turns to rain, rain to sun, and sun to cloud, rarely in the other direction.
//! Therefore the order of the neighbours matters.

use crate::data::weather::generator::markov;
use crate::data::weather::{Distribution, N_CLASSES};
use serde::Serialize;

/// The distributions of the day after rain, after cloud and after sun.
const TRANSITION: [Distribution; N_CLASSES] =
    [[0.72, 0.04, 0.24], [0.28, 0.68, 0.04], [0.04, 0.26, 0.70]];

/// The second eigenvalue has the absolute value 0.58; its power of this vanishes in f64.
const STEPS_TO_STATIONARY: usize = 100;

/// The best possible expected result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Limit {
    /// The probability that the most likely weather is right.
    pub accuracy: f64,
    /// The entropy of the day given all others, in nats.
    pub cross_entropy: f64,
}

/// The place of a day in a diary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The first day.
    First,
    /// A day between two others.
    Inside,
    /// The last day.
    Last,
}

impl Place {
    /// The place of day `day`, counted from 0, of at least two.
    pub(super) fn from_day(day: usize, n_days: usize) -> Self {
        match day {
            0 => Self::First,
            day if day + 1 == n_days => Self::Last,
            _ => Self::Inside,
        }
    }
}

/// A stationary Markov chain over rain, cloud and sun.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// Its first day has the stationary distribution.
    pub(super) rule: markov::Config,
}

/// The weather of the days before and after a day; `None` at the ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Neighbours {
    pub(super) before: Option<u8>,
    pub(super) after: Option<u8>,
}

impl Neighbours {
    /// The neighbours of day `day` in a sequence of days.
    pub(super) fn from_days(days: &[u8], day: usize) -> Self {
        let before = day.checked_sub(1).map(|before| days[before]);
        Self { before, after: days.get(day + 1).copied() }
    }
}

impl Chain {
    /// The chain of the diaries.
    pub(super) fn new() -> Self {
        let step = |now: Distribution| {
            std::array::from_fn(|to| {
                (0..N_CLASSES).map(|from| now[from] * TRANSITION[from][to]).sum()
            })
        };
        let third = [1. / N_CLASSES as f64; N_CLASSES];
        let stationary = (0..STEPS_TO_STATIONARY).fold(third, |now, _| step(now));
        let rule = markov::Config { initial: stationary, transition: TRANSITION };
        Self { rule: rule.build().expect("invariant: the rows are distributions") }
    }

    /// The distribution of a day given its neighbours.
    pub(super) fn posterior(&self, neighbours: Neighbours) -> Distribution {
        let joint = self.joint(neighbours);
        let total: f64 = joint.iter().sum();
        joint.map(|p| p / total)
    }

    /// The best possible result for a day at this place.
    pub(super) fn limit(&self, place: Place) -> Limit {
        const DAYS: &[Option<u8>] = &[Some(0), Some(1), Some(2)];
        const NO_DAY: &[Option<u8>] = &[None];
        let (days_before, days_after) = match place {
            Place::First => (NO_DAY, DAYS),
            Place::Inside => (DAYS, DAYS),
            Place::Last => (DAYS, NO_DAY),
        };
        let mut limit = Limit::default();
        for &before in days_before {
            for &after in days_after {
                let joint = self.joint(Neighbours { before, after });
                let total: f64 = joint.iter().sum();
                limit.accuracy += joint.iter().copied().fold(0., f64::max);
                limit.cross_entropy -= joint.iter().map(|p| p * (p / total).ln()).sum::<f64>();
            }
        }
        limit
    }

    /// P(neighbours, day) for each weather of the day.
    fn joint(&self, Neighbours { before, after }: Neighbours) -> Distribution {
        let stationary = self.rule.initial;
        std::array::from_fn(|day| {
            let reached = before.map_or(stationary[day], |before| {
                let before = usize::from(before);
                stationary[before] * TRANSITION[before][day]
            });
            reached * after.map_or(1., |after| TRANSITION[day][usize::from(after)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::weather::generator::Generator;

    const TOLERANCE: f64 = 1e-12;

    #[test]
    fn every_day_is_distributed_alike() {
        let chain = Chain::new();
        let joint = chain.rule.joint(3); // (27)
        for day in 0..3 {
            for weather in 0..3 {
                let is = |index: usize| index / [9, 3, 1][day] % 3 == weather;
                let p: f64 = (0..27).filter(|&index| is(index)).map(|index| joint[index]).sum();
                assert!((p - chain.rule.initial[weather]).abs() < TOLERANCE);
            }
        }
    }

    /// The definition: all sequences of five days with their probabilities, all days but one known.
    #[test]
    fn the_limits_are_those_over_all_sequences() {
        const N_DAYS: usize = 5;
        let chain = Chain::new();
        let joint = chain.rule.joint(N_DAYS); // (243)
        for day in 0..N_DAYS {
            let stride = 3_usize.pow((N_DAYS - 1 - day) as u32);
            let mut expected = Limit::default();
            for index in (0..joint.len()).filter(|index| (index / stride).is_multiple_of(3)) {
                let p: Distribution = std::array::from_fn(|x| joint[index + x * stride]);
                let total: f64 = p.iter().sum();
                expected.accuracy += p.iter().copied().fold(0., f64::max);
                expected.cross_entropy -= p.iter().map(|p| p * (p / total).ln()).sum::<f64>();
            }
            let limit = chain.limit(Place::from_day(day, N_DAYS));
            assert!((limit.accuracy - expected.accuracy).abs() < TOLERANCE, "day {day}");
            assert!((limit.cross_entropy - expected.cross_entropy).abs() < TOLERANCE, "day {day}");
        }
    }

    #[test]
    fn the_limits_are_known_numbers() {
        let rounded = |limit: Limit| (limit.accuracy * 1e4).round() / 1e4;
        let chain = Chain::new();
        assert_eq!(rounded(chain.limit(Place::Inside)), 0.7437);
        assert_eq!(rounded(chain.limit(Place::First)), 0.7009);
        assert_eq!(rounded(chain.limit(Place::Last)), 0.7009);
    }

    /// The cycle is sun, cloud, rain; between rain and sun there is rarely a cloud.
    #[test]
    fn the_order_of_the_neighbours_matters() {
        let chain = Chain::new();
        let answer = |before, after| {
            let p = chain.posterior(Neighbours { before: Some(before), after: Some(after) });
            (0..3).max_by(|&a, &b| p[a].total_cmp(&p[b])).unwrap()
        };
        assert_eq!((answer(2, 0), answer(0, 2)), (1, 0));
    }

    #[test]
    fn sampled_days_agree_with_the_posterior() {
        use tealight_ops::rng::{Purpose, Stream};
        let chain = Chain::new();
        let stream = Stream::new(5, Purpose::Data);
        let mut counts = [[[0_u32; 3]; 3]; 3];
        for index in 0..60_000 {
            let days = chain.rule.sample(stream.fork(index), 3);
            let [before, day, after] = [days[0], days[1], days[2]].map(usize::from);
            counts[before][after][day] += 1;
        }
        for before in 0..3_u8 {
            for after in 0..3_u8 {
                let count = counts[usize::from(before)][usize::from(after)];
                let total: u32 = count.iter().sum();
                let neighbours = Neighbours { before: Some(before), after: Some(after) };
                for (p, &n) in chain.posterior(neighbours).iter().zip(&count) {
                    let deviation = (p * (1. - p) / f64::from(total)).sqrt();
                    assert!((f64::from(n) / f64::from(total) - p).abs() < 4. * deviation + 1e-3);
                }
            }
        }
    }
}
