//! `tealight fill-mask MODEL TEXT`: predicts masked tokens.

use std::fmt::Write as _;

use anyhow::Result;
use tealight_train::inference::fill_mask::{Candidate, FillMask, Proposals, as_pipeline, targets};
use tealight_train::text::tokenizer::Tokenizer;

use crate::args::predict as args;
use crate::runs::load::open_pretrained;
use crate::runs::number_format::NumberFormat;
use crate::runs::unread::warn_of_unknown;
use crate::terminal::input;
use crate::terminal::output::{print, print_json, warn};

pub(crate) fn run(args: &args::FillMask) -> Result<()> {
    NumberFormat::of(args.computation.precision, args.model.weights.device).warn_if_replaced();
    let (pretrained, device) = &open_pretrained(&args.model)?;
    let model = &pretrained.masked_lm(device)?;
    let tokenizer = pretrained.tokenizer()?;
    let given = input::placed_texts(&args.texts, args.file.as_deref())?;
    let texts = &given.all;
    let proposals = proposals(args, tokenizer)?;
    let fill_mask = FillMask::new(model, &pretrained.model, tokenizer, device);
    let filled = fill_mask.fill(texts, &proposals).map_err(|error| given.at_its_place(error))?;
    let read = texts.iter().map(|text| fill_mask.with_mask_token(text));
    let read = read.collect::<tealight_train::Result<Vec<String>>>()?;
    warn_of_unknown(tokenizer, &read.iter().map(String::as_str).collect::<Vec<_>>())?;
    if args.json {
        return print_json(&as_pipeline(&filled));
    }
    print(&as_text(texts, &filled))
}

/// The candidates to score. A target word of several tokens is scored by its first token, as in
/// `transformers`, with a warning.
fn proposals(args: &args::FillMask, tokenizer: &Tokenizer) -> Result<Proposals> {
    let top_k = args.top_k;
    if args.targets.is_empty() {
        return Ok(Proposals { top_k, targets: None });
    }
    let found = targets(tokenizer, &args.targets)?;
    for (word, target) in found.iter().filter_map(|one| Some((one, one.first_piece.as_ref()?))) {
        warn(&format!("`{}` is not one token: scoring its first token `{target}`", word.text));
    }
    let targets = Some(found.into_iter().map(|target| target.id).collect());
    Ok(Proposals { top_k, targets })
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
