//! The measurements as tables, with a row per kind and a column per length; as charts and as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tealight_train::task::table::Table;

use super::measurement::{Cell, Measurement};
use crate::args::bench::{BenchAttention, Layer, Pass};
use crate::charts::axis::Spacing;
use crate::charts::lines::{LineChart, Series, XAxis};
use crate::charts::shapes::Drawing;
use crate::runs::number_format::NumberFormat;
use crate::system::subprocess::first_line;
use crate::terminal::numbers::{MEBIBYTE, counted};

/// The cell of a missing value.
const MISSING: &str = "–";

/// A quantity of a measurement, and its format.
struct Quantity {
    name: &'static str,
    value: fn(&Measurement) -> Option<f64>,
    digits: fn(f64) -> usize,
}

const TIME: Quantity = Quantity {
    name: "time (ms)",
    value: |measured| Some(measured.seconds * 1e3),
    digits: |milliseconds| if milliseconds < 10. { 2 } else { 1 },
};
const MEMORY: Quantity = Quantity {
    name: "memory (MiB)",
    value: |measured| Some(measured.peak_memory_bytes? as f64 / MEBIBYTE),
    digits: |mebibytes| usize::from(mebibytes < 100.),
};

const STATE: Quantity = Quantity {
    name: "state (KiB)",
    value: |measured| Some(measured.state_bytes? as f64 / 1024.),
    digits: |kibibytes| usize::from(kibibytes < 100.),
};

impl Quantity {
    fn get(&self, cell: &Cell) -> Option<f64> {
        (self.value)(cell.measured.as_ref().ok()?)
    }

    fn format(&self, value: Option<f64>) -> String {
        value.map_or(MISSING.to_owned(), |value| format!("{value:.*}", (self.digits)(value)))
    }
}

/// The log line of a finished measurement.
pub(super) fn line(cell: &Cell) -> String {
    let place = format!("{} at {}, {}", cell.kind, cell.length, cell.pass.name());
    if let Err(reason) = &cell.measured {
        return format!("{place}: {}", first_line(reason));
    }
    let format = |quantity: Quantity| quantity.format(quantity.get(cell));
    let size = match cell.pass {
        Pass::Decoding => format!("{} KiB", format(STATE)),
        Pass::Forward | Pass::ForwardAndBackward => format!("{} MiB", format(MEMORY)),
    };
    format!("{place}: {} ms, {size}", format(TIME))
}

/// A table per pass and quantity, and the measurements that failed.
pub(super) fn markdown(args: &BenchAttention, threads: usize, cells: &[Cell]) -> String {
    let mut text = vec![setting(args, threads)];
    for pass in Pass::ALL {
        let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.pass == pass).collect();
        for quantity in [TIME, MEMORY, STATE] {
            if cells.iter().any(|cell| quantity.get(cell).is_some()) {
                let table = table(args, &cells, &quantity);
                text.push(format!("{}, {}:\n\n{table}", capitalized(pass.name()), quantity.name));
                if quantity.name == TIME.name {
                    text.extend(crossings(&args.lengths, &cells));
                }
            }
        }
    }
    let failures = failures(cells);
    if !failures.is_empty() {
        text.push(format!("Not measured:\n\n{failures}"));
    }
    text.join("\n")
}

/// What was measured, above the tables.
fn setting(args: &BenchAttention, threads: usize) -> String {
    let Layer { d_model, n_heads, causal, device, precision, .. } = &args.layer;
    let format = NumberFormat::for_device(precision.of_products(), *device).used().name();
    let causal = if *causal { ", causal" } else { "" };
    format!(
        "One layer of d_model {d_model} with {n_heads} heads{causal}, one sequence, {format} on {device} ({}). \
         Time: median.\nMemory: peak memory of a process that computes once, minus its memory before the \
         layer was built.\n",
        counted(threads, "thread")
    )
}

/// `forward` → `Forward`
fn capitalized(text: &str) -> String {
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    format!("{}{rest}", first.to_uppercase())
}

fn table(args: &BenchAttention, cells: &[&Cell], quantity: &Quantity) -> String {
    let lengths = args.lengths.iter().map(ToString::to_string);
    let heading = ["kind".to_owned()].into_iter().chain(lengths).chain(["doubling".to_owned()]);
    let mut table = Table::new(heading);
    // Consecutive cells are the lengths of one kind.
    for row in cells.chunks(args.lengths.len()) {
        let values: Vec<Option<f64>> = row.iter().map(|cell| quantity.get(cell)).collect();
        let doubling = last_doubling(&args.lengths, &values);
        let doubling = doubling.map_or(MISSING.to_owned(), |factor| format!("× {factor:.2}"));
        let cells = values.iter().map(|value| quantity.format(*value)).chain([doubling]);
        table.row([row[0].kind.clone()].into_iter().chain(cells));
    }
    table.markdown()
}

/// The length from which each kind is faster than softmax.
fn crossings(lengths: &[usize], cells: &[&Cell]) -> Option<String> {
    let times = |row: &[&Cell]| row.iter().map(|cell| TIME.get(cell)).collect::<Vec<_>>();
    let rows = || cells.chunks(lengths.len());
    let softmax = times(rows().find(|row| row[0].kind == "softmax")?);
    let others = rows().filter(|row| row[0].kind != "softmax");
    let from: Vec<String> = others
        .map(|row| format!("{} {}", row[0].kind, crossing(lengths, &softmax, &times(row))))
        .collect();
    (!from.is_empty()).then(|| format!("Faster than softmax from length: {}.\n", from.join(", ")))
}

/// The length at which `other` falls below `softmax`, interpolated between lengths with both as power
/// laws.
fn crossing(lengths: &[usize], softmax: &[Option<f64>], other: &[Option<f64>]) -> String {
    let known = lengths.iter().zip(softmax.iter().zip(other));
    let known = known.filter_map(|(&length, (a, b))| Some((length as f64, ((*b)? / (*a)?).ln())));
    let mut known: Vec<(f64, f64)> = known.collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    match known.iter().position(|&(_, excess)| excess < 0.) {
        None => known.last().map_or(MISSING.to_owned(), |(length, _)| format!("> {length}")),
        Some(0) => format!("≤ {}", known[0].0),
        Some(i) => {
            let ((before, above), (after, below)) = (known[i - 1], known[i]);
            let length = before * (after / before).powf(above / (above - below));
            format!("{length:.0}")
        }
    }
}

/// One chart per pass: time over length, with a line per kind.
pub(super) fn drawings(args: &BenchAttention, cells: &[Cell]) -> Vec<(String, Drawing)> {
    let chart = |pass: Pass| {
        let of_pass: Vec<&Cell> = cells.iter().filter(|cell| cell.pass == pass).collect();
        let series = of_pass.chunks(args.lengths.len()).map(|row| Series {
            name: row[0].kind.clone(),
            points: row
                .iter()
                .filter_map(|cell| Some((cell.length as f64, TIME.get(cell)?)))
                .collect(),
            ..Series::default()
        });
        let title = format!("{}, ms", capitalized(pass.name()));
        let series = series.collect::<Vec<_>>();
        let chart =
            LineChart { title, x_axis: XAxis::Lengths, spacing: Spacing::Logarithmic, series };
        (!of_pass.is_empty()).then(|| (pass.name().replace(' ', "_"), chart.draw()))
    };
    Pass::ALL.into_iter().filter_map(chart).collect()
}

/// The growth of a value over the last doubling of the length.
fn last_doubling(lengths: &[usize], values: &[Option<f64>]) -> Option<f64> {
    let known: BTreeMap<usize, f64> = lengths
        .iter()
        .zip(values)
        .filter_map(|(&length, value)| Some((length, (*value)?)))
        .collect();
    let doubled = known.iter().rev().filter(|(length, _)| length.is_multiple_of(2));
    let mut factors = doubled.filter_map(|(length, value)| Some(value / known.get(&(length / 2))?));
    factors.next()
}

/// One line per kind and error message, with the lengths.
fn failures(cells: &[Cell]) -> String {
    let mut failures: Vec<(String, &str, Vec<String>)> = Vec::new();
    for Cell { kind, length, pass, measured } in cells {
        let Err(reason) = measured else { continue };
        let (place, reason) = (format!("{kind}, {}", pass.name()), first_line(reason));
        match failures.iter_mut().find(|other| (&other.0, other.1) == (&place, reason)) {
            Some((.., lengths)) => lengths.push(length.to_string()),
            None => failures.push((place, reason, vec![length.to_string()])),
        }
    }
    let line = |(place, reason, lengths): &(String, &str, Vec<String>)| {
        format!("- {place}, at {}: {reason}\n", lengths.join(", "))
    };
    failures.iter().map(line).collect()
}

/// All measurements.
pub(super) fn json(args: &BenchAttention, threads: usize, cells: &[Cell]) -> Value {
    let Layer { d_model, n_heads, causal, device, precision, .. } = &args.layer;
    let measurements = cells.iter().map(|Cell { kind, length, pass, measured }| {
        json!({
            "kind": kind,
            "length": length,
            "pass": pass.name(),
            "measured": measured.as_ref().ok(),
            "reason": measured.as_ref().err(),
        })
    });
    json!({
        "d_model": d_model,
        "n_heads": n_heads,
        "causal": causal,
        "batch": 1,
        "dtype": NumberFormat::for_device(precision.of_products(), *device).used().name(),
        "device": device.to_string(),
        "threads": threads,
        "measurements": measurements.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_is_interpolated_between_lengths() {
        let known = |values: &[f64]| values.iter().map(|&v| (v > 0.).then_some(v)).collect();
        let of = |softmax: &[f64], other: &[f64]| {
            let (softmax, other): (Vec<_>, Vec<_>) = (known(softmax), known(other));
            crossing(&[512, 1024, 2048], &softmax, &other)
        };
        // T² and 768 · T cross at T = 768.
        assert_eq!(of(&[1., 4., 16.], &[1.5, 3., 6.]), "768");
        assert_eq!(of(&[1., 4., 16.], &[0.5, 1., 2.]), "≤ 512");
        assert_eq!(of(&[1., 4., 16.], &[20., 20., 20.]), "> 2048");
        assert_eq!(of(&[1., 0., 16.], &[16., 1., 1.]), "1024");
        assert_eq!(of(&[0., 0., 0.], &[1., 1., 1.]), "–");
    }

    #[test]
    fn growth_is_that_of_the_longest_length_whose_half_was_measured() {
        let factor = |lengths: &[usize], values: &[f64]| {
            let known = values.iter().map(|&value| (value > 0.).then_some(value));
            last_doubling(lengths, &known.collect::<Vec<_>>())
        };
        assert_eq!(factor(&[2, 4, 8], &[1., 3., 12.]), Some(4.));
        assert_eq!(factor(&[8, 2, 4], &[12., 1., 3.]), Some(4.));
        assert_eq!(factor(&[2, 4, 8], &[1., 3., 0.]), Some(3.));
        assert_eq!(factor(&[2, 4, 8], &[1., 0., 9.]), None);
        assert_eq!(factor(&[2, 5, 7], &[1., 2., 3.]), None);
    }
}
