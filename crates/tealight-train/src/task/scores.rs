//! The metrics of GLUE (Wang et al. 2018, <https://arxiv.org/abs/1804.07461>) and of several labels at once.
//!
//! ```text
//! F1       2 TP / (2 TP + FP + FN); 0 if that is 0 / 0
//! macro    the mean of the F1 of all labels
//! micro    the F1 of the summed TP, FP, FN of all labels
//! balanced the mean of TP / (TP + FN) of all classes that occur                             Brodersen et al. 2010
//! Matthews (c s − Σ pₖ tₖ) / √((s² − Σ pₖ²) (s² − Σ tₖ²))                                Gorodkin 2004
//!          s texts, c of them right, pₖ predictions and tₖ texts of class k; 0 if that is 0 / 0
//! Pearson  Σ (a − ā) (b − b̄) / √(Σ (a − ā)² Σ (b − b̄)²); 0 if one side is constant
//! Spearman Pearson of the ranks, of which equal values share the mean
//! ```
//!
//! Gorodkin: <https://doi.org/10.1016/j.compbiolchem.2004.09.006>; Brodersen:
//! <https://doi.org/10.1109/ICPR.2010.764>. The values are those of scikit-learn and scipy, except for the correlation
//! with a constant, which is not a number there.

use std::collections::BTreeMap;

use crate::data::shown::on_one_line;

/// How often a label is right: true positives, false positives, false negatives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) found: u64,
    pub(super) wrong: u64,
    pub(super) missed: u64,
}

impl Counts {
    /// The counts of the class `class` in a matrix of `(label, prediction)`.
    fn of_class(confusion: &[Vec<u64>], class: usize) -> Self {
        let found = confusion[class][class];
        let predicted: u64 = confusion.iter().map(|row| row[class]).sum();
        let given: u64 = confusion[class].iter().sum();
        Self { found, wrong: predicted - found, missed: given - found }
    }

    /// The counts of each class in such a matrix.
    pub(super) fn of_classes(confusion: &[Vec<u64>]) -> Vec<Self> {
        (0..confusion.len()).map(|class| Self::of_class(confusion, class)).collect()
    }

    pub(super) fn add(&mut self, is_given: bool, is_predicted: bool) {
        self.found += u64::from(is_given && is_predicted);
        self.wrong += u64::from(!is_given && is_predicted);
        self.missed += u64::from(is_given && !is_predicted);
    }

    pub(super) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().fold(Self::default(), |sum, one| Self {
            found: sum.found + one.found,
            wrong: sum.wrong + one.wrong,
            missed: sum.missed + one.missed,
        })
    }

    /// Texts with the label.
    pub(super) fn n_given(&self) -> u64 {
        self.found + self.missed
    }

    pub(super) fn precision(&self) -> f64 {
        share(self.found, self.found + self.wrong)
    }

    pub(super) fn recall(&self) -> f64 {
        share(self.found, self.n_given())
    }

    pub(super) fn f1(&self) -> f64 {
        share(2 * self.found, 2 * self.found + self.wrong + self.missed)
    }
}

/// 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0. } else { part as f64 / whole as f64 }
}

pub(super) fn macro_f1(labels: &[Counts]) -> f64 {
    labels.iter().map(Counts::f1).sum::<f64>() / labels.len().max(1) as f64
}

/// The macro F1 of a confusion matrix: without classes that no item has and that none was given, as scikit-learn.
fn macro_f1_of_classes(confusion: &[Vec<u64>]) -> f64 {
    let mut counts = Counts::of_classes(confusion);
    counts.retain(|class| class.n_given() + class.wrong > 0);
    macro_f1(&counts)
}

fn balanced_accuracy(counts: &[Counts]) -> f64 {
    let occurring: Vec<_> = counts.iter().filter(|class| class.n_given() > 0).collect();
    occurring.iter().map(|class| class.recall()).sum::<f64>() / occurring.len().max(1) as f64
}

/// The metrics of a confusion matrix in addition to the accuracy: the F1 of the second of two classes, nothing of more;
/// the unweighted means of the recall and of the F1 of all classes; the F1 of the class `rarest`; the correlation of
/// predictions and classes.
pub(super) fn of_classes(
    confusion: &[Vec<u64>],
    rarest: Option<usize>,
) -> Vec<(&'static str, f64)> {
    let counts = Counts::of_classes(confusion);
    let f1 = if let [_, second] = &counts[..] { Some(("f1", second.f1())) } else { None };
    let rarest = rarest.map(|class| ("rarest_f1", counts[class].f1()));
    let means = [
        ("balanced_accuracy", balanced_accuracy(&counts)),
        ("macro_f1", macro_f1_of_classes(confusion)),
    ];
    let matthews = [("matthews_correlation", matthews(confusion))];
    f1.into_iter().chain(means).chain(rarest).chain(matthews).collect()
}

/// The share of the items of a confusion matrix whose class is predicted.
pub(super) fn accuracy(confusion: &[Vec<u64>]) -> f64 {
    let right = confusion.iter().enumerate().map(|(class, row)| row[class]).sum();
    share(right, confusion.iter().flatten().sum())
}

/// How many items of each class a model was trained on, and which classes the held-out items have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frequencies {
    pub(super) trained: Vec<u64>,
    held_out: Vec<u64>,
}

impl Frequencies {
    /// Counts the classes of the items of both splits.
    pub(super) fn new(
        n_classes: usize,
        trained: impl IntoIterator<Item = usize>,
        held_out: impl IntoIterator<Item = usize>,
    ) -> Self {
        fn counted(n_classes: usize, classes: impl IntoIterator<Item = usize>) -> Vec<u64> {
            let mut counts = vec![0; n_classes];
            classes.into_iter().for_each(|class| counts[class] += 1);
            counts
        }
        Self { trained: counted(n_classes, trained), held_out: counted(n_classes, held_out) }
    }

    /// The class with the fewest items to train on, of those that a held-out item has; the first of equals.
    pub(super) fn rarest(&self) -> Option<usize> {
        (0..self.trained.len()).filter(|&c| self.held_out[c] > 0).min_by_key(|&c| self.trained[c])
    }

    /// The class with the most items to train on; the first of equals.
    pub(super) fn majority(&self) -> usize {
        (0..self.trained.len()).rev().max_by_key(|&class| self.trained[class]).unwrap_or(0)
    }

    /// The share of each class among the items to train on. A class without any counts as half an item, because it
    /// may be held out.
    pub(super) fn shares(&self) -> Vec<f64> {
        let counts: Vec<f64> = self.trained.iter().map(|&n| f64::max(n as f64, 0.5)).collect();
        let total: f64 = counts.iter().sum();
        counts.into_iter().map(|count| count / total).collect()
    }

    /// The confusion matrix of predicting the majority for every held-out item.
    pub(super) fn confusion_of_majority(&self) -> Vec<Vec<u64>> {
        let majority = self.majority();
        let row = |&n: &u64| {
            let mut row = vec![0; self.trained.len()];
            row[majority] = n;
            row
        };
        self.held_out.iter().map(row).collect()
    }

    /// All metrics of predicting the majority, with the shares of the classes in training as its probabilities.
    pub(super) fn scores_of_majority(&self) -> Vec<(&'static str, f64)> {
        let confusion = self.confusion_of_majority();
        let nll =
            self.held_out.iter().zip(self.shares()).map(|(&n, share)| -(n as f64) * share.ln());
        let n: u64 = self.held_out.iter().sum();
        let accuracy = [("accuracy", accuracy(&confusion))];
        let nll = [("nll", nll.sum::<f64>() / n as f64)];
        accuracy.into_iter().chain(of_classes(&confusion, self.rarest())).chain(nll).collect()
    }

    /// A line for the user, if a model of the classes `names` with these `metrics` is no better than the majority.
    pub(super) fn no_better(
        &self,
        metrics: &BTreeMap<String, f64>,
        names: &[String],
    ) -> Option<String> {
        let majority = on_one_line(names.get(self.majority()).map_or("", String::as_str));
        let name = format!("always answering \"{majority}\"");
        no_better(metrics, &name, &self.scores_of_majority(), &["accuracy", "balanced_accuracy"])
    }
}

/// A line for the user, if a model with these `metrics` does not beat the `baseline` called `name` in any of the
/// metrics in `compared`, of which higher values are better.
pub(super) fn no_better(
    metrics: &BTreeMap<String, f64>,
    name: &str,
    baseline: &[(&'static str, f64)],
    compared: &[&str],
) -> Option<String> {
    let both = baseline.iter().filter(|(metric, _)| compared.contains(metric));
    let both = both.filter_map(|&(metric, base)| Some((metric, *metrics.get(metric)?, base)));
    let both: Vec<_> = both.collect();
    // A NaN is no better either.
    if both.is_empty() || both.iter().any(|(_, value, base)| value > base) {
        return None;
    }
    let of = |(metric, value, base): &(&str, f64, f64)| format!("{metric} {value:.4} ({base:.4})");
    let scores: Vec<_> = both.iter().map(of).collect();
    Some(format!("no better than {name}: {}", scores.join(", ")))
}

/// Texts of the row's class for which the column's was predicted; `pairs` are (class, prediction).
pub(super) fn confusion(
    n_classes: usize,
    pairs: impl IntoIterator<Item = (usize, usize)>,
) -> Vec<Vec<u64>> {
    let mut confusion = vec![vec![0; n_classes]; n_classes];
    for (class, predicted) in pairs {
        confusion[class][predicted] += 1;
    }
    confusion
}

pub(super) fn matthews(confusion: &[Vec<u64>]) -> f64 {
    let (mut right, mut total, mut products, mut predicted, mut given) = (0., 0., 0., 0., 0.);
    for one in Counts::of_classes(confusion) {
        let [p, t] = [one.found + one.wrong, one.n_given()].map(|n| n as f64);
        right += one.found as f64;
        total += t;
        products += p * t;
        predicted += p * p;
        given += t * t;
    }
    let scale = ((total * total - predicted) * (total * total - given)).sqrt();
    if scale > 0. { (right * total - products) / scale } else { 0. }
}

pub(super) fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let centred = |values: &[f64]| -> Vec<f64> {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        values.iter().map(|value| value - mean).collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let is_constant = |values: &[f64]| values.windows(2).all(|two| two[0] == two[1]);
    let (x, y) = (centred(a), centred(b));
    let scale = (dot(&x, &x) * dot(&y, &y)).sqrt();
    if is_constant(a) || is_constant(b) || scale == 0. { 0. } else { dot(&x, &y) / scale }
}

pub(super) fn spearman(a: &[f64], b: &[f64]) -> f64 {
    pearson(&ranks(a), &ranks(b))
}

/// The place of each value in ascending order, counted from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    let mut ranks = vec![0.; values.len()];
    let mut before = 0;
    for equal in order.chunk_by(|&i, &j| values[i] == values[j]) {
        // The mean of before + 1, …, before + n.
        let rank = before as f64 + (equal.len() + 1) as f64 / 2.;
        for &at in equal {
            ranks[at] = rank;
        }
        before += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values of the tests below are those of scikit-learn 1.9.1 and scipy 1.17.1.
    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-12, "{value} is not {expected}");
    }

    fn scores<const N: usize>(
        n_classes: usize,
        given: [usize; N],
        predicted: [usize; N],
    ) -> [f64; 2] {
        let confusion = confusion(n_classes, given.into_iter().zip(predicted));
        [macro_f1(&Counts::of_classes(&confusion)), matthews(&confusion)]
    }

    #[test]
    fn scores_of_two_classes() {
        let given = [0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1];
        let predicted = [0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0];
        let [macro_f1, matthews] = scores(2, given, predicted);
        assert_near(macro_f1, 0.690_476_190_476_190_5);
        assert_near(matthews, 0.380_952_380_952_380_93);
        let confusion = confusion(2, given.into_iter().zip(predicted));
        assert_near(Counts::of_class(&confusion, 1).f1(), 0.714_285_714_285_714_3);
    }

    #[test]
    fn scores_of_three_classes() {
        let given = [0, 1, 2, 0, 1, 2, 2, 1, 0, 0, 2, 1, 1];
        let [macro_f1, matthews] = scores(3, given, [0, 2, 2, 0, 1, 1, 2, 1, 1, 0, 2, 0, 1]);
        assert_near(macro_f1, 0.7);
        assert_near(matthews, 0.535_714_285_714_285_7);
    }

    #[test]
    fn one_class_alone_correlates_with_nothing() {
        let [macro_f1, matthews] = scores(2, [0, 0, 0, 1], [0, 0, 0, 0]);
        assert_near(macro_f1, 0.428_571_428_571_428_55);
        assert_near(matthews, 0.);
        assert_near(pearson(&[1., 1., 1.], &[1., 2., 3.]), 0.);
        assert_near(spearman(&[0.1, 0.1], &[1., 2.]), 0.);
        assert_near(pearson(&[], &[]), 0.);
    }

    /// `balanced_accuracy_score` of scikit-learn, which leaves out the class that no item has.
    #[test]
    fn every_class_that_occurs_counts_as_much_in_the_balanced_accuracy() {
        let given = [0, 1, 2, 0, 1, 2, 2, 1, 0, 0, 2, 1, 1];
        let predicted = [0, 2, 2, 0, 1, 1, 2, 1, 1, 0, 2, 0, 3];
        let confusion = confusion(4, given.into_iter().zip(predicted));
        let [found] = of_classes(&confusion, Some(2))[..1] else {
            panic!("four classes have no F1")
        };
        assert_eq!(found.0, "balanced_accuracy");
        assert_near(found.1, 0.633_333_333_333_333_3);
        assert_near(accuracy(&confusion), 8. / 13.);
    }

    #[test]
    fn the_majority_has_all_metrics() {
        let frequencies = Frequencies::new(3, [0, 1, 1, 1, 2, 2], [1, 0, 0, 1, 1]);
        assert_eq!((frequencies.majority(), frequencies.rarest()), (1, Some(0)));
        let scores: BTreeMap<_, _> = frequencies.scores_of_majority().into_iter().collect();
        let nll = -(3. * 0.5_f64.ln() + 2. * (1_f64 / 6.).ln()) / 5.;
        for (metric, expected) in [
            ("accuracy", 0.6),
            ("balanced_accuracy", 0.5),
            // Class 2 is neither given nor predicted.
            ("macro_f1", 0.375),
            ("rarest_f1", 0.),
            ("matthews_correlation", 0.),
            ("nll", nll),
        ] {
            assert_near(scores[metric], expected);
        }
    }

    #[test]
    fn a_model_that_answers_as_the_majority_is_no_better() {
        let frequencies = Frequencies::new(2, [0, 0, 0, 1], [0, 0, 1]);
        let names = ["ham", "spam"].map(str::to_owned);
        let told = |accuracy: f64, balanced: f64| {
            let of = [("accuracy", accuracy), ("balanced_accuracy", balanced), ("loss", 1.)];
            let metrics = of.map(|(name, value)| (name.to_owned(), value)).into();
            frequencies.no_better(&metrics, &names)
        };
        let expected = "no better than always answering \"ham\": accuracy 0.6667 (0.6667), \
                        balanced_accuracy 0.5000 (0.5000)";
        assert_eq!(told(2. / 3., 0.5).as_deref(), Some(expected));
        assert!(told(f64::NAN, 0.25).is_some());
        // Rare classes are found at the price of frequent ones.
        assert_eq!(told(1. / 3., 0.625), None);
        assert_eq!(told(1., 1.), None);
    }

    #[test]
    fn correlations_with_ties() {
        let given = [0.5, 3.2, 4.8, 1.1, 2.0, 2.0, 3.9, 0.0, 5.0, 2.0, 1.1];
        let predicted = [0.9, 2.7, 4.1, 1.5, 1.5, 2.4, 2.4, 0.3, 4.4, 2.4, 2.2];
        assert_near(pearson(&given, &predicted), 0.919_599_828_826_463_4);
        assert_near(spearman(&given, &predicted), 0.927_906_976_744_186_3);
        assert_eq!(ranks(&[3., 1., 3., 2., 3.]), [4., 1., 4., 2., 4.]);
    }

    #[test]
    fn scores_of_several_labels() {
        let given =
            [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]];
        let predicted =
            [[1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]];
        let mut counts = [Counts::default(); 4];
        for (given, predicted) in given.iter().zip(predicted) {
            for (label, count) in counts.iter_mut().enumerate() {
                count.add(given[label] == 1, predicted[label] == 1);
            }
        }
        assert_near(Counts::sum(&counts).f1(), 0.714_285_714_285_714_3);
        assert_near(macro_f1(&counts), 0.541_666_666_666_666_6);
        // A class that does not occur: f1_score([0, 0, 1], [0, 1, 1], average="macro") of scikit-learn.
        let absent = vec![vec![1, 1, 0], vec![0, 1, 0], vec![0, 0, 0]];
        assert_near(macro_f1_of_classes(&absent), 2. / 3.);
        // Worked by hand: label 0 is found twice, given wrongly once and missed once.
        assert_eq!(counts[0], Counts { found: 2, wrong: 1, missed: 1 });
    }
}
