//! Fills the masks of a text with a model folder of Hugging Face, or with a run:
//! `cargo run --release -p tealight-train --example fill_mask -- bert-base-uncased "Paris is the [MASK] of France."`

use std::path::Path;

use candle_core::Device;
use tealight_train::Result;
use tealight_train::inference::fill_mask::{Candidate, FillMask, Proposals};
use tealight_train::pretrained::Pretrained;

/// The three likeliest tokens for each mask of the text.
pub(crate) fn fill(folder: &Path, text: &str) -> Result<Vec<Vec<Candidate>>> {
    let pretrained = Pretrained::open(folder, None)?;
    let (model, tokenizer) = (pretrained.masked_lm(&Device::Cpu)?, pretrained.tokenizer()?);
    let fill_mask = FillMask::new(&model, &pretrained.model, tokenizer, &Device::Cpu);
    let proposals = Proposals { top_k: 3, targets: None };
    let of_texts = fill_mask.fill(&[text.to_owned()], &proposals)?;
    Ok(of_texts.into_iter().flatten().collect())
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
