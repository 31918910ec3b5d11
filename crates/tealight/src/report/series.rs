//! The lines of `metrics.jsonl` as series for charts: few enough to show, and each point one that was logged.

use std::collections::BTreeSet;

use serde::Serialize;
use tealight_train::observer::jsonl::{BAD_STEP_SPLITS, Entry};

/// Stretches of a whole series, each of which keeps its smallest and largest value. A page of several runs divides
/// them.
pub(super) const N_STRETCHES: usize = 800;

/// The values of one metric of a split, at the steps where they were logged.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Series {
    /// `train`, `validation`, …
    pub(crate) split: String,
    /// Its name in `metrics.jsonl`.
    pub(crate) metric: String,
    /// Ascending.
    pub(crate) steps: Vec<u64>,
    /// `None` for a value that was not finite.
    pub(crate) values: Vec<Option<f64>>,
}

/// Training time and tokens at steps: the other quantities that an x axis can show.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Clock {
    /// Ascending.
    pub(crate) steps: Vec<u64>,
    /// Seconds of training up to each step, without evaluations and checkpoints.
    pub(crate) seconds: Vec<f64>,
    /// Tokens up to each step; empty for tasks that do not count them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tokens: Vec<f64>,
    /// Seconds and tokens up to the last step, not rounded.
    #[serde(skip)]
    sums: [f64; 2],
}

/// A bad step, marked in the charts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Mark {
    /// `skipped` or `rolled_back`.
    pub(crate) kind: String,
    /// The step that was skipped, or the one that the run went back to.
    pub(crate) step: u64,
    /// The bad step that a roll-back undid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<f64>,
}

/// The series of `entries`, all points; splits and metrics in alphabetical order.
pub(crate) fn series(entries: &[Entry]) -> Vec<Series> {
    let mut all = Vec::new();
    extend(&mut all, entries);
    all
}

/// Adds the points of `entries` to series in alphabetical order.
pub(crate) fn extend(all: &mut Vec<Series>, entries: &[Entry]) {
    for entry in entries.iter().filter(|entry| !is_mark(entry)) {
        for (metric, value) in &entry.values {
            let name = (&*entry.split, &**metric);
            let place = all.binary_search_by(|series| (&*series.split, &*series.metric).cmp(&name));
            let at = place.unwrap_or_else(|at| {
                all.insert(at, Series::named(&entry.split, metric));
                at
            });
            all[at].steps.push(entry.step);
            all[at].values.push(*value);
        }
    }
}

/// The bad steps among `entries`.
pub(crate) fn marks(entries: &[Entry]) -> Vec<Mark> {
    let mark = |entry: &Entry| Mark {
        kind: entry.split.clone(),
        step: entry.step,
        from: entry.values.get("from").copied().flatten(),
    };
    entries.iter().filter(|entry| is_mark(entry)).map(mark).collect()
}

fn is_mark(entry: &Entry) -> bool {
    BAD_STEP_SPLITS.contains(&entry.split.as_str())
}

impl Series {
    /// An empty series.
    fn named(split: &str, metric: &str) -> Self {
        Self { split: split.to_owned(), metric: metric.to_owned(), ..Self::default() }
    }

    /// The last value that was finite, with its step.
    pub(crate) fn last(&self) -> Option<(u64, f64)> {
        self.finite().next_back()
    }

    /// All finite values with their steps.
    pub(crate) fn finite(&self) -> impl DoubleEndedIterator<Item = (u64, f64)> {
        self.steps.iter().zip(&self.values).filter_map(|(step, value)| Some((*step, (*value)?)))
    }

    /// At most two points of each of `n` stretches, those of the smallest and of the largest value, the first value
    /// that is not finite, and the ends of the series.
    pub(crate) fn thinned(&self, n: usize) -> Self {
        let len = self.steps.len();
        if len <= 2 * n {
            return self.clone();
        }
        let stretch = len.div_ceil(n.max(1));
        let mut kept = BTreeSet::from([0, len - 1]);
        for start in (0..len).step_by(stretch) {
            kept.extend(self.peaks(start..len.min(start + stretch)));
        }
        Self {
            steps: kept.iter().map(|&at| self.steps[at]).collect(),
            values: kept.iter().map(|&at| self.values[at]).collect(),
            ..Self::named(&self.split, &self.metric)
        }
    }

    /// The places of the smallest and the largest value of a stretch, and of the first one that is not finite.
    fn peaks(&self, stretch: std::ops::Range<usize>) -> impl Iterator<Item = usize> {
        let finite = stretch.clone().filter_map(|at| Some((at, self.values[at]?)));
        let by_value = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
        let ends = [finite.clone().min_by(by_value), finite.max_by(by_value)];
        let gap = stretch.into_iter().find(|&at| self.values[at].is_none());
        ends.into_iter().flatten().map(|(at, _)| at).chain(gap)
    }
}

impl Clock {
    /// Adds the lines of training among `entries`; the rate of a line holds since the line before it.
    pub(crate) fn extend(&mut self, entries: &[Entry], examples_per_step: f64) {
        for entry in entries.iter().filter(|entry| entry.split == "train") {
            let value = |name: &str| entry.values.get(name).copied().flatten();
            let Some(rate) = value("examples_per_second").filter(|rate| *rate > 0.) else {
                continue;
            };
            let last = self.steps.last().copied().unwrap_or(0);
            let elapsed = entry.step.saturating_sub(last) as f64 * examples_per_step / rate;
            let tokens = value("tokens_per_second").map(|tokens| tokens * elapsed);
            let counts_tokens = self.tokens.len() == self.steps.len();
            let [seconds, all_tokens] = &mut self.sums;
            *seconds += elapsed;
            *all_tokens += tokens.unwrap_or(0.);
            self.steps.push(entry.step);
            self.seconds.push(rounded(*seconds));
            if tokens.is_some() && counts_tokens {
                self.tokens.push(all_tokens.round());
            } else {
                self.tokens.clear();
            }
        }
    }

    /// The clock at `steps` alone; a step at which nothing was logged takes the time of the line before it.
    pub(crate) fn at(&self, steps: &BTreeSet<u64>) -> Self {
        let mut clock = Self::default();
        for &step in steps {
            let n_before = self.steps.partition_point(|&other| other <= step);
            let Some(at) = n_before.checked_sub(1) else { continue };
            clock.steps.push(step);
            clock.seconds.push(self.seconds[at]);
            clock.tokens.extend(self.tokens.get(at));
        }
        clock
    }
}

/// To a thousandth of a second.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(n: usize) -> Series {
        let values = (0..n).map(|i| Some(1. / (1 + i % 7) as f64)).collect();
        Series { steps: (0..n as u64).collect(), values, ..Series::default() }
    }

    #[test]
    fn thinning_keeps_logged_points_their_peaks_and_what_is_not_finite() {
        let mut series = long(100_003);
        series.values[54_321] = Some(9.);
        series.values[77_777] = Some(-9.);
        series.values[12_345] = None;
        let thin = series.thinned(500);
        assert!(thin.steps.len() <= 1_003, "{}", thin.steps.len());
        assert!(thin.steps.is_sorted_by(|a, b| a < b));
        let of = |step: u64| thin.values[thin.steps.binary_search(&step).unwrap()];
        assert_eq!((of(54_321), of(77_777), of(12_345)), (Some(9.), Some(-9.), None));
        assert_eq!((thin.steps[0], thin.steps.last()), (0, Some(&100_002)));
        let is_logged =
            |(step, value): (&u64, &Option<f64>)| series.values[*step as usize] == *value;
        assert!(thin.steps.iter().zip(&thin.values).all(is_logged));
    }

    #[test]
    fn a_short_series_stays_whole() {
        assert_eq!(long(1_000).thinned(500), long(1_000));
        assert_eq!(long(0).thinned(500), long(0));
    }

    fn entries() -> Vec<Entry> {
        let lines = "\
            {\"step\":2,\"split\":\"train\",\"loss\":2.5,\"examples_per_second\":10.0,\"tokens_per_second\":70.0}\n\
            {\"step\":3,\"split\":\"skipped\",\"loss\":9.0}\n\
            {\"step\":4,\"split\":\"validation\",\"loss\":null}\n\
            {\"step\":2,\"split\":\"rolled_back\",\"loss\":9.0,\"from\":5.0,\"number\":1.0}\n\
            {\"step\":6,\"split\":\"train\",\"loss\":1.5,\"examples_per_second\":5.0,\"tokens_per_second\":35.0}";
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn lines_become_series_and_bad_steps_marks() {
        let series = series(&entries());
        let names: Vec<_> = series.iter().map(|s| (s.split.as_str(), s.metric.as_str())).collect();
        let train =
            ["examples_per_second", "loss", "tokens_per_second"].map(|name| ("train", name));
        assert_eq!(names, [train.as_slice(), &[("validation", "loss")]].concat());
        assert_eq!(series[1].last(), Some((6, 1.5)));
        assert_eq!(series[3].values, [None]);
        let marks = marks(&entries());
        assert_eq!((marks[0].kind.as_str(), marks[0].step, marks[0].from), ("skipped", 3, None));
        assert_eq!((marks[1].step, marks[1].from), (2, Some(5.)));
    }

    #[test]
    fn time_and_tokens_add_up_over_the_lines() {
        let mut clock = Clock::default();
        clock.extend(&entries()[..2], 5.);
        clock.extend(&entries()[2..], 5.);
        // 2 steps of 5 examples at 10 a second, and 4 at 5 a second.
        assert_eq!(
            (clock.seconds.as_slice(), clock.tokens.as_slice()),
            (&[1., 5.][..], &[70., 210.][..])
        );
        let at = clock.at(&BTreeSet::from([1, 4, 6]));
        assert_eq!((at.steps, at.seconds), (vec![4, 6], vec![1., 5.]));
    }
}
