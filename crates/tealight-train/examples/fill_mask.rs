//! Fills the masks of a text with a model folder of Hugging Face, or with a run:
//! `cargo run --release -p tealight-train --example fill_mask -- bert-base-uncased "Paris is the [MASK] of France."`

use std::path::Path;

use candle_core::Device;
use tealight_train::Result;
use tealight_train::inference::fill_mask::Candidate;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::fill_mask::{FillMask, Request};
use tealight_train::trained::TrainedModel;

/// The three likeliest tokens for each mask of the text.
pub(crate) fn fill(folder: &Path, text: &str) -> Result<Vec<Vec<Candidate>>> {
    let model = TrainedModel::open(folder, None)?;
    let pipeline = FillMask::open(&model, &Device::Cpu)?;
    let texts = vec![text.to_owned()];
    let request = Request { texts, top_k: 3, targets: None, budget: None };
    Ok(pipeline.answer(&request)?.into_iter().flatten().collect())
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (folder, text) = arguments.next().zip(arguments.next()).ok_or("usage: FOLDER TEXT")?;
    for candidate in fill(Path::new(&folder), &text)?.iter().flatten() {
        println!("{:.4}  {}", candidate.score, candidate.sequence);
    }
    Ok(())
}
