//! Lines of a run's `metrics.jsonl`.

use std::collections::BTreeMap;

use tealight_train::observer::jsonl::Entry;

use super::lines::Series;

/// A number of a split over the steps; what is not finite is a gap.
pub(crate) fn series(entries: &[Entry], split: &str, number: &str, name: String) -> Series {
    let entries = entries.iter().filter(|entry| entry.split == split);
    let points = entries.filter_map(|entry| {
        Some((entry.step as f64, entry.values.get(number)?.unwrap_or(f64::NAN)))
    });
    Series { name, points: points.collect(), deviations: Vec::new() }
}

/// The mean and the standard deviation (of a sample, n − 1) at each step that all of `lines` have.
pub(crate) fn mean(lines: &[Series]) -> Series {
    let mut values: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (step, value) in lines.iter().flat_map(|series| &series.points) {
        values.entry(*step as u64).or_default().push(*value);
    }
    let name = lines.first().map_or_else(String::new, |series| series.name.clone());
    let mut mean = Series { name, ..Series::default() };
    for (step, values) in values.into_iter().filter(|(_, values)| values.len() == lines.len()) {
        let n = values.len() as f64;
        let center = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - center).powi(2)).sum();
        mean.points.push((step as f64, center));
        mean.deviations.push((squares / (n - 1.).max(1.)).sqrt());
    }
    mean
}

/// What a number of `metrics.jsonl` is called above a picture.
pub(crate) fn said(number: &str) -> &str {
    match number {
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
            deviations: Vec::new(),
        };
        let mean = mean(&[line(&[(2., 1.), (4., 5.), (6., 9.)]), line(&[(2., 4.), (4., 5.)])]);
        assert_eq!(mean.points, [(2., 2.5), (4., 5.)]);
        assert_eq!(mean.deviations, [4.5_f64.sqrt(), 0.]);
    }
}
