//! Classifiers of a user's texts.

use anyhow::{Result, bail};
use tealight_model::names::Named as _;
use tealight_train::data::shown::on_one_line;
use tealight_train::data::survey::{Labelled, Target, labelled};
use tealight_train::inference::labels::Objective;

use super::base::Base;
use super::blocks::{MODERN_BERT, MODERN_BERT_HEAD, calibration, exported_as};
use super::ending::{BEST_OF_FEW, Ending, LATEST};
use super::machine::{Work, n_tokens};
use super::{UserData, about, beginning, quoted};
use crate::terminal::output::log;

const BATCH_SIZE: u64 = 32;
/// How a new model reads a text.
const READ_OUT: &str =
    "read_out = \"mean\"               # or \"cls\": the first token, added by the tokenizer\n";

/// A new model learns few texts by heart unless it reads another part of each every time. Accuracy on other texts without
/// this line, at 0.4 and at 0.6 (two seeds): .745, .811, .840 from 1,000 subjective or objective sentences; .647, .671, .688
/// from 3,000 sentences of reviews; .459, .522, .507 from 2,000 passages of ten authors.
const TOKEN_DROPOUT: &str = "token_dropout = 0.5             # each time that a text is trained on, another half of its tokens is missing\n";

/// The configuration of a classifier of the texts in `data`.
pub(super) fn text(data: &UserData<'_>) -> Result<String> {
    let found = survey(data)?;
    let n = found.n;
    let (d_model, n_layers, n_heads, epochs) = match n {
        0..2_000 => (32, 2, 4, 30),
        2_000..20_000 => (64, 2, 4, 12),
        _ => (128, 4, 4, 5),
    };
    // The label of a pair can hang on one word that only one of the two has.
    let is_of_any_part = found.text_pair.is_none() && objective(&found) != Objective::Regression;
    let token_dropout = if is_of_any_part { TOKEN_DROPOUT } else { "" };
    let select = if objective(&found) == Objective::Regression { BEST_OF_FEW } else { LATEST };
    let ending = Ending { select, ..Ending::of_texts(epochs, n, "texts", BATCH_SIZE, "") };
    let ending = ending.timed(Work {
        d_model,
        n_layers,
        n_tokens: n_tokens(found.bytes, n, seq_len(&found)),
    });
    let task = task(&found, data, seq_len(&found), &format!("{READ_OUT}{token_dropout}"));
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
pub(super) fn from_base(data: &UserData<'_>, base: &Base) -> Result<String> {
    let found = survey(data)?;
    let epochs = if found.n < 2_000 { 6 } else { 3 };
    // A classifier has labels and an objective, which the data may not share.
    let (mut more, mut allow) = (base.read_out().to_owned(), Vec::new());
    if let Some(labels) = &base.labels {
        if labels.objective() != objective(&found) {
            allow.push("task.objective");
        }
        if !found.classes.is_empty() {
            let labels = serde_json::json!(found.classes);
            let line = "the outputs; those that the model has keep their rows";
            more = format!("{more}labels = {labels} # {line}\n");
        }
    }
    let task = task(&found, data, base.seq_len(seq_len(&found)), &more);
    let n_tokens = n_tokens(found.bytes, found.n, base.seq_len(seq_len(&found)));
    let ending =
        Ending { select: LATEST, ..base.ending(found.n as f64, epochs, "texts", n_tokens) };
    Ok([base.beginning(&title(&found), &allow), task, ending.text()].concat())
}

/// What the data hold; what is learnt from them is told with the reason.
fn survey(data: &UserData<'_>) -> Result<Labelled> {
    let found = labelled(data.file, &data.columns)?;
    let Labelled { label, because, .. } = &found;
    if let [only] = &found.classes[..] {
        bail!(
            "`{}`: all texts have the label \"{}\" in the column `{label}`, and there is nothing to tell apart",
            data.file.display(),
            on_one_line(only)
        );
    }
    // Texts of two columns, such as questions and answers, differ in almost each row.
    if found.classes.len() > 2 && 2 * found.classes.len() > found.n {
        bail!(
            "`{}`: the column `{label}` has {} different labels in {} texts, so that most labels have one text: nothing can \
             be learnt of them; `--label NAME` names another column",
            data.file.display(),
            found.classes.len(),
            found.n
        );
    }
    let learnt = objective(&found).name();
    log(&format!("objective = \"{learnt}\", because the column `{label}` {because}"));
    Ok(found)
}

/// From this ratio of the most frequent class to the rarest on, classes are weighted.
const IMBALANCE: f64 = 4.;

/// What is learnt from the column of labels.
fn objective(found: &Labelled) -> Objective {
    match found.target {
        Target::Classes(_) => Objective::Classes,
        Target::Labels => Objective::Labels,
        Target::Number => Objective::Regression,
    }
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
fn task(found: &Labelled, data: &UserData<'_>, seq_len: usize, more: &str) -> String {
    let Labelled { n, most_words, .. } = *found;
    let (path, because) = (&data.path, &found.because);
    let skip_broken = if data.skips_broken {
        "skip_broken = true # rows that are no text with its label\n"
    } else {
        ""
    };
    let objective = objective(found).name();
    let (label, column) = (quoted(&found.label), quoted(&found.text));
    let pair = found
        .text_pair
        .as_ref()
        .map_or(String::new(), |pair| format!("text_pair = {}\n", quoted(pair)));
    let validation = match n {
        0..2_000 => 0.2,
        2_000..5_000 => 0.1,
        _ => 0.05,
    };
    let weights = if found.imbalance < IMBALANCE {
        String::new()
    } else {
        let times = found.imbalance.round();
        format!(
            "class_weights = \"balanced\"      # the most frequent class has {times} times the texts of the rarest\n"
        )
    };
    let has_classes = objective == Objective::Classes.name();
    let calibration = if has_classes { calibration(n as f64) } else { "" };
    format!(
        r#"
[task]
kind = "classify"
objective = "{objective}"           # because the column of labels {because}
seq_len = {seq_len}                    # tokens; the longest text has about {most_words} words. Longer texts are truncated
{more}{weights}{calibration}
[task.data]
path = {path}
text = {column}
{pair}label = {label}
validation = {validation}                # held-out share; or validation_path = "…"
split = "stratified"            # the same share of each label; texts that are equal stay on one side
{skip_broken}"#
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
        r"
# Few texts teach no large model: the width follows their number. `tealight init classify --from MODEL` writes a file
# that starts from a trained one.
{exported}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
dropout = 0.1
bias = false
{MODERN_BERT}{MODERN_BERT_HEAD}"
    )
}
