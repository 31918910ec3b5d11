//! What the model made of the fixed examples, evaluation by evaluation, the last one first.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;
use tealight_train::observer::samples::SampleLine;
use tealight_train::task::sample::{Candidate, Sample};
use tealight_train::task::table::thousands;

use super::read::RunData;
use super::read::plot::Address;

/// Evaluations before the last one that are shown of each example.
const MAX_EARLIER: usize = 12;
/// Values of a report that are written by the model.
pub(super) const IN_REPORT: [&str; 2] = ["sample", "sample_prompt"];

/// When an answer is right, if the sample does not say so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The likeliest candidate is the right one, or the text is.
    Same,
    /// Of a number, which is never exactly right, nothing is said; of several labels, only the sample can tell.
    Unknown,
}

impl Rule {
    fn of(run: &RunData) -> Self {
        match run.config.settings().get("task.objective").and_then(Value::as_str) {
            Some("labels" | "regression") => Self::Unknown,
            _ => Self::Same,
        }
    }
}

/// The section of a run; `None` if it has neither logged samples nor written a text.
pub(super) fn of_one(run: &RunData) -> Option<Markup> {
    let mut examples: BTreeMap<usize, Vec<&SampleLine>> = BTreeMap::new();
    for line in &run.samples {
        examples.entry(line.example).or_default().push(line);
    }
    let of_report = |key: &str| run.report.as_ref().and_then(|report| report[key].as_str());
    let written = of_report("sample").filter(|text| !text.trim().is_empty());
    let prompt = of_report("sample_prompt");
    let rule = Rule::of(run);
    let shown = !examples.is_empty() || written.is_some();
    shown.then(|| {
        html! {
            @if run.report.as_ref().is_some_and(|report| report.get("thresholds").is_some()) {
                p.hint { "✓ and ✗ are by a probability of one half: the thresholds are chosen after training." }
            }
            @for (index, lines) in &examples { (example(lines, run.pictures.get(index), rule)) }
            @if let Some(text) = written {
                h3 { "A text that the trained model wrote" @if let Some(prompt) = prompt { " after " q { (prompt) } } }
                pre.text { (text) }
            }
        }
    })
}

/// An example with its answers over the steps.
fn example(lines: &[&SampleLine], picture: Option<&Address>, rule: Rule) -> Markup {
    let Some((last, earlier)) = lines.split_last() else { return html! {} };
    let Sample { input, truth, .. } = &last.sample;
    html! {
        div.example {
            @if let Some(address) = picture { img.sample src=(address) alt=(input); }
            p.input { (input) }
            @if !truth.is_empty() { p.truth { "right: " @for (at, one) in truth.iter().enumerate() {
                @if at > 0 { ", " }
                q { (one.trim()) }
            } } }
            (answers(&[last], rule))
            @if !earlier.is_empty() {
                details { summary { "At earlier steps" } (answers(&spread(earlier), rule)) }
            }
        }
    }
}

/// Answers to an example, the last one first.
fn answers(lines: &[&SampleLine], rule: Rule) -> Markup {
    html! {
        div.scroll { table.samples {
            thead { tr { th scope="col" { "step" } th scope="col" { "the model" } } }
            tbody { @for line in lines.iter().rev() { tr {
                th scope="row" { (thousands(line.step)) }
                td { (answer(&line.sample, rule)) }
            } } }
        } }
    }
}

/// Up to [`MAX_EARLIER`] of the lines: the first, the last, and others evenly between.
fn spread<'a>(lines: &[&'a SampleLine]) -> Vec<&'a SampleLine> {
    let n = lines.len();
    if n <= MAX_EARLIER {
        return lines.to_vec();
    }
    (0..MAX_EARLIER).map(|i| lines[i * (n - 1) / (MAX_EARLIER - 1)]).collect()
}

fn answer(sample: &Sample, rule: Rule) -> Markup {
    let Sample { truth, text, candidates, .. } = sample;
    html! {
        @if let Some(text) = text {
            p.answer { (verdict(is_text_right(text, truth, rule))) span.written { (text) } }
        }
        @for (at, candidates) in candidates.iter().enumerate() {
            div.answer {
                @let by_rule = || truth.get(at).and_then(|truth| are_right(candidates, truth, rule));
                (verdict(sample.is_right.or_else(by_rule)))
                ol.candidates { @for one in candidates { (candidate(one, truth.get(at))) } }
            }
        }
    }
}

/// Whether the model was right: ✓ or ✗.
fn verdict(is_right: Option<bool>) -> Markup {
    html! {
        @match is_right {
            Some(true) => span.verdict.right title="right" role="img" aria-label="right" { "✓" },
            Some(false) => span.verdict.wrong title="wrong" role="img" aria-label="wrong" { "✗" },
            None => {},
        }
    }
}

fn is_text_right(text: &str, truth: &[String], rule: Rule) -> Option<bool> {
    let truth = truth.first().filter(|_| rule != Rule::Unknown)?;
    Some(text.trim() == truth.trim())
}

/// `None` if the truth is not known.
fn are_right(candidates: &[Candidate], truth: &str, rule: Rule) -> Option<bool> {
    let Candidate { text: likeliest, probability } = candidates.first()?;
    match rule {
        Rule::Same => probability.map(|_| likeliest.trim() == truth.trim()),
        Rule::Unknown => None,
    }
}

/// A candidate with a bar as long as its probability; a right one is bold.
fn candidate(Candidate { text, probability }: &Candidate, truth: Option<&String>) -> Markup {
    let share = probability.unwrap_or(0.);
    let is_right = truth.is_some_and(|truth| truth.trim() == text.trim());
    html! {
        li.right[is_right] {
            meter min="0" max="1" value=(share) aria-hidden="true" {}
            span.percent { (format!("{:.1} %", 100. * share)) }
            " " span.token { (text) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(probabilities: [f64; 3]) -> Vec<Candidate> {
        let named = ["a", "b", "c"].into_iter().zip(probabilities);
        let candidate =
            |(text, p): (&str, f64)| Candidate { text: text.into(), probability: Some(p) };
        named.map(candidate).collect()
    }

    #[test]
    fn the_likeliest_candidate_is_right_or_wrong() {
        let candidates = candidates([0.4, 0.35, 0.25]);
        let is_right = |truth: &str| are_right(&candidates, truth, Rule::Same);
        assert_eq!([" a", "b"].map(is_right), [Some(true), Some(false)]);
        assert_eq!(are_right(&candidates, "a", Rule::Unknown), None);
        let text = |truth: &str| is_text_right("3 1", &[truth.to_owned()], Rule::Same);
        assert_eq!(["3 1 ", "1 3"].map(text), [Some(true), Some(false)]);
        assert_eq!(is_text_right("to be", &[], Rule::Same), None);
    }

    /// Labels may have commas in their names, and there may be more than are shown.
    #[test]
    fn a_sample_that_says_whether_it_is_right_decides() {
        let shown = |is_right| {
            let (truth, candidates) = (vec!["a, b".to_owned()], vec![candidates([0.9, 0.7, 0.2])]);
            let sample = Sample { truth, candidates, is_right, ..Sample::default() };
            answer(&sample, Rule::Unknown).into_string()
        };
        assert!(shown(Some(true)).contains('✓') && shown(Some(false)).contains('✗'));
        assert!(!shown(None).contains(['✓', '✗']));
    }
}
