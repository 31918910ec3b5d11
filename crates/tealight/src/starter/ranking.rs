//! Models that rank a user's passages.

use anyhow::{Result, bail};
use tealight_train::data::survey::{Alike, Compared, compared};

use super::base::Base;
use super::blocks::{MODERN_BERT, MODERN_BERT_HEAD, exported_as, tokenizer};
use super::ending::Ending;
use super::machine::{Work, n_tokens};
use super::{UserData, about, beginning, quoted};

const BATCH_SIZE: u64 = 32;
/// The field of the second text in rows that have negatives.
const POSITIVE: &str = "positive";
/// How a new model reads a pair.
const READ_OUT: &str =
    "read_out = \"mean\" # or \"cls\": the first token, added by the tokenizer\n";
const EVALUATE_FIRST: &str =
    "evaluate_first = true           # what the model can do before training\n";
const STOPPING: &str = "
[training.early_stopping]
metric = \"map\"                  # chooses the best checkpoint: passages that answer come first
direction = \"max\"
patience = 5                    # training stops after 5 evaluations without improvement
";

/// The configuration of a ranker of the passages in `data`.
pub(super) fn text(data: &UserData<'_>) -> Result<String> {
    let found = survey(data)?;
    let (d_model, n_layers, epochs) = match found.n {
        0..5_000 => (64, 2, 20),
        5_000..50_000 => (128, 2, 6),
        _ => (128, 4, 2),
    };
    let n_tokens = n_tokens(found.n_bytes as f64, found.n, seq_len(&found));
    let ending = Ending::of_texts(epochs, found.n, "rows", BATCH_SIZE, STOPPING).timed(Work {
        d_model,
        n_layers,
        n_tokens,
    });
    let tables = [
        beginning(&title(&found)),
        task(&found, data, seq_len(&found), READ_OUT),
        tokenizer(found.n_bytes),
        model(d_model, n_layers),
        ending.text(),
    ];
    Ok(tables.concat())
}

/// The configuration of a ranker of the passages in `data` that starts from `base`.
pub(super) fn from_base(data: &UserData<'_>, base: &Base) -> Result<String> {
    let found = survey(data)?;
    let epochs = if found.n < 5_000 { 3 } else { 1 };
    let n_tokens = n_tokens(found.n_bytes as f64, found.n, base.seq_len(seq_len(&found)));
    let ending = Ending {
        training: EVALUATE_FIRST,
        stopping: STOPPING,
        ..base.ending(found.n as f64, epochs, "rows", n_tokens)
    };
    let task = task(&found, data, base.seq_len(seq_len(&found)), base.read_out());
    Ok([base.beginning(&title(&found), &[]), task, ending.text()].concat())
}

fn survey(data: &UserData<'_>) -> Result<Compared> {
    let found = compared(data.file, &data.columns)?;
    if found.label.is_none() && !has_lists(&found) {
        bail!(
            "`{}` has neither a column of numbers that is known to be the label (`--label NAME` names it), nor the columns \
             `positive` and `negative`",
            data.file.display()
        );
    }
    Ok(found)
}

/// Whether a row has a positive and negatives.
fn has_lists(found: &Compared) -> bool {
    found.texts[1] == POSITIVE && found.has_negatives
}

fn seq_len(found: &Compared) -> usize {
    (3 * found.most_words + 8).next_power_of_two().clamp(64, 256)
}

fn title(found: &Compared) -> String {
    let rows = about(found.n as f64);
    format!("A model that reads a query with a passage and ranks passages, from {rows} rows.")
}

fn task(found: &Compared, data: &UserData<'_>, seq_len: usize, more: &str) -> String {
    let Compared { n, most_words, texts: [query, passage], label, .. } = found;
    let loss = match label {
        Some(Alike { is_binary: false, .. }) if !has_lists(found) => {
            "kind = \"lambda\" # the order of grades, by its effect on nDCG\n"
        }
        _ => "kind = \"binary\" # whether a passage answers; a score is a probability\n",
    };
    let query = quoted(query);
    let columns = match label {
        Some(Alike { name, .. }) if !has_lists(found) => {
            format!("query = {query}\npassage = {}\nlabel = {}\n", quoted(passage), quoted(name))
        }
        _ => format!("query = {query} # with `positive` and `negative`\n"),
    };
    let skips = if data.skips_broken { "skip_broken = true\n" } else { "" };
    let validation = if *n < 2_000 { 0.2 } else { 0.1 };
    format!(
        r#"
[task]
kind = "rerank"
{more}seq_len = {seq_len} # tokens of both; the longest text has about {most_words} words

[task.loss]
{loss}
[task.data]
path = {path}
{columns}{skips}validation = {validation} # held-out share of the queries
"#,
        path = data.path,
    )
}

fn model(d_model: usize, n_layers: usize) -> String {
    let exported = exported_as("ModernBertForSequenceClassification");
    format!(
        r"
# Few rows teach no large model. `tealight init rerank --from MODEL` writes a file that starts from a trained one, which knows
# the language.
{exported}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = 4
dropout = 0.1
bias = false
{MODERN_BERT}{MODERN_BERT_HEAD}"
    )
}
