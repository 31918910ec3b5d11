//! Metrics of runs as the series of a chart.

use std::collections::BTreeMap;

use tealight_train::observer::jsonl::Entry;

use super::lines::Series;

/// A metric of a split over the steps; a non-finite value leaves a gap.
pub(crate) fn series(entries: &[Entry], split: &str, metric: &str, name: String) -> Series {
    let entries = entries.iter().filter(|entry| entry.split == split);
    let points = entries.filter_map(|entry| {
        Some((entry.step as f64, entry.values.get(metric)?.unwrap_or(f64::NAN)))
    });
    Series { name, points: points.collect(), ..Series::default() }
}

/// A mean and, of several values, their standard deviation (with n − 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeanDeviation {
    pub(crate) mean: f64,
    pub(crate) deviation: Option<f64>,
}

impl MeanDeviation {
    /// `None` for no values.
    pub(crate) fn from_values(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let deviation = (values.len() > 1).then(|| (squares / (n - 1.)).sqrt());
        (!values.is_empty()).then_some(Self { mean, deviation })
    }
}

/// Mean and standard deviation at each step that all of `lines` have.
pub(crate) fn mean(lines: &[Series]) -> Series {
    let mut values: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (step, value) in lines.iter().flat_map(|series| &series.points) {
        values.entry(*step as u64).or_default().push(*value);
    }
    let name = lines.first().map_or_else(String::new, |series| series.name.clone());
    let mut mean = Series { name, ..Series::default() };
    for (step, values) in values.into_iter().filter(|(_, values)| values.len() == lines.len()) {
        let Some(MeanDeviation { mean: center, deviation }) = MeanDeviation::from_values(&values)
        else {
            continue;
        };
        mean.points.push((step as f64, center));
        mean.deviations.push(deviation.unwrap_or(0.));
    }
    mean
}

/// The name of a metric in titles.
pub(crate) fn display_name(metric: &str) -> &str {
    match metric {
        "lr" => "learning rate",
        "grad_norm" => "gradient norm",
        "examples_per_second" => "examples per second",
        "tokens_per_second" => "tokens per second",
        "nll" => "NLL",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_takes_the_steps_that_all_runs_have() {
        let line = |points: &[(f64, f64)]| Series {
            name: "train".into(),
            points: points.to_vec(),
            ..Series::default()
        };
        let mean = mean(&[line(&[(2., 1.), (4., 5.), (6., 9.)]), line(&[(2., 4.), (4., 5.)])]);
        assert_eq!(mean.points, [(2., 2.5), (4., 5.)]);
        assert_eq!(mean.deviations, [4.5_f64.sqrt(), 0.]);
    }
}
