//! Trains a classifier on a file of texts and labels of one's own, and classifies a text with it:
//! `cargo run --release -p tealight-train --example own_data -- data/my_texts.jsonl "The train to Lisbon left at ten."`
//!
//! `own_task.rs` beside it trains on data that no task of Tealight reads.

use std::path::Path;

use candle_core::Device;
use tealight_train::config::ConfigSource;
use tealight_train::inference::labels::Classified;
use tealight_train::task::classify::Text;
use tealight_train::task::{TaskConfig, TaskKind};
use tealight_train::{Result, RunConfig, Session, fit};

// As in a file for `tealight train`; `tealight explain` and `tealight init classify --data FILE` say more.
const SETTINGS: &str = r#"
seed = 17
model = { d_model = 32, n_layers = 2, n_heads = 4, dropout = 0.1 }
optimizer = { kind = "adamw", lr = 2e-3, weight_decay = 0.1 }
schedule = { kind = "cosine", warmup_steps = 20, final_lr_ratio = 0.0 }
training = { steps = 200, batch_size = 32, max_grad_norm = 1.0, evaluate_every = 50 }
[task]
kind = "classify"
seq_len = 32
read_out = "mean"
tokenizer = { kind = "wordpiece", vocab_size = 600, lowercase = true }
"#;

/// The labels of `text` with their probabilities, by a model that is trained on `file`: `{"text": "…", "label": "…"}`
/// on each line, or a `.csv` with these columns.
pub(crate) fn train_and_classify(file: &Path, text: &str) -> Result<Vec<Classified>> {
    let data = format!("task.data.path={:?}", file.display().to_string());
    let source = ConfigSource::parse(Path::new("own_data.toml"), SETTINGS, &[data])?;
    let (config, device): (RunConfig, _) = (source.deserialize()?, Device::Cpu);
    let TaskConfig::Classify(settings) = &config.task else { unreachable!("`kind` says so") };
    let task = settings.build(&config.task_context(&device))?;
    let mut session = Session::new(&config, task, &device)?;
    fit(&mut session, config.training.steps, None, &mut [])?;
    let texts = [Text { text: text.to_owned(), text_pair: None }];
    session.task.classify(&session.eval_model, &texts)
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (file, text) = arguments.next().zip(arguments.next()).ok_or("usage: FILE TEXT")?;
    for score in train_and_classify(Path::new(&file), &text)?.iter().flat_map(|one| &one.scores) {
        println!("{:.4}  {}", score.score, score.label);
    }
    Ok(())
}
