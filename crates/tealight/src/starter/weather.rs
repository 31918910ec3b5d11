//! Weather from a user's file.

use anyhow::{Result, bail};
use tealight_train::weather::read;

use super::ending::{BEST_OF_FEW, Ending, TO_ZERO};
use super::{UserData, about, beginning, tenth};

const MAX_WINDOW: usize = 10;
const BATCH_SIZE: u64 = 32;

/// The configuration of a forecaster of the days in `data`.
pub(super) fn text(data: &UserData<'_>) -> Result<String> {
    let lines = read(data.file, 2)?;
    let shortest = lines.iter().map(Vec::len).min().unwrap_or(0);
    let longest = lines.iter().map(Vec::len).max().unwrap_or(0);
    let n_lines = lines.len();
    let title = format!(
        "A forecast of tomorrow's weather, from {n_lines} sequences of {shortest} to {longest} days."
    );
    // Half of a short line: a longer window leaves fewer examples.
    let window = (shortest / 2).clamp(1, MAX_WINDOW);
    let n: usize = lines.iter().map(|line| line.len() - window).sum();
    if n < 5 {
        bail!(
            "`{}` has only {n} examples of {window} days and the next: give more days",
            data.file.display()
        );
    }
    let (d_model, n_layers, epochs) = if n < 5_000 { (16, 1, 30) } else { (64, 2, 10) };
    let steps = (epochs * n as u64 / BATCH_SIZE).clamp(100, 20_000);
    let ending = Ending {
        adamw: "lr = 2e-3\nbeta2 = 0.98\nweight_decay = 0.1".to_owned(),
        warmup_steps: tenth(steps),
        final_lr_ratio: TO_ZERO,
        steps,
        passes: format!("{epochs} times through the examples, or 100 steps"),
        batch_size: BATCH_SIZE,
        select: BEST_OF_FEW,
        ..Ending::default()
    };
    let tables =
        [beginning(&title), task(window, n, &data.path), model(d_model, n_layers), ending.text()];
    Ok(tables.concat())
}

/// The tables of the task: the window, the file and the `n` examples in it.
fn task(window: usize, n: usize, path: &str) -> String {
    let (examples, held_out) = (about(n as f64), (n / 5).max(1));
    format!(
        r#"
[task]
kind = "weather"
window = {window}                      # days that the model sees; a shorter window gives more examples
read_out = "mean"

[task.source]
kind = "file"
path = {path}                   # a sequence of 🌧️☁️☀️ or R, C, S on each line

[task.regime]
kind = "examples"               # all examples of the file, {examples}
n_validation = {held_out}              # the last fifth of them is held out
"#
    )
}

/// The tables of the model.
fn model(d_model: usize, n_layers: usize) -> String {
    format!(
        r#"
# Few examples teach no large model: the width follows their number.
[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = 2
dropout = 0.1

[model.position]
kind = "learned"
std = 0.5
"#
    )
}
