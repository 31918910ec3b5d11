//! Sequence to sequence from a user's pairs.

use std::path::Path;

use anyhow::Result;
use tealight_train::data::survey::{Pairs, pairs};

use super::{about, tenth};

const BATCH_SIZE: u64 = 32;
/// Fewer words than this per pair are a vocabulary that can be learnt.
const PAIRS_PER_WORD: usize = 3;

pub(super) fn text(data: &Path, path: &str) -> Result<String> {
    let Pairs { n, n_sources, most_characters, most_words, n_words } = pairs(data)?;
    let by_words = most_words > 1 && n_words * PAIRS_PER_WORD <= n;
    let (level, max_len, reason) = if by_words {
        ("words", most_words, format!("{n_words} words; or \"characters\""))
    } else {
        let reason = format!("{n_words} words are too many for {} pairs", about(n as f64));
        ("characters", most_characters, reason)
    };
    let (d_model, n_layers, n_heads, epochs) = match n {
        0..2_000 => (32, 1, 2, 50),
        2_000..50_000 => (64, 2, 4, 20),
        _ => (128, 3, 4, 5),
    };
    let steps = (epochs * n as u64 / BATCH_SIZE).max(200);
    let (every, warmup) = (tenth(steps), (steps / 10).max(1));
    let held_out = (n_sources / 10).clamp(1, 1000);
    let pairs = about(n as f64);
    Ok(format!(
        "\
# A model that writes the target of a source, from {pairs} pairs.
# `tealight explain KEY` explains each setting; `tealight doctor FILE` checks this file.

seed = 17                       # every random number is a function of this seed

[task]
kind = \"seq2seq\"
n_validation = {held_out}               # held-out sources, chosen by the seed
n_decoded = {held_out}                  # of them, those that are decoded at each evaluation

[task.source]
kind = \"file\"
path = {path}                   # a source, a tab and a target on each line
level = \"{level}\"              # {reason}
max_len = {max_len}                    # the most tokens of a source or target; longer ones are refused

# Few pairs teach no large model: the width follows their number.
[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
dropout = 0.1

[model.position]
kind = \"learned\"

[optimizer]
kind = \"adamw\"
lr = 2e-3
beta2 = 0.98
weight_decay = 0.1

[schedule]
kind = \"cosine\"
warmup_steps = {warmup}
final_lr_ratio = 0.0            # the learning rate decays to zero

[training]
steps = {steps}                     # {epochs} times through the pairs
batch_size = {BATCH_SIZE}
max_grad_norm = 1.0
evaluate_every = {every}

[checkpoint]
every = {every}
select = \"best\"
"
    ))
}
