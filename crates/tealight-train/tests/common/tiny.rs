//! A very short run that uses most features of a run.

use std::path::Path;

use tealight_train::RunConfig;
use tealight_train::config::ConfigSource;

use crate::common::Result;

/// Dropout, two micro-batches, clipping, moving average and early stopping; steps straddle epochs.
const TINY: &str = r#"
seed = 17
[task]
kind = "weather"
window = 5
[task.source]
kind = "markov"
[task.regime]
kind = "examples"
n = 24
n_validation = 5
[model]
d_model = 33
n_layers = 2
n_heads = 3
dropout = 0.2
[schedule]
kind = "cosine"
warmup_steps = 3
[training]
steps = 12
batch_size = 7
micro_batches = 2
max_grad_norm = 1.0
ema_decay = 0.9
evaluate_every = 4
[training.early_stopping]
patience = 100
[checkpoint]
every = 5
[log]
every = 1
"#;

/// The tiny run with overrides, as of `--set`.
pub(crate) fn tiny(overrides: &[&str]) -> Result<RunConfig> {
    let overrides: Vec<String> = overrides.iter().map(|&change| change.to_owned()).collect();
    Ok(ConfigSource::parse(Path::new("tiny.toml"), TINY, &overrides)?.deserialize()?)
}
