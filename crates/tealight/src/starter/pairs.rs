//! Sequence to sequence from a user's pairs.

use anyhow::Result;
use tealight_train::data::survey::{Pairs, pairs};

use super::ending::{Ending, TO_ZERO};
use super::{UserData, about, beginning, tenth};

const BATCH_SIZE: u64 = 32;
/// Fewer words than this per pair are a vocabulary that can be learnt.
const PAIRS_PER_WORD: usize = 3;

/// The configuration of a model of the pairs in `data`.
pub(super) fn text(data: &UserData<'_>) -> Result<String> {
    let found = pairs(data.file)?;
    let n = found.n;
    let shown = about(n as f64);
    let title = format!("A model that writes the target of a source, from {shown} pairs.");
    let (d_model, n_layers, n_heads, epochs) = match n {
        0..2_000 => (32, 1, 2, 50),
        2_000..50_000 => (64, 2, 4, 20),
        _ => (128, 3, 4, 5),
    };
    let steps = (epochs * n as u64 / BATCH_SIZE).max(200);
    let ending = Ending {
        adamw: "lr = 2e-3\nbeta2 = 0.98\nweight_decay = 0.1".to_owned(),
        warmup_steps: tenth(steps),
        final_lr_ratio: TO_ZERO,
        steps,
        passes: format!("{epochs} times through the pairs"),
        batch_size: BATCH_SIZE,
        select: ("\"best\"", ""),
        ..Ending::default()
    };
    let model = model(d_model, n_layers, n_heads);
    Ok([beginning(&title), task(&found, &data.path), model, ending.text()].concat())
}

/// The tables of the task: what is held out, the file, and what its tokens are.
fn task(found: &Pairs, path: &str) -> String {
    let Pairs { n, n_sources, most_characters, most_words, n_words } = *found;
    let by_words = most_words > 1 && n_words * PAIRS_PER_WORD <= n;
    let (level, max_len, reason) = if by_words {
        ("words", most_words, format!(r#"{n_words} words; or "characters""#))
    } else {
        let reason = format!("{n_words} words are too many for {} pairs", about(n as f64));
        ("characters", most_characters, reason)
    };
    let held_out = (n_sources / 10).clamp(1, 1000);
    format!(
        r#"
[task]
kind = "seq2seq"
n_validation = {held_out}               # held-out sources, chosen by the seed
n_decoded = {held_out}                  # of them, those that are decoded at each evaluation

[task.source]
kind = "file"
path = {path}                   # a source, a tab and a target on each line
level = "{level}"              # {reason}
max_len = {max_len}                    # the most tokens of a source or target; longer ones are refused
"#
    )
}

/// The tables of the model.
fn model(d_model: usize, n_layers: usize, n_heads: usize) -> String {
    format!(
        r#"
# Few pairs teach no large model: the width follows their number.
[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
dropout = 0.1

[model.position]
kind = "learned"
"#
    )
}
