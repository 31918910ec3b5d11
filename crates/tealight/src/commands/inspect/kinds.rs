//! `tealight inspect --list`: all kinds that a configuration can name.

use anyhow::Result;
use serde_json::{Map, Value, json};
use tealight_model::attention::support::Support;
use tealight_model::describe::Shape;
use tealight_train::config::reference::{self, Entry, Item};
use tealight_train::task::table::Table;

use crate::terminal::output::{print, print_indented_json};

/// Prints all kinds, as text or as one JSON object.
pub(super) fn print_all(json: bool) -> Result<()> {
    if json { print_indented_json(&as_json()?) } else { print(&all_kinds()?) }
}

/// Each setting that chooses a kind: its table, its key and, where only some kinds of the table have it, these kinds.
const HEADINGS: &[&str] = &[
    "[task] kind",
    "[task.source] kind (weather)",
    "[task.source] kind (seq2seq)",
    "[task.source] level (seq2seq, file)",
    "[task.source] positions (one_four_eight)",
    "[task.regime] kind",
    "[task] read_out",
    "[task] read_out (classify, images)",
    "[task] objective (classify)",
    "[task.data] split (classify)",
    "[task.loss] kind",
    "[task.class_weights] kind",
    "[task] calibration",
    "[task.corpus] kind",
    "[task.corpus] documents (files)",
    "[task.corpus] language (diary)",
    "[task.tokenizer] kind",
    "[task] sequences",
    "[task.masking] unit",
    "[task] input",
    "[task.data] kind (images)",
    "[task.data] classes (cifar)",
    "[task] colour (images)",
    "[task] fit (images)",
    "[task] filter (images)",
    "[model.patches] kind",
    "[model.attention] kind",
    "[model.attention] score",
    "[model.attention] rule (thresholded)",
    "[model.attention] feature_map (linear)",
    "[model.attention] qk_norm_over",
    "[model.attention] sink",
    "[model.attention] output_gate (softmax, local)",
    "[model.attention] output_gate (gated_deltanet)",
    "[model.position] kind",
    "[model.position] layout (sinusoidal)",
    "[model.position] layout (rotary)",
    "[model.position.scaling] kind (rotary)",
    "[model.norm] kind",
    "[model] norm_placement",
    "[model.feed_forward] kind",
    "[model.feed_forward] activation",
    "[model.classifier] kind",
    "[model.classifier] activation (dense)",
    "[model.init] kind",
    "[optimizer] kind",
    "[optimizer] scale (muon)",
    "[schedule] kind",
    "[training.early_stopping] direction",
    "[checkpoint] select",
    "[checkpoint] direction",
];

fn all_kinds() -> Result<String> {
    let kinds: String = HEADINGS.iter().map(|heading| section(heading)).collect();
    Ok(format!("{kinds}{}", supports()?))
}

/// `{"kinds": {KEY: {KIND: summary}}, "attention": [...]}`
fn as_json() -> Result<Value> {
    let kinds = HEADINGS.iter().map(|heading| {
        let kinds = kinds(heading).into_iter().map(|(name, summary)| (name, json!(summary)));
        ((*heading).to_owned(), Value::Object(kinds.collect()))
    });
    let attention = Support::of_all()?.into_iter().map(|support| {
        json!({
            "kind": support.kind,
            "bidirectional": support.bidirectional,
            "causal": support.causal,
            "cross": support.cross,
            "rotary": support.rotary,
            "score_bias": support.score_bias,
            "packed": support.packed,
            "time_exponent": support.time,
            "memory_exponent": support.memory,
        })
    });
    Ok(json!({ "kinds": kinds.collect::<Map<_, _>>(), "attention": attention.collect::<Vec<_>>() }))
}

/// What each kind of attention supports with its default settings.
fn supports() -> Result<String> {
    fn mark(can: bool) -> String {
        if can { "yes" } else { "-" }.to_owned()
    }
    fn power(n: u32) -> String {
        if n == 1 { "T".to_owned() } else { format!("T^{n}") }
    }
    type Column = (&'static str, fn(&Support) -> String);
    let columns: [Column; 10] = [
        ("[model.attention] kind", |support| support.kind.to_owned()),
        ("whole", |support| mark(support.bidirectional)),
        ("causal", |support| mark(support.causal)),
        ("cross", |support| mark(support.cross)),
        ("padding", |support| mark(support.padding)),
        ("rotary", |support| mark(support.rotary)),
        ("bias", |support| mark(support.score_bias)),
        ("packed", |support| mark(support.packed)),
        ("time", |support| power(support.time)),
        ("memory", |support| power(support.memory)),
    ];
    let mut table = Table::new(columns.map(|(heading, _)| heading));
    for support in Support::of_all()? {
        table.row(columns.map(|(_, cell)| cell(&support)));
    }
    Ok(format!(
        "\nwhole: bidirectional self-attention · cross: cross-attention · padding: a padded sequence gives what it gives alone\n\
         rotary, bias: positions that rotate queries and keys, or that add to the scores\n\
         packed: no attention across the documents of a packed sequence · T: sequence length\n\n{table}"
    ))
}

/// A heading, and one line per kind.
fn section(heading: &str) -> String {
    let kinds = kinds(heading);
    let width = kinds.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = kinds.iter().map(|(name, summary)| format!("    {name:<width$}  {summary}\n"));
    format!("{heading}\n{}", lines.collect::<String>())
}

/// The kinds of the setting at a heading, each with its summary.
fn kinds(heading: &str) -> Vec<(String, String)> {
    let (key, only_of) = heading.split_once(" (").unwrap_or((heading, ""));
    let key = key.replace('[', "").replace("] ", ".");
    let only_of: Vec<&str> = only_of.trim_end_matches(')').split(", ").collect();
    let fits = |entry: &Entry| {
        only_of == [""] || entry.kinds.iter().any(|(_, kind)| only_of.contains(kind))
    };
    let entry = reference::find(&key).into_iter().find(fits);
    let Some(Item::Setting(field)) = entry.map(|entry| entry.item) else { return Vec::new() };
    match field.shape {
        Shape::Words(words) => {
            words.iter().map(|word| (word.name.to_owned(), word.summary.to_owned())).collect()
        }
        Shape::Choice(choice) => {
            choice.kinds.iter().map(|kind| (kind.name.to_owned(), kind.summary())).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_heading_is_of_a_setting_that_chooses_a_kind() {
        for heading in HEADINGS {
            assert!(kinds(heading).len() > 1, "{heading}");
        }
    }
}
