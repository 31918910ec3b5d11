//! How well probabilities agree with how often they are right, and the temperature that corrects them (Guo et al. 2017,
//! <https://arxiv.org/abs/1706.04599>).
//!
//! ```text
//! q     = softmax(z / T),  T = argmin −Σ ln q_y         convex in 1 / T
//! ECE   = Σ_b n_b / n · |accuracy_b − confidence_b|     15 bins ((b − 1) / 15, b / 15] of the confidence max q
//! Brier = Σ_c (q_c − [c = y])², the mean over items
//! ```
//!
//! T changes no order of the classes, so no accuracy. Fitted and measured on the same items, it would look better than
//! it is: each half of the items is measured with the temperature that is fitted to the other half. Copies of an item are
//! in one half, since a half that is fitted to a copy knows it. The temperature that is kept is fitted to all.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use tealight_model::names;

use crate::inference::decision::Decision;
use crate::inference::likeliest;
use crate::task::report::Report;
use crate::task::report::classes::Items;

const N_BINS: usize = 15;
/// The range of 1 / T.
const RANGE: [f64; 2] = [0.05, 20.];
const MAX_STEPS: usize = 100;
/// Relative, of 1 / T.
const TOLERANCE: f64 = 1e-10;

names! {
    /// What corrects the probabilities of a classifier after training, fitted to the held-out items.
    pub enum Calibration {
        /// Nothing.
        "none" => None,
        /// A number that divides the logits, so that predictions of 90 % are right nine times in ten (Guo et al. 2017).
        /// No predicted class changes.
        "temperature" => Temperature,
    }
}

/// The logits of an item, and its class.
pub(super) type Judged<'a> = (&'a [f64], usize);

/// Items whose confidence is in one range.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Bin {
    low: f64,
    high: f64,
    n: usize,
    /// Means over the items.
    accuracy: f64,
    confidence: f64,
}

/// How well probabilities agree with how often they are right.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Reliability {
    nll: f64,
    ece: f64,
    brier: f64,
    /// Those that have items.
    bins: Vec<Bin>,
}

impl Reliability {
    /// Of items as they are.
    fn of(items: &[Judged<'_>]) -> Self {
        Self::new(items.iter().map(|&item| (item, 1.)))
    }

    /// Of items, each with the temperature that divides its logits.
    fn new<'a>(items: impl Iterator<Item = (Judged<'a>, f64)>) -> Self {
        let mut bins = vec![Bin::default(); N_BINS];
        let (mut n, mut nll, mut brier) = (0., 0., 0.);
        for ((logits, class), temperature) in items {
            let (probabilities, normaliser) = softmax(logits, 1. / temperature);
            let predicted = likeliest(&probabilities);
            let confidence = probabilities[predicted];
            n += 1.;
            nll += normaliser - logits[class] / temperature;
            let error = |(at, q): (usize, &f64)| (q - f64::from(u8::from(at == class))).powi(2);
            brier += probabilities.iter().enumerate().map(error).sum::<f64>();
            // The place of a NaN, of weights that have diverged, is 0.
            let place = (confidence * N_BINS as f64).ceil() as usize;
            let bin = &mut bins[place.clamp(1, N_BINS) - 1];
            bin.n += 1;
            bin.accuracy += f64::from(u8::from(predicted == class));
            bin.confidence += confidence;
        }
        for (at, bin) in bins.iter_mut().enumerate() {
            (bin.low, bin.high) = (at as f64 / N_BINS as f64, (at + 1) as f64 / N_BINS as f64);
            bin.accuracy /= bin.n as f64;
            bin.confidence /= bin.n as f64;
        }
        bins.retain(|bin| bin.n > 0);
        let of_bin = |bin: &Bin| bin.n as f64 * (bin.accuracy - bin.confidence).abs();
        let ece = bins.iter().map(of_bin).sum::<f64>() / n;
        Self { nll: nll / n, ece, brier: brier / n, bins }
    }
}

/// exp(z β) / Σ exp(z β), and ln Σ exp(z β).
pub(super) fn softmax(logits: &[f64], beta: f64) -> (Vec<f64>, f64) {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max) * beta;
    let mut exp: Vec<f64> = logits.iter().map(|z| (z * beta - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    for e in &mut exp {
        *e /= sum;
    }
    (exp, max + sum.ln())
}

/// T, by Newton's method on 1 / T within bounds; `None` if the loss has no minimum there, as where all items are right.
fn temperature(items: &[Judged<'_>]) -> Option<f64> {
    // The first two derivatives of the loss by β = 1 / T: Σ (E z − z_y) and Σ (E z² − (E z)²).
    let derivatives = |beta: f64| {
        items.iter().fold((0., 0.), |(slope, curvature), &(logits, class)| {
            let (q, _) = softmax(logits, beta);
            let mean: f64 = q.iter().zip(logits).map(|(q, z)| q * z).sum();
            let spread = |(q, z): (&f64, &f64)| q * (z - mean).powi(2);
            let variance: f64 = q.iter().zip(logits).map(spread).sum();
            (slope + mean - logits[class], curvature + variance)
        })
    };
    let [mut low, mut high] = RANGE;
    // False of a NaN, too.
    if !(derivatives(low).0 < 0. && derivatives(high).0 > 0.) {
        return None;
    }
    let mut beta = 1.;
    for _ in 0..MAX_STEPS {
        let (slope, curvature) = derivatives(beta);
        *(if slope > 0. { &mut high } else { &mut low }) = beta;
        let newton = beta - slope / curvature;
        let next = if newton > low && newton < high { newton } else { f64::midpoint(low, high) };
        let has_moved = (next - beta).abs() > TOLERANCE * beta;
        beta = next;
        if !has_moved {
            break;
        }
    }
    Some(1. / beta)
}

/// How well the probabilities of items agree with how often they are right, as they are and after calibration.
#[derive(Clone, Debug, PartialEq)]
struct Calibrated {
    /// Fitted to all items; `None` if the loss has no minimum within the bounds.
    temperature: Option<f64>,
    before: Reliability,
    /// Each half with the temperature of the other.
    after: Reliability,
}

impl Calibrated {
    /// Of items, each with a key that it shares with its copies.
    fn new<K: Ord>(items: &[Judged<'_>], keys: impl IntoIterator<Item = K>) -> Self {
        let (temperature, before) = (temperature(items), Reliability::of(items));
        if temperature.is_none() {
            return Self { temperature, after: before.clone(), before };
        }
        let halves = halves(keys);
        let of = |half: usize| -> Vec<Judged<'_>> {
            let all = items.iter().zip(&halves);
            all.filter(|(_, own)| **own == half).map(|(&item, _)| item).collect()
        };
        // A half without a temperature keeps that of no calibration.
        let of_halves = [0, 1].map(|half| self::temperature(&of(half)).unwrap_or(1.));
        let after = items.iter().zip(&halves).map(|(&item, half)| (item, of_halves[1 - half]));
        Self { temperature, after: Reliability::new(after), before }
    }

    /// Adds the measures before and after, and the reliability diagram, to a report of `items`.
    fn add_to(&self, report: &mut Report, items: Items) {
        let [_, items, _] = items.words();
        let Self { temperature, before, after } = self;
        report.value(
            "calibration",
            json!({ "temperature": temperature, "before": before, "after": after }),
        );
        let Some(temperature) = temperature else {
            report.section(
                &"calibration: no temperature lowers the NLL, so probabilities stay as they are\n",
            );
            return;
        };
        let of = |name: &str, measured: &Reliability| {
            let mut row = json!(measured);
            row[""] = json!(name);
            row
        };
        let columns = [("calibration", ""), ("NLL", "nll"), ("ECE", "ece"), ("Brier", "brier")];
        let rows = [of("as trained", before), of("calibrated", after)];
        report.table(&rows, &columns);
        let columns = [
            ("confidence up to", "high"),
            (items, "n"),
            ("mean confidence", "confidence"),
            ("accuracy", "accuracy"),
        ];
        let bins: Vec<_> = after.bins.iter().map(|bin| json!(bin)).collect();
        report.table(&bins, &columns);
        report.section(&format!(
            "temperature {temperature:.4}, fitted to all {items} held out; each half is measured with the temperature of \
             the other\n"
        ));
    }
}

/// Adds the measures of `judged` items to the report and, if it `is_fitted`, the temperature with what it changes; the
/// report keeps the temperature for the run. Items of which the `keys` are equal are copies. Returns what divides the
/// logits.
pub(super) fn add<K: Ord>(
    report: &mut Report,
    items: Items,
    judged: &[Judged<'_>],
    keys: impl IntoIterator<Item = K>,
    is_fitted: bool,
) -> f64 {
    let Reliability { ece, brier, .. } = Reliability::of(judged);
    report.value("ece", ece);
    report.value("brier", brier);
    if !is_fitted {
        return 1.;
    }
    let calibrated = Calibrated::new(judged, keys);
    calibrated.add_to(report, items);
    let temperature = calibrated.temperature;
    report.decision = Some(Decision { temperature, ..Decision::default() });
    temperature.unwrap_or(1.)
}

/// The half of each item: the different keys belong to the halves in turn.
fn halves<K: Ord>(keys: impl IntoIterator<Item = K>) -> Vec<usize> {
    let mut known = BTreeMap::new();
    let half = |key| {
        let n = known.len();
        *known.entry(key).or_insert(n % 2)
    };
    keys.into_iter().map(half).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// 400 items of an over-confident classifier, with the values of SciPy.
    fn record() -> Value {
        let text = include_str!("../../tests/golden/classification.json");
        serde_json::from_str::<Value>(text).unwrap()["temperature"].take()
    }

    fn items(record: &Value) -> Vec<(Vec<f64>, usize)> {
        let row =
            |row: &Value| row.as_array().unwrap().iter().map(|z| z.as_f64().unwrap()).collect();
        let logits = record["logits"].as_array().unwrap().iter().map(row);
        let classes = record["labels"].as_array().unwrap().iter();
        logits.zip(classes.map(|class| class.as_u64().unwrap() as usize)).collect()
    }

    fn judged(items: &[(Vec<f64>, usize)]) -> Vec<Judged<'_>> {
        items.iter().map(|(logits, class)| (&logits[..], *class)).collect()
    }

    #[test]
    fn temperature_and_measures_are_those_of_the_record() {
        let record = record();
        let items = items(&record);
        let items = judged(&items);
        let fitted = temperature(&items).unwrap();
        assert!((fitted - record["temperature"].as_f64().unwrap()).abs() < 1e-6, "{fitted}");
        for (name, temperature) in [("before", 1.), ("after", fitted)] {
            let measured = Reliability::new(items.iter().map(|&item| (item, temperature)));
            let expected = |key: &str| record[name][key].as_f64().unwrap();
            for (value, key) in
                [(measured.nll, "nll"), (measured.ece, "ece15"), (measured.brier, "brier")]
            {
                assert!((value - expected(key)).abs() < 1e-6, "{name} {key}: {value}");
            }
        }
        let bins = Reliability::of(&items).bins;
        let recorded = record["bins_before"].as_array().unwrap();
        assert_eq!(bins.len(), recorded.len());
        for (bin, recorded) in bins.iter().zip(recorded) {
            assert_eq!(bin.n as u64, recorded[0].as_u64().unwrap());
            for (value, at) in [(bin.accuracy, 1), (bin.confidence, 2)] {
                assert!((value - recorded[at].as_f64().unwrap()).abs() < 1e-9, "{bin:?}");
            }
        }
    }

    #[test]
    fn a_half_is_measured_with_the_temperature_of_the_other() {
        let record = record();
        let items = items(&record);
        let calibrated = Calibrated::new(&judged(&items), 0..items.len());
        let halves: [Vec<_>; 2] =
            [0, 1].map(|parity| items.iter().skip(parity).step_by(2).cloned().collect());
        let nll = |half: usize| {
            let fitted = temperature(&judged(&halves[1 - half])).unwrap();
            Reliability::new(judged(&halves[half]).into_iter().map(|item| (item, fitted))).nll
        };
        assert!((calibrated.after.nll - f64::midpoint(nll(0), nll(1))).abs() < 1e-12);
        assert!(calibrated.after.ece < calibrated.before.ece / 2., "{calibrated:?}");
    }

    /// Each item twice: halves of every second one would be equal.
    #[test]
    fn copies_are_in_one_half() {
        assert_eq!(halves(["a", "b", "a", "c", "b", "d"]), [0, 1, 0, 0, 1, 1]);
        let items = items(&record());
        let twice: Vec<_> = judged(&items).into_iter().flat_map(|item| [item, item]).collect();
        let of_copies = Calibrated::new(&twice, (0..twice.len()).map(|at| at / 2));
        let once = Calibrated::new(&judged(&items), 0..items.len());
        assert!((of_copies.after.nll - once.after.nll).abs() < 1e-9, "{of_copies:?} {once:?}");
    }

    #[test]
    fn without_a_minimum_there_is_no_temperature() {
        let right = [(vec![2., -1.], 0), (vec![0.5, 1.], 1), (vec![4., 1.], 0)];
        assert_eq!(temperature(&judged(&right)), None);
        let same = [(vec![1., 1.], 0), (vec![0., 0.], 1)];
        assert_eq!(temperature(&judged(&same)), None);
        assert_eq!(temperature(&[]), None);
        let diverged = [(vec![f64::NAN, 1.], 0), (vec![1., 0.], 0)];
        assert_eq!(temperature(&judged(&diverged)), None);
        assert!(Reliability::of(&judged(&diverged)).brier.is_nan());
        let calibrated = Calibrated::new(&judged(&right), 0..right.len());
        assert_eq!(calibrated.before, calibrated.after);
    }
}
