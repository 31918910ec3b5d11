//! What the model made of the fixed examples, evaluation by evaluation.

use std::collections::BTreeMap;

use maud::{Markup, html};
use tealight_train::observer::samples::SampleLine;
use tealight_train::task::sample::{Candidate, Sample};
use tealight_train::task::table::thousands;

use super::read::RunData;

/// Evaluations that are shown of each example.
const MAX_STEPS: usize = 12;

/// The section of a run; `None` if it has logged no samples.
pub(super) fn of_one(run: &RunData) -> Option<Markup> {
    let mut examples: BTreeMap<usize, Vec<&SampleLine>> = BTreeMap::new();
    for line in &run.samples {
        examples.entry(line.example).or_default().push(line);
    }
    (!examples.is_empty()).then(|| html! { @for lines in examples.values() { (example(lines)) } })
}

/// An example with its answers over the steps.
fn example(lines: &[&SampleLine]) -> Markup {
    let Some(Sample { input, truth, .. }) = lines.first().map(|line| &line.sample) else {
        return html! {};
    };
    html! {
        div.example {
            p.input { (input) }
            @if !truth.is_empty() { p.truth { "right: " @for (at, one) in truth.iter().enumerate() {
                @if at > 0 { ", " }
                q { (one.trim()) }
            } } }
            div.scroll { table.samples {
                thead { tr { th scope="col" { "step" } th scope="col" { "the model" } } }
                tbody { @for line in spread(lines) { tr {
                    th scope="row" { (thousands(line.step)) }
                    td { (answer(&line.sample)) }
                } } }
            } }
        }
    }
}

/// Up to [`MAX_STEPS`] of the lines: the first, the last, and others evenly between.
fn spread<'a>(lines: &[&'a SampleLine]) -> Vec<&'a SampleLine> {
    let n = lines.len();
    if n <= MAX_STEPS {
        return lines.to_vec();
    }
    (0..MAX_STEPS).map(|i| lines[i * (n - 1) / (MAX_STEPS - 1)]).collect()
}

fn answer(sample: &Sample) -> Markup {
    html! {
        @if let Some(text) = &sample.text { span.written { (text) } }
        @for (at, candidates) in sample.candidates.iter().enumerate() {
            ol.candidates { @for one in candidates { (candidate(one, sample.truth.get(at))) } }
        }
    }
}

/// A candidate with a bar as long as its probability; a right one is ticked.
fn candidate(Candidate { text, probability }: &Candidate, truth: Option<&String>) -> Markup {
    let share = probability.unwrap_or(0.);
    let is_right = truth.is_some_and(|truth| truth.trim() == text.trim());
    html! {
        li.right[is_right] {
            meter min="0" max="1" value=(share) aria-hidden="true" {}
            span.percent { (format!("{:.1} %", 100. * share)) }
            " " span.token { (text) }
            @if is_right { " ✓" }
        }
    }
}
