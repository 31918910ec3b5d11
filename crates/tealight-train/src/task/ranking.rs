//! Metrics of ranked answers, as information retrieval has them.
//!
//! ```text
//! accuracy     whether the first answer is right
//! MRR@k        1 / rank of the first right answer among the first k; 0 if all of these are wrong
//! recall@k     right answers among the first k / right answers
//! MAP@k        Σ over right answers among the first k of the share of right ones up to there / min(k, right answers)
//! nDCG@k       Σ_{i ≤ k} g_i / log₂(i + 1), divided by that of the best order; g_i: how right answer i is
//! ```
//!
//! Each is a mean over queries. Those of sentence-transformers' `InformationRetrievalEvaluator`, where answers are right or
//! not. nDCG: Järvelin & Kekäläinen 2002, <https://doi.org/10.1145/582415.582418>.

use std::cmp::Ordering;

/// The answers to a query in their order: how right each is, and the grades of all right answers.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    /// Of the first answers, the best first: 0 for a wrong one.
    pub(super) gains: Vec<f64>,
    /// Of all right answers, in any order; more than 0.
    pub(super) relevant: Vec<f64>,
}

/// The places of the `k` highest scores, the highest first; of equal ones the earlier first.
pub(super) fn highest(scores: &[f32], k: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    // −0 is equal to 0.
    let order = |&a: &usize, &b: &usize| -> Ordering {
        (scores[b] + 0.).total_cmp(&(scores[a] + 0.)).then(a.cmp(&b))
    };
    if k < places.len() {
        places.select_nth_unstable_by(k, order);
        places.truncate(k);
    }
    places.sort_unstable_by(order);
    places
}

impl Ranked {
    pub(super) fn accuracy(&self) -> f64 {
        f64::from(u8::from(self.gains.first().is_some_and(|gain| *gain > 0.)))
    }

    pub(super) fn reciprocal_rank(&self, k: usize) -> f64 {
        let first = self.gains.iter().take(k).position(|gain| *gain > 0.);
        first.map_or(0., |at| 1. / (at + 1) as f64)
    }

    pub(super) fn recall(&self, k: usize) -> f64 {
        self.n_found(k) as f64 / self.relevant.len().max(1) as f64
    }

    pub(super) fn average_precision(&self, k: usize) -> f64 {
        let right = (1..=k.min(self.gains.len())).filter(|&rank| self.gains[rank - 1] > 0.);
        let precisions = right.map(|rank| self.n_found(rank) as f64 / rank as f64);
        precisions.sum::<f64>() / self.relevant.len().min(k).max(1) as f64
    }

    pub(super) fn ndcg(&self, k: usize) -> f64 {
        let mut best = self.relevant.clone();
        best.sort_by(|a, b| b.total_cmp(a));
        let best = discounted(&best, k);
        if best == 0. { 0. } else { discounted(&self.gains, k) / best }
    }

    fn n_found(&self, k: usize) -> usize {
        self.gains.iter().take(k).filter(|gain| **gain > 0.).count()
    }
}

/// Σ g_i / log₂(i + 1)
fn discounted(gains: &[f64], k: usize) -> f64 {
    let terms = gains.iter().take(k).zip(2_u32..);
    terms.map(|(gain, place)| gain / f64::from(place).log2()).sum()
}

/// The mean over queries; 0 of none.
pub(super) fn mean(all: &[Ranked], of: impl Fn(&Ranked) -> f64) -> f64 {
    all.iter().map(of).sum::<f64>() / all.len().max(1) as f64
}

/// The metrics of the best possible model on queries that answers fit equally well.
pub(super) struct Expected;

impl Expected {
    /// The means over queries, of each of which k answers fit as well and r of them are right: every order of these k has
    /// the same probability.
    pub(super) fn mean(queries: &[(usize, usize)]) -> [(&'static str, f64); 5] {
        let mean = |of: &dyn Fn(usize, usize) -> f64| {
            let of_query = queries.iter().map(|&(k, r)| of(k.max(r), r));
            of_query.sum::<f64>() / queries.len().max(1) as f64
        };
        // P(the first right answer has this rank): no right one before, and one there.
        let first = |k: usize, r: usize, rank: usize| {
            let others = (k - r) as f64;
            let before = (0..rank - 1).map(|n| (others - n as f64).max(0.) / (k - n) as f64);
            before.product::<f64>() * r as f64 / (k + 1 - rank) as f64
        };
        let reciprocal = |k: usize, r: usize| {
            (1..=k.min(10)).map(|rank| first(k, r, rank) / rank as f64).sum::<f64>()
        };
        let ndcg = |k: usize, r: usize| {
            let share = vec![r as f64 / k as f64; k];
            discounted(&share, 10) / discounted(&vec![1.; r], 10)
        };
        // Right answers among the first: one at the rank, and its share of those before.
        let map = |k: usize, r: usize| {
            let (k, r) = (k as f64, r as f64);
            let before = |rank: f64| if k > 1. { (rank - 1.) * (r - 1.) / (k - 1.) } else { 0. };
            let ranks = (1..=k as usize).map(|rank| rank as f64);
            ranks.map(|rank| (1. + before(rank)) / rank / k).sum::<f64>()
        };
        [
            ("accuracy", mean(&|k, r| r as f64 / k as f64)),
            ("mrr@10", mean(&reciprocal)),
            ("ndcg@10", mean(&ndcg)),
            ("recall@10", mean(&|k, _| k.min(10) as f64 / k as f64)),
            ("map", mean(&map)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_come_first_and_of_equals_the_earlier() {
        let scores = [0.5, -0., 0.9, 0., 0.5, 0.9];
        assert_eq!(highest(&scores, 4), [2, 5, 0, 4]);
        assert_eq!(highest(&scores, 9), [2, 5, 0, 4, 1, 3]);
        assert!(highest(&scores, 0).is_empty());
    }

    #[test]
    fn the_best_possible_metrics_are_means_over_all_orders() {
        // All places of the right ones of four.
        let of_places = |places: &[&[usize]]| {
            let ranked = places.iter().map(|right| Ranked {
                gains: (0..4).map(|at| f64::from(u8::from(right.contains(&at)))).collect(),
                relevant: vec![1.; right.len()],
            });
            let ranked: Vec<Ranked> = ranked.collect();
            [
                mean(&ranked, Ranked::accuracy),
                mean(&ranked, |one| one.reciprocal_rank(10)),
                mean(&ranked, |one| one.ndcg(10)),
                mean(&ranked, |one| one.recall(10)),
                mean(&ranked, |one| one.average_precision(100)),
            ]
        };
        let one: [&[usize]; 4] = [&[0], &[1], &[2], &[3]];
        let two: [&[usize]; 6] = [&[0, 1], &[0, 2], &[0, 3], &[1, 2], &[1, 3], &[2, 3]];
        for (queries, expected) in [((4, 1), of_places(&one)), ((4, 2), of_places(&two))] {
            let found = Expected::mean(&[queries]);
            for ((name, value), expected) in found.iter().zip(expected) {
                assert!(
                    (value - expected).abs() < 1e-12,
                    "{queries:?}, {name}: {value}, {expected}"
                );
            }
        }
        let certain = Expected::mean(&[(1, 1)]);
        assert!(certain.iter().all(|(_, value)| (value - 1.).abs() < 1e-12), "{certain:?}");
    }

    #[test]
    fn metrics_are_those_of_their_formulas() {
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12, "{value}");
        let one = Ranked { gains: vec![0., 1., 0., 1.], relevant: vec![1., 1., 1.] };
        near(one.accuracy(), 0.);
        near(one.reciprocal_rank(10), 0.5);
        near(one.reciprocal_rank(1), 0.);
        near(one.recall(3), 1. / 3.);
        near(one.average_precision(10), (0.5 + 0.5) / 3.);
        near(one.average_precision(2), 0.5 / 2.);
        let best = 1. + 1. / 3_f64.log2() + 0.5;
        near(one.ndcg(10), (1. / 3_f64.log2() + 1. / 5_f64.log2()) / best);
        let graded = Ranked { gains: vec![1., 3.], relevant: vec![1., 3.] };
        near(graded.ndcg(10), (1. + 3. / 3_f64.log2()) / (3. + 1. / 3_f64.log2()));
        near(mean(&[one, graded], Ranked::accuracy), 0.5);
        let none = Ranked { gains: vec![0.], relevant: Vec::new() };
        near(none.ndcg(10) + none.recall(1) + none.average_precision(1), 0.);
    }
}
