//! A baseline for classes of texts: multinomial logistic regression on the TF-IDF of words and of pairs of neighbouring
//! words. On few texts it is often better than a model that is trained from nothing.
//!
//! Texts that are too many for two seconds are drawn at random.

mod regression;
mod words;

use tealight_ops::rng::{Purpose, Stream};

use super::file::Example;
use crate::inference::text_classifier::Text;
use regression::{Regression, Rows};
use words::Vocabulary;

/// The most texts that the baseline learns from.
const MAX_TEXTS: usize = 20_000;
/// The most bytes of these texts.
const MAX_BYTES: usize = 1 << 25;
/// The most products of a pass over all texts: terms of the texts times classes.
const MAX_PRODUCTS: usize = 1 << 25;
/// The most parameters: terms that are known times classes.
const MAX_PARAMETERS: usize = 1 << 19;

/// The texts that the baseline learns from, with their places among the items to train on, in random order.
#[derive(Debug)]
pub(super) struct Texts(Vec<(usize, Text)>);

/// What the baseline predicts for the held-out texts.
#[derive(Debug, PartialEq)]
pub(super) struct Predicted {
    /// The number of texts that it has learnt from.
    pub(super) n_texts: usize,
    /// The probabilities of the classes, for each text.
    pub(super) probabilities: Vec<Vec<f64>>,
}

impl Texts {
    /// Takes as many texts of `train` as the baseline learns from, in an order that is the same for every run.
    pub(super) fn new(train: &[Example]) -> Self {
        let order = Stream::new(0, Purpose::Data).fork_name("linear").permutation(train.len());
        let mut room = MAX_BYTES;
        let fits = |at: &usize| {
            let Text { text, text_pair } = &train[*at].text;
            let n_bytes = text.len() + text_pair.as_ref().map_or(0, String::len);
            let rest = room.checked_sub(n_bytes);
            room = rest.unwrap_or(room);
            rest.is_some()
        };
        let chosen = order.into_iter().take(MAX_TEXTS).filter(fits);
        Self(chosen.map(|at| (at, train[at].text.clone())).collect())
    }

    /// Learns the classes of the texts, `class_of` each place, and predicts those of `held_out`. A text counts as
    /// much as the weight of its class in `weights`, if there are any.
    pub(super) fn predict(
        &self,
        n_classes: usize,
        class_of: impl Fn(usize) -> usize,
        weights: Option<&[f32]>,
        held_out: &[Example],
    ) -> Predicted {
        let terms = words::terms(self.0.iter().map(|(_, text)| text));
        let mut n_products = 0;
        let fits = |terms: &&Vec<u64>| {
            n_products += terms.len() * n_classes;
            n_products <= MAX_PRODUCTS
        };
        let terms: Vec<_> = terms.iter().take_while(fits).collect();
        let n_texts = terms.len();
        let vocabulary = Vocabulary::new(&terms, MAX_PARAMETERS / n_classes.max(1));
        let rows = Rows::new(terms.iter().map(|terms| vocabulary.row(terms)));
        let classes: Vec<usize> = self.0[..n_texts].iter().map(|one| class_of(one.0)).collect();
        let weights: Vec<f64> = classes
            .iter()
            .map(|&class| weights.map_or(1., |by_class| f64::from(by_class[class])))
            .collect();
        let regression =
            Regression::fit(&rows, &classes, &weights, [vocabulary.n_terms(), n_classes]);
        let held_out = words::terms(held_out.iter().map(|one| &one.text));
        let held_out = Rows::new(held_out.iter().map(|terms| vocabulary.row(terms)));
        Predicted { n_texts, probabilities: regression.probabilities(&held_out) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file::Label;
    use super::*;
    use crate::data::text::corpus::Origin;

    const ANIMALS: [&str; 4] = ["cat", "dog", "cow", "hen"];

    fn text(n: usize) -> String {
        format!("The {} saw {n} of them, Not the {}!", ANIMALS[n % 4], ANIMALS[n / 4 % 4])
    }

    fn example(text: String) -> Example {
        let origin = Origin { path: Path::new("texts.csv").into(), line: 1 };
        Example { text: Text { text, text_pair: None }, label: Label::Number(0.), origin }
    }

    fn texts(n: usize) -> Texts {
        Texts::new(&(0..n).map(text).map(example).collect::<Vec<_>>())
    }

    fn held_out() -> Vec<Example> {
        (1_000..1_040).map(text).map(example).collect()
    }

    /// The class is the first animal, which only a pair of words tells from the second.
    #[test]
    fn classes_are_learnt_from_pairs_of_words() {
        let predicted = texts(200).predict(4, |at| at % 4, None, &held_out());
        assert_eq!((predicted.n_texts, predicted.probabilities.len()), (200, 40));
        for (n, row) in (1_000..).zip(&predicted.probabilities) {
            assert!((row.iter().sum::<f64>() - 1.).abs() < 1e-12);
            assert!(row[n % 4] > 0.5, "{}: {row:?}", text(n));
        }
    }

    #[test]
    fn predictions_are_the_same_for_any_number_of_threads() {
        // More than one block of rows.
        let texts = texts(1_200);
        let predict = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| texts.predict(4, |at| at % 4, Some(&[1., 2., 0.5, 1.]), &held_out()))
        };
        assert_eq!(predict(1), predict(3));
    }

    #[test]
    fn more_texts_than_fit_are_drawn() {
        assert_eq!(texts(MAX_TEXTS + 7).0.len(), MAX_TEXTS);
        let long = vec![example("a".repeat(MAX_BYTES / 3)); 5];
        assert_eq!(Texts::new(&long).0.len(), 3);
    }
}
