//! Weather from a user's file.

use std::path::Path;

use anyhow::{Result, bail};
use tealight_train::weather::read;

use super::{about, tenth};

const MAX_WINDOW: usize = 10;
const BATCH_SIZE: u64 = 32;

pub(super) fn text(data: &Path, path: &str) -> Result<String> {
    let lines = read(data, 2)?;
    let shortest = lines.iter().map(Vec::len).min().unwrap_or(0);
    let longest = lines.iter().map(Vec::len).max().unwrap_or(0);
    // Half of a short line: a longer window leaves fewer examples.
    let window = (shortest / 2).clamp(1, MAX_WINDOW);
    let n: usize = lines.iter().map(|line| line.len() - window).sum();
    if n < 5 {
        bail!(
            "`{}` has only {n} examples of {window} days and the next: give more days",
            data.display()
        );
    }
    let held_out = (n / 5).max(1);
    let (d_model, n_layers, epochs) = if n < 5_000 { (16, 1, 30) } else { (64, 2, 10) };
    let steps = (epochs * n as u64 / BATCH_SIZE).clamp(100, 20_000);
    let (every, warmup) = (tenth(steps), (steps / 10).max(1));
    let (n_lines, examples) = (lines.len(), about(n as f64));
    Ok(format!(
        "\
# A forecast of tomorrow's weather, from {n_lines} sequences of {shortest} to {longest} days.
# `tealight explain KEY` explains each setting; `tealight doctor FILE` checks this file.

seed = 17                       # every random number is a function of this seed

[task]
kind = \"weather\"
window = {window}                      # days that the model sees; a shorter window gives more examples
read_out = \"mean\"

[task.source]
kind = \"file\"
path = {path}                   # a sequence of 🌧️☁️☀️ or R, C, S on each line

[task.regime]
kind = \"examples\"               # all examples of the file, {examples}
n_validation = {held_out}              # the last fifth of them is held out

# Few examples teach no large model: the width follows their number.
[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = 2
dropout = 0.1

[model.position]
kind = \"learned\"
std = 0.5

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
steps = {steps}                     # {epochs} times through the examples, or 100 steps
batch_size = {BATCH_SIZE}
max_grad_norm = 1.0
evaluate_every = {every}

[checkpoint]
every = {every}
select = \"best\"                 # small data are soon learnt by heart
"
    ))
}
