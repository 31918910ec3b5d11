//! What a user should know about rows of texts.

use std::collections::BTreeMap;

use super::rows::Row;
use crate::task::table::thousands;

/// Remarks on rows, a line each.
pub(super) fn remarks(rows: &[&Row]) -> Vec<String> {
    [repeated(rows), own_positive(rows), shared(rows), labels(rows)].into_iter().flatten().collect()
}

/// How many rows are copies of another one.
fn repeated(rows: &[&Row]) -> Option<String> {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for Row { anchor, positive, negatives, .. } in rows {
        *counts.entry((anchor, positive, negatives)).or_default() += 1;
    }
    let n: usize = counts.values().map(|n| n - 1).sum();
    (n > 0).then(|| format!("{} rows are copies of others", thousands(n as u64)))
}

/// How many rows have one text on both sides, if not all.
fn own_positive(rows: &[&Row]) -> Option<String> {
    let n = rows.iter().filter(|row| row.anchor.trim() == row.positive.trim()).count();
    (n > 0 && n < rows.len())
        .then(|| format!("{} rows have the same text on both sides", thousands(n as u64)))
}

/// How many rows the most frequent positive is in.
fn shared(rows: &[&Row]) -> Option<String> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        *counts.entry(&row.positive).or_default() += 1;
    }
    let n_shared: u64 = counts.values().filter(|n| **n > 1).sum();
    let most = counts.values().max().copied().unwrap_or(0);
    let is_of_pairs = rows.iter().all(|row| row.label.is_none());
    (most > 1 && is_of_pairs).then(|| {
        format!(
            "{} rows share their positive with others, up to {} rows one",
            thousands(n_shared),
            thousands(most)
        )
    })
}

/// The range of the labels.
fn labels(rows: &[&Row]) -> Option<String> {
    let labels: Vec<f64> = rows.iter().filter_map(|row| row.label).collect();
    let least = labels.iter().copied().reduce(f64::min)?;
    let most = labels.iter().copied().reduce(f64::max)?;
    let mean = labels.iter().sum::<f64>() / labels.len() as f64;
    Some(format!("labels: {least} to {most}, mean {mean:.4}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::text::corpus::Origin;

    #[test]
    fn copies_and_shared_texts_are_counted() {
        let row = |anchor: &str, positive: &str, label: Option<f64>| Row {
            anchor: anchor.to_owned(),
            positive: positive.to_owned(),
            negatives: Vec::new(),
            label,
            group: None,
            origin: Origin { path: Path::new("a").into(), line: 1 },
        };
        let pairs = [("a", "b"), ("a", "b"), ("c", "c"), ("d", "b")];
        let rows = pairs.map(|(anchor, positive)| row(anchor, positive, None));
        assert_eq!(
            remarks(&rows.iter().collect::<Vec<_>>()),
            [
                "1 rows are copies of others",
                "1 rows have the same text on both sides",
                "3 rows share their positive with others, up to 3 rows one",
            ]
        );
        let scored = [0., 4.].map(|label| row("a", &label.to_string(), Some(label)));
        assert_eq!(remarks(&scored.iter().collect::<Vec<_>>()), ["labels: 0 to 4, mean 2.0000"]);
    }
}
