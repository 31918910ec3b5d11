//! `tealight fill-mask MODEL TEXT`: predicts masked tokens.

use std::fmt::Write as _;

use anyhow::Result;
use tealight_train::inference::fill_mask::{Candidate, as_pipeline};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::fill_mask::{FillMask, Request};

use crate::args::predict as args;
use crate::runs::input_warnings::warn_of_unknown;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input;
use crate::terminal::output::{print, print_json, warn};

pub(crate) fn run(args: &args::FillMask) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let (model, device) = open_model(&args.model)?;
    let pipeline = FillMask::open(&model, &device)?;
    let given = input::placed_texts(&args.texts, args.file.as_deref())?;
    let texts = &given.all;
    warn_of_pieces(args, &pipeline)?;
    let targets = (!args.targets.is_empty()).then(|| args.targets.clone());
    let request = Request { texts: texts.clone(), top_k: args.top_k, targets, budget: None };
    let filled = pipeline.answer(&request).map_err(|error| given.at_its_place(error))?;
    let read = texts.iter().map(|text| pipeline.with_mask_token(text));
    let read = read.collect::<tealight_train::Result<Vec<String>>>()?;
    let read: Vec<&str> = read.iter().map(String::as_str).collect();
    warn_of_unknown(pipeline.tokenizer(), &read)?;
    if args.json {
        return print_json(&as_pipeline(&filled));
    }
    print(&as_text(texts, &filled))
}

/// A target word of several tokens is scored by its first token, as in `transformers`, with a warning.
fn warn_of_pieces(args: &args::FillMask, pipeline: &FillMask) -> Result<()> {
    for target in pipeline.targets(&args.targets)? {
        if let Some(piece) = &target.first_piece {
            let word = &target.text;
            warn(&format!("`{word}` is not one token: scoring its first token `{piece}`"));
        }
    }
    Ok(())
}

/// The candidates of each mask of each text, one per line.
fn as_text(texts: &[String], filled: &[Vec<Vec<Candidate>>]) -> String {
    let mut lines = String::new();
    for (number, (text, masks)) in texts.iter().zip(filled).enumerate() {
        let gap = if number > 0 { "\n" } else { "" };
        let _ = writeln!(lines, "{gap}{text}");
        for (mask, candidates) in masks.iter().enumerate() {
            if masks.len() > 1 {
                let _ = writeln!(lines, "mask {}", mask + 1);
            }
            let width = candidates.iter().map(|one| one.token_str.chars().count()).max();
            let width = width.unwrap_or(0);
            for Candidate { score, token_str, sequence, .. } in candidates {
                let _ = writeln!(lines, "  {score:.4}  {token_str:<width$}  {sequence}");
            }
        }
    }
    lines
}
