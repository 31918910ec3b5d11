//! Encoders that embed a user's texts.

use anyhow::Result;
use tealight_train::data::survey::{Alike, Compared, compared};

use super::base::Base;
use super::blocks::{MODERN_BERT, exported_as, tokenizer};
use super::ending::Ending;
use super::machine::{Work, n_tokens};
use super::{UserData, about, beginning, quoted, tenth};

/// Rows that are compared with each other: few of few, among which two would often have a text in common.
fn batch_size(found: &Compared) -> u64 {
    match found.n {
        0..500 => 16,
        500..2_000 => 32,
        _ => 64,
    }
}

/// The configuration of an encoder for the rows in `data`.
pub(super) fn text(data: &UserData<'_>) -> Result<String> {
    let found = compared(data.file, &data.columns)?;
    let (d_model, n_layers, epochs) = match found.n {
        0..5_000 => (64, 2, 20),
        5_000..50_000 => (128, 2, 10),
        _ => (128, 4, 4),
    };
    let ending = Ending {
        training: EVALUATE_FIRST,
        ..Ending::of_texts(epochs, found.n, "rows", batch_size(&found), stopping(&found))
    };
    let n_tokens = n_tokens(found.n_bytes as f64, found.n, 2 * seq_len(&found));
    let ending = ending.timed(Work { d_model, n_layers, n_tokens });
    let tables = [
        beginning(&title(&found)),
        task(&found, data, Some(seq_len(&found)), true),
        tokenizer(found.n_bytes),
        model(d_model, n_layers),
        ending.text(),
    ];
    Ok(tables.concat())
}

/// The configuration of an encoder for the rows in `data` that starts from `base`.
pub(super) fn from_base(data: &UserData<'_>, base: &Base) -> Result<String> {
    base.check_encoder("embed")?;
    let found = compared(data.file, &data.columns)?;
    let epochs = if found.n < 5_000 { 3 } else { 1 };
    let n_tokens = n_tokens(found.n_bytes as f64, found.n, 2 * base.seq_len(seq_len(&found)));
    let ending = base.ending(found.n as f64, epochs, "rows", n_tokens);
    let batch_size = batch_size(&found);
    let steps = (ending.steps * ending.batch_size / batch_size).max(50);
    let ending = Ending {
        batch_size,
        steps,
        warmup_steps: tenth(steps),
        training: EVALUATE_FIRST,
        stopping: stopping(&found),
        ..ending
    };
    let task = task(&found, data, None, false);
    Ok([base.beginning(&title(&found), &[]), task, ending.text()].concat())
}

const EVALUATE_FIRST: &str =
    "evaluate_first = true           # what the model can do before training\n";

fn stopping(found: &Compared) -> &'static str {
    if found.label.is_some() {
        return "
[training.early_stopping]
metric = \"spearman\"             # chooses the best checkpoint: whether the order of the cosines is that of the labels
patience = 5                    # training stops after 5 evaluations without improvement
";
    }
    "
[training.early_stopping]
metric = \"mrr@10\"               # chooses the best checkpoint: whether first texts find their second ones
patience = 5                    # training stops after 5 evaluations without improvement
"
}

fn seq_len(found: &Compared) -> usize {
    (2 * found.most_words + 4).next_power_of_two().clamp(32, 256)
}

fn title(found: &Compared) -> String {
    let what = match (&found.label, found.has_negatives) {
        (Some(Alike { is_binary: true, .. }), _) => "pairs that are alike or not",
        (Some(_), _) => "pairs with a score",
        (None, true) => "pairs with hard negatives",
        (None, false) => "pairs",
    };
    format!(
        "Vectors of texts, which are near where texts mean the same, from {} {what}.",
        about(found.n as f64)
    )
}

fn task(found: &Compared, data: &UserData<'_>, seq_len: Option<usize>, is_new: bool) -> String {
    let Compared { n, most_words, texts: [first, second], group, label, .. } = found;
    let seq_len = seq_len.map_or(String::new(), |len| {
        format!("seq_len = {len} # tokens; the longest text has about {most_words} words\n")
    });
    let pooling = if is_new {
        "pooling = \"mean\" # the vector of a text: the mean of its hidden states\n"
    } else {
        ""
    };
    let loss = match label {
        None => {
            "kind = \"multiple_negatives\" # the second texts of the other rows of a step are the negatives of each first\n\
             scale = 20.0 # the factor of the cosines: 1 / temperature\n"
        }
        Some(Alike { is_binary: true, .. }) => {
            "kind = \"contrastive\" # label 1: near; label 0: apart\nmargin = 0.5\n"
        }
        Some(_) => {
            "kind = \"cosent\" # the order of the cosines is that of the labels\nscale = 20.0\n"
        }
    };
    let further = match (label, group) {
        (Some(Alike { name, .. }), _) => format!("label = {}\n", quoted(name)),
        (None, Some(group)) => format!(
            "group = {} # rows of one group are never negatives of each other\n",
            quoted(group)
        ),
        (None, None) => String::new(),
    };
    let skips = if data.skips_broken { "skip_broken = true\n" } else { "" };
    let columns =
        format!("anchor = {}\npositive = {}\n{further}{skips}", quoted(first), quoted(second));
    let validation = if *n < 2_000 { 0.2 } else { 0.1 };
    format!(
        r#"
[task]
kind = "embed"
{pooling}{seq_len}
[task.loss]
{loss}
[task.data]
path = {path}
{columns}validation = {validation} # held-out share of the rows; or validation_path = "…"
"#,
        path = data.path,
    )
}

fn model(d_model: usize, n_layers: usize) -> String {
    let exported = exported_as("ModernBertModel");
    format!(
        r"
# Few rows teach no large model. `tealight init embed --from MODEL` writes a file that starts from a trained one, which knows
# the language.
{exported}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = 4
dropout = 0.1
bias = false
{MODERN_BERT}"
    )
}
