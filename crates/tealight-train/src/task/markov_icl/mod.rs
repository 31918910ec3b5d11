//! Predicting a Markov chain that is new in every example (Edelman et al. 2024, <https://arxiv.org/abs/2402.11004>).
//!
//! ```text
//! rows of the chain   P(· | c) ~ Dirichlet(α, …, α) for each of the kᵐ contexts c, independently
//! first m symbols     uniform (there: from the stationary distribution; uniform has a closed form)
//! label               the next symbol, at every position that has seen m symbols
//! ```
//!
//! **The limit** is Bayes' prediction, (n_cj + α) / (n_c + k α): n_cj is how often j has followed the last m symbols c so
//! far. No model has a lower expected NLL. `excess` is the mean divergence of the model's distribution from it, in nats:
//! never negative, and its expectation is the NLL above the limit, with less noise than the difference.
//!
//! A row of a chain is every α-th of k α − 1 sorted uniform numbers, so an example needs comparisons only and has the same
//! symbols in every language.

mod config;

use std::sync::Arc;

use tealight_ops::rng::Stream;

pub use config::{Config, Test};

use crate::error::Result;
use crate::task::context::TaskContext;
use crate::task::drawn::{Column, DrawnTask, Example, Reference, Source, doubling};
use crate::task::report::Predictor;
use crate::task::{TaskKind, TaskSettings};

impl TaskKind for Config {
    type Task = DrawnTask;

    fn build(&self, context: &TaskContext<'_>) -> Result<DrawnTask> {
        self.validate()?;
        let tests = self.tests.iter().map(|test| {
            (test.name.clone(), Arc::new(Markov(self.for_test(test))) as Arc<dyn Source>)
        });
        let source = Arc::new(Markov(Self { tests: Vec::new(), ..self.clone() }));
        DrawnTask::new(context, source, tests.collect(), self.sizes())
    }
}

/// Draws the examples.
#[derive(Debug)]
struct Markov(Config);

/// A context as a number: its symbols are the digits.
fn context(symbols: &[u32], n_symbols: usize) -> usize {
    symbols.iter().fold(0, |context, &symbol| context * n_symbols + symbol as usize)
}

impl Markov {
    /// The symbols of an example, and the one behind its end.
    fn symbols(&self, stream: Stream) -> Vec<u32> {
        let Config { seq_len, n_symbols: k, order, alpha, .. } = self.0;
        let width = k * alpha - 1;
        // The cumulative probabilities of each row, but for the last, which is 1.
        let row = |context: usize| {
            let numbers = (0..width).map(|i| stream.fork(0).uniform((context * width + i) as u64));
            let mut numbers: Vec<f64> = numbers.collect();
            numbers.sort_by(f64::total_cmp);
            numbers.into_iter().skip(alpha - 1).step_by(alpha).take(k - 1).collect::<Vec<f64>>()
        };
        let rows: Vec<Vec<f64>> = (0..k.pow(order as u32)).map(row).collect();
        let mut symbols: Vec<u32> =
            (0..order).map(|t| stream.fork(1).below(t as u64, k as u64) as u32).collect();
        for t in order..=seq_len {
            let row = &rows[context(&symbols[t - order..], k)];
            let drawn = stream.fork(2).uniform(t as u64);
            symbols.push(row.iter().filter(|&&threshold| drawn >= threshold).count() as u32);
        }
        symbols
    }

    /// The predictions at the labels of an example, as if the chain had this `order`: for each label, those of all
    /// symbols. A position that has not seen as many symbols gets a uniform one.
    fn counted(&self, example: &Example, order: usize) -> Vec<Vec<f64>> {
        let (k, alpha) = (self.0.n_symbols, self.0.alpha as f64);
        let mut counts = vec![vec![0_u32; k]; k.pow(order as u32)];
        let (mut labels, mut predictions) = (example.labelled().peekable(), Vec::new());
        for at in 0..example.ids.len() {
            let label = labels.next_if(|label| label.at == at).map(|label| label.class);
            let next = label.or_else(|| example.ids.get(at + 1).map(|&id| id as usize));
            let row = (at + 1).checked_sub(order).map(|first| {
                let context = context(&example.ids[first..=at], k);
                &mut counts[context]
            });
            if label.is_some() {
                predictions.push(match &row {
                    Some(row) => {
                        let total = f64::from(row.iter().sum::<u32>()) + k as f64 * alpha;
                        row.iter().map(|&n| (f64::from(n) + alpha) / total).collect()
                    }
                    None => vec![1. / k as f64; k],
                });
            }
            if let (Some(row), Some(next)) = (row, next) {
                row[next] += 1;
            }
        }
        predictions
    }

    /// NLL and excess of predictions with counts of this `order`; `None`: uniform ones.
    fn scores(&self, examples: &[Example], order: Option<usize>) -> [(&'static str, f64); 2] {
        let (mut nll, mut excess, mut n) = (0., 0., 0);
        for example in examples {
            let best = self.counted(example, self.0.order);
            let uniform = || vec![vec![1. / self.0.n_symbols as f64; self.0.n_symbols]; best.len()];
            let predictions = order.map_or_else(uniform, |order| self.counted(example, order));
            for ((label, best), prediction) in example.labelled().zip(&best).zip(&predictions) {
                nll -= prediction[label.class].ln();
                excess += best.iter().zip(prediction).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
                n += 1;
            }
        }
        let n = f64::from(n.max(1));
        [("nll", nll / n), ("excess", excess / n)]
    }
}

impl Source for Markov {
    fn kind(&self) -> &'static str {
        "markov_icl"
    }

    fn seq_len(&self) -> usize {
        self.0.seq_len
    }

    fn vocab_size(&self) -> usize {
        self.0.n_symbols
    }

    fn n_classes(&self) -> usize {
        self.0.n_symbols
    }

    fn draw(&self, stream: Stream) -> Example {
        let mut symbols = self.symbols(stream);
        let next = symbols[1..].to_vec();
        symbols.pop();
        let mut example = Example::new(symbols);
        for (at, symbol) in next.into_iter().enumerate().skip(self.0.order - 1) {
            example.label(at, symbol, at + 1);
        }
        example
    }

    fn symbol(&self, id: u32) -> String {
        id.to_string()
    }

    fn places(&self) -> (&'static str, Vec<[usize; 2]>) {
        ("position", doubling(8, self.0.seq_len))
    }

    fn columns(&self) -> &'static [Column] {
        &[("excess", "excess"), ("nll", "NLL"), ("accuracy", "accuracy")]
    }

    fn best(&self, example: &Example) -> Vec<Vec<f64>> {
        self.counted(example, self.0.order)
    }

    fn baseline(&self) -> Predictor {
        Predictor::Unigram
    }

    fn references(&self, examples: &[Example]) -> Vec<Reference> {
        let mut references = vec![
            Reference::new(Predictor::Chance, "uniform", self.scores(examples, None)),
            Reference::new(Predictor::Unigram, "counts of symbols", self.scores(examples, Some(0))),
        ];
        if self.0.order > 1 {
            let scores = self.scores(examples, Some(1));
            references.push(Reference::new(Predictor::Bigram, "counts of pairs", scores));
        }
        let bayes = self.scores(examples, Some(self.0.order));
        references.push(Reference::new(Predictor::Bayes, "Bayes limit", bayes));
        references
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::drawn::tests::{digest, examples};

    fn source(seq_len: usize, n_symbols: usize, order: usize, alpha: usize) -> Markov {
        let config = Config { seq_len, n_symbols, order, alpha, ..Config::default() };
        config.validate().unwrap();
        Markov(config)
    }

    /// Those of an independent program: 200 examples each, with the symbol behind the end.
    #[test]
    fn examples_are_those_of_the_definition() {
        for ((seq_len, n_symbols, order), expected) in [
            ((64, 4, 1), "e9a952535fc1a5e5"),
            ((64, 3, 2), "24206c6d9567e464"),
            ((128, 8, 1), "9ead1ab7e9e6fa06"),
            ((100, 3, 1), "7a4114350cb14bf5"),
        ] {
            let source = source(seq_len, n_symbols, order, 1);
            let symbols = examples(&source, 200).into_iter().flat_map(|one| {
                let last = *one.labels.last().unwrap();
                one.ids.into_iter().map(i64::from).chain([last])
            });
            assert_eq!(digest(symbols), expected, "{source:?}");
        }
    }

    /// As the definition states them for the same 2,000 examples.
    #[test]
    fn counts_of_other_orders_are_baselines() {
        let one = source(64, 4, 1, 1);
        let drawn = examples(&one, 2000);
        for (order, expected) in [
            (None, [1.3863, 0.1785]),
            (Some(0), [1.3360, 0.1278]),
            (Some(1), [1.2078, 0.]),
            (Some(2), [1.2731, 0.0654]),
        ] {
            let scores = one.scores(&drawn, order);
            for ((name, score), expected) in scores.into_iter().zip(expected) {
                assert!((score - expected).abs() < 6e-5, "{order:?} {name}: {score}");
            }
        }
        let two = source(64, 3, 2, 1);
        let references = two.references(&examples(&two, 2000));
        let nll: Vec<f64> = references.iter().map(|one| one.scores[0].1).collect();
        for (nll, expected) in nll.iter().zip([1.0986, 1.0859, 1.0480, 0.9674]) {
            assert!((nll - expected).abs() < 6e-5, "{nll}");
        }
    }

    /// The predictions multiply to probabilities that sum to 1 over all sequences, and no other order has less NLL.
    #[test]
    fn bayes_is_the_distribution_of_the_sequences() {
        for (seq_len, n_symbols, order, alpha) in [(7, 2, 1, 1), (5, 3, 1, 2), (7, 2, 2, 3)] {
            let source = source(seq_len, n_symbols, order, alpha);
            let (mut total, mut best, mut others) = (0., 0., vec![0.; order + 2]);
            for word in 0..n_symbols.pow(seq_len as u32 + 1) {
                let digit = |at: usize| (word / n_symbols.pow(at as u32) % n_symbols) as u32;
                let symbols: Vec<u32> = (0..=seq_len).map(digit).collect();
                let mut example = Example::new(symbols[..seq_len].to_vec());
                for at in order - 1..seq_len {
                    example.label(at, symbols[at + 1], at + 1);
                }
                let log = |order: usize| {
                    let predictions = source.counted(&example, order);
                    example
                        .labelled()
                        .zip(predictions)
                        .map(|(label, row)| row[label.class].ln())
                        .sum::<f64>()
                };
                let p = log(order).exp() / n_symbols.pow(order as u32) as f64;
                total += p;
                best -= p * log(order);
                others.iter_mut().enumerate().for_each(|(order, sum)| *sum -= p * log(order));
            }
            assert!((total - 1.).abs() < 1e-12, "{source:?}: {total}");
            assert!(others.iter().all(|&nll| nll >= best - 1e-12), "{source:?}");
        }
    }
}
