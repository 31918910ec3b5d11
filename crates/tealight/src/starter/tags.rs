//! Taggers of a user's sentences.

use anyhow::{Result, bail};
use tealight_train::data::shown::on_one_line;
use tealight_train::data::survey::{Tagged, tags};
use tealight_train::data::tags::scheme::Scheme;

use super::base::Base;
use super::blocks::{MODERN_BERT, MODERN_BERT_HEAD, exported_as};
use super::ending::Ending;
use super::machine::{Work, n_tokens};
use super::{UserData, about, beginning, quoted};

const BATCH_SIZE: u64 = 32;

/// The configuration of a tagger of the sentences in `data`.
pub(super) fn text(data: &UserData<'_>) -> Result<String> {
    let found = survey(data)?;
    let n = found.n;
    let (d_model, n_layers, n_heads, epochs) = match n {
        0..2_000 => (64, 2, 4, 30),
        2_000..10_000 => (128, 2, 4, 20),
        _ => (128, 4, 4, 10),
    };
    let ending = Ending::of_texts(epochs, n, "sentences", BATCH_SIZE, stopping(&found))
        .timed(Work { d_model, n_layers, n_tokens: n_tokens(found.n_bytes as f64, n, usize::MAX) });
    let tables = [
        beginning(&title(&found)),
        task(&found, data, seq_len(&found)),
        tokenizer(&found),
        model(d_model, n_layers, n_heads),
        ending.text(),
    ];
    Ok(tables.concat())
}

/// The configuration of a tagger of the sentences in `data` that starts from `base`.
pub(super) fn from_base(data: &UserData<'_>, base: &Base) -> Result<String> {
    let found = survey(data)?;
    let epochs = if found.n < 2_000 { 6 } else { 3 };
    let task = task(&found, data, base.seq_len(seq_len(&found)));
    let n_tokens = n_tokens(found.n_bytes as f64, found.n, usize::MAX);
    let ending = Ending {
        stopping: stopping(&found),
        ..base.ending(found.n as f64, epochs, "sentences", n_tokens)
    };
    Ok([base.beginning(&title(&found), &[]), task, ending.text()].concat())
}

fn survey(data: &UserData<'_>) -> Result<Tagged> {
    let found = tags(data.file)?;
    if found.types.is_empty() {
        bail!("`{}`: no word has another tag than \"O\"", data.file.display());
    }
    Ok(found)
}

/// Tags of parts of speech are compared by words, entities by F1.
fn stopping(found: &Tagged) -> &'static str {
    if found.scheme == Some(Scheme::None) {
        return "";
    }
    "
[training.early_stopping]
metric = \"f1\"                   # chooses the best checkpoint: whole entities
patience = 5                    # training stops after 5 evaluations without improvement
"
}

fn seq_len(found: &Tagged) -> usize {
    (2 * found.most_words + 4).next_power_of_two().clamp(32, 256)
}

fn title(found: &Tagged) -> String {
    let types: Vec<&str> = found.types.keys().take(5).map(String::as_str).collect();
    let more = if found.types.len() > 5 { ", …" } else { "" };
    format!(
        "A model that tags the words of a sentence ({}{more}), from {} sentences.",
        on_one_line(&types.join(", ")),
        about(found.n as f64)
    )
}

fn task(found: &Tagged, data: &UserData<'_>, seq_len: usize) -> String {
    let Tagged { n, most_words, scheme, fields, .. } = found;
    let scheme = match scheme {
        Some(Scheme::None) => {
            "scheme = \"none\"                 # each word has a tag of its own, as parts of speech\n"
        }
        _ => {
            "scheme = \"iob2\"                 # what is learnt and written; the tags of the file are converted\n"
        }
    };
    let fields = fields.as_ref().map_or(String::new(), |[words, tags]| {
        format!("words = {}\ntags = {}\n", quoted(words), quoted(tags))
    });
    let validation = if *n < 2_000 { 0.2 } else { 0.1 };
    format!(
        r#"
[task]
kind = "tag"
{scheme}seq_len = {seq_len} # tokens; the longest sentence has {most_words} words. Longer ones are read in pieces

[task.data]
path = {path}
{fields}validation = {validation} # held-out share of sentences or documents; or validation_path = "…"
"#,
        path = data.path,
    )
}

fn tokenizer(found: &Tagged) -> String {
    let vocab_size = (found.n_bytes / 40).clamp(300, 16_000);
    format!(
        r#"
[task.tokenizer]                # trained on these sentences
kind = "wordpiece"
vocab_size = {vocab_size} # at most; grows with the sentences
lowercase = false # capital letters tell names
"#
    )
}

fn model(d_model: usize, n_layers: usize, n_heads: usize) -> String {
    let exported = exported_as("ModernBertForTokenClassification");
    format!(
        r"
# Few sentences teach no large model. `tealight init tag --from MODEL` writes a file that starts from a trained one, which
# knows more names.
{exported}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
dropout = 0.1
bias = false
{MODERN_BERT}{MODERN_BERT_HEAD}"
    )
}
