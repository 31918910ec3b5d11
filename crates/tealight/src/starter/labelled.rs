//! Classifiers of a user's texts.

use std::path::Path;

use anyhow::Result;
use tealight_train::data::survey::{Labelled, Target, labelled};

use super::{about, quoted, tenth};

const BATCH_SIZE: u64 = 32;

pub(super) fn text(data: &Path, path: &str) -> Result<String> {
    let found = labelled(data)?;
    let Labelled { n, most_words, bytes, .. } = found;
    let (label, column) = (quoted(&found.label), quoted(&found.text));
    let (objective, learnt) = match found.target {
        Target::Classes(n) => ("classes", format!("one of {n} classes")),
        Target::Labels => ("labels", "any number of labels".to_owned()),
        Target::Number => ("regression", "a number".to_owned()),
    };
    let pair = found
        .text_pair
        .as_ref()
        .map_or(String::new(), |pair| format!("text_pair = {}\n", quoted(pair)));
    // Pieces of words: somewhat more than words.
    let seq_len = (2 * most_words + 4).next_power_of_two().clamp(16, 256);
    let vocab_size = ((bytes / 40.) as usize).clamp(300, 16_000);
    let (d_model, n_layers, n_heads, epochs) = match n {
        0..2_000 => (32, 2, 4, 30),
        2_000..20_000 => (64, 2, 4, 12),
        _ => (128, 4, 4, 5),
    };
    let steps = (epochs * n as u64 / BATCH_SIZE).max(100);
    let (every, warmup) = (tenth(steps), (steps / 10).max(1));
    let validation = if n < 2_000 { 0.2 } else { 0.1 };
    let rows = about(n as f64);
    Ok(format!(
        "\
# A model that tells of a text {learnt}, from {rows} texts.
# `tealight explain KEY` explains each setting; `tealight doctor FILE` checks this file.

seed = 17                       # every random number is a function of this seed

[task]
kind = \"classify\"
objective = \"{objective}\"           # what the column of labels holds
seq_len = {seq_len}                    # tokens; the longest text has {most_words} words. Longer texts are truncated
read_out = \"mean\"               # or \"cls\": the first token, added by the tokenizer

[task.data]
path = {path}
text = {column}
{pair}label = {label}
validation = {validation}                # held-out share; or validation_path = \"…\"

[task.tokenizer]                # trained on these texts
kind = \"wordpiece\"
vocab_size = {vocab_size}               # at most; grows with the texts
lowercase = true

# Few texts teach no large model: the width follows their number. `init_from` starts from a trained one instead.
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
weight_decay = 0.1

[schedule]
kind = \"cosine\"
warmup_steps = {warmup}
final_lr_ratio = 0.0            # the learning rate decays to zero

[training]
steps = {steps}                     # {epochs} times through the texts
batch_size = {BATCH_SIZE}
max_grad_norm = 1.0
evaluate_every = {every}

[checkpoint]
every = {every}
select = \"best\"                 # small data are soon learnt by heart
"
    ))
}
