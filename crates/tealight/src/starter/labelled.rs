//! Classifiers of a user's texts.

use std::path::Path;

use anyhow::Result;
use tealight_train::data::survey::{Labelled, Target, labelled};

use super::base::Base;
use super::blocks::{MODERN_BERT, exported_as};
use super::ending::{BY_HEART, Ending, TO_ZERO};
use super::{about, beginning, quoted, tenth};

const BATCH_SIZE: u64 = 32;
/// How a new model reads a text.
const READ_OUT: &str =
    "read_out = \"mean\"               # or \"cls\": the first token, added by the tokenizer\n";

/// The configuration of a classifier of the texts in `data`, a file which it names as `path`.
pub(super) fn text(data: &Path, path: &str) -> Result<String> {
    let found = labelled(data)?;
    let n = found.n;
    let (d_model, n_layers, n_heads, epochs) = match n {
        0..2_000 => (32, 2, 4, 30),
        2_000..20_000 => (64, 2, 4, 12),
        _ => (128, 4, 4, 5),
    };
    let steps = (epochs * n as u64 / BATCH_SIZE).max(100);
    let ending = Ending {
        adamw: "lr = 2e-3\nweight_decay = 0.1".to_owned(),
        training: "",
        warmup_steps: tenth(steps),
        final_lr_ratio: TO_ZERO,
        steps,
        passes: format!("{epochs} times through the texts"),
        batch_size: BATCH_SIZE,
        selects: BY_HEART,
    };
    let task = task(&found, path, seq_len(&found), READ_OUT);
    let tables = [
        beginning(&title(&found)),
        task,
        tokenizer(&found),
        model(d_model, n_layers, n_heads),
        ending.text(),
    ];
    Ok(tables.concat())
}

/// The configuration of a classifier of the texts in `data` that starts from `base`.
pub(super) fn from_base(data: &Path, path: &str, base: &Base) -> Result<String> {
    let found = labelled(data)?;
    let epochs = if found.n < 2_000 { 6 } else { 3 };
    let task = task(&found, path, base.seq_len(seq_len(&found)), "");
    let ending = base.ending(found.n as f64, epochs, "texts").text();
    Ok([base.beginning(&title(&found)), task, ending].concat())
}

/// Tokens of a text: pieces of words are somewhat more than words.
fn seq_len(found: &Labelled) -> usize {
    (2 * found.most_words + 4).next_power_of_two().clamp(16, 256)
}

/// What the model tells.
fn title(found: &Labelled) -> String {
    let learnt = match found.target {
        Target::Classes(n) => format!("one of {n} classes"),
        Target::Labels => "any number of labels".to_owned(),
        Target::Number => "a number".to_owned(),
    };
    let rows = about(found.n as f64);
    format!("A model that tells of a text {learnt}, from {rows} texts.")
}

/// The tables of the task: the texts and their labels. `more` are further lines of `[task]`.
fn task(found: &Labelled, path: &str, seq_len: usize, more: &str) -> String {
    let Labelled { n, most_words, .. } = *found;
    let objective = match found.target {
        Target::Classes(_) => "classes",
        Target::Labels => "labels",
        Target::Number => "regression",
    };
    let (label, column) = (quoted(&found.label), quoted(&found.text));
    let pair = found
        .text_pair
        .as_ref()
        .map_or(String::new(), |pair| format!("text_pair = {}\n", quoted(pair)));
    let validation = if n < 2_000 { 0.2 } else { 0.1 };
    format!(
        r#"
[task]
kind = "classify"
objective = "{objective}"           # what the column of labels holds
seq_len = {seq_len}                    # tokens; the longest text has {most_words} words. Longer texts are truncated
{more}
[task.data]
path = {path}
text = {column}
{pair}label = {label}
validation = {validation}                # held-out share; or validation_path = "…"
"#
    )
}

/// The table of the tokenizer.
fn tokenizer(found: &Labelled) -> String {
    let vocab_size = ((found.bytes / 40.) as usize).clamp(300, 16_000);
    format!(
        r#"
[task.tokenizer]                # trained on these texts
kind = "wordpiece"
vocab_size = {vocab_size}               # at most; grows with the texts
lowercase = true
"#
    )
}

/// The tables of the model.
fn model(d_model: usize, n_layers: usize, n_heads: usize) -> String {
    let exported = exported_as("ModernBertForSequenceClassification");
    format!(
        r#"
# Few texts teach no large model: the width follows their number. `tealight init classify --from MODEL` writes a file
# that starts from a trained one.
{exported}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
dropout = 0.1
bias = false
{MODERN_BERT}
[model.classifier]              # the head of ModernBERT
kind = "dense"
activation = "gelu"
bias = false
norm = true
"#
    )
}
