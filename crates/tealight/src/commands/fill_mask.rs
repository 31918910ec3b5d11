//! `tealight fill-mask MODEL TEXT`: what a masked language model expects in the gaps of a text.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};
use tealight_train::inference::fill_mask::{Candidate, FillMask, Proposals, targets};
use tealight_train::text::tokenizer::Tokenizer;

use crate::args::language as args;
use crate::runs::load;
use crate::terminal::input;
use crate::terminal::output::{log, print};

pub(crate) fn run(args: &args::FillMask) -> Result<()> {
    let device = &args.model.used.device.open()?;
    let pretrained = load::model(&args.model)?;
    let model = &pretrained.masked_lm(device)?;
    let tokenizer = pretrained.tokenizer()?;
    let texts = input::given_or_in(&args.texts, args.file.as_deref())?;
    let proposals = proposals(args, tokenizer)?;
    let fill_mask = FillMask::new(model, &pretrained.model, tokenizer, device);
    let filled = fill_mask.fill(&texts, &proposals)?;
    print(&if args.json { as_json(&filled)? } else { as_text(&texts, &filled) })
}

/// Which tokens are asked for. A target that is not one token is scored by its first piece, as
/// `transformers` does, and said to be.
fn proposals(args: &args::FillMask, tokenizer: &Tokenizer) -> Result<Proposals> {
    let top_k = args.top_k.get();
    if args.targets.is_empty() {
        return Ok(Proposals { top_k, targets: None });
    }
    let found = targets(tokenizer, &args.targets)?;
    for (word, target) in found.iter().filter_map(|one| Some((one, one.first_piece.as_ref()?))) {
        log(&format!("`{}` is not one token: its first piece `{target}` is scored", word.text));
    }
    let targets = Some(found.into_iter().map(|target| target.id).collect());
    Ok(Proposals { top_k, targets })
}

/// What the `fill-mask` pipeline of `transformers` returns: a list for one mask, a list of lists for
/// several; and a list of those for several texts.
fn as_json(filled: &[Vec<Vec<Candidate>>]) -> Result<String> {
    let of_text = |masks: &Vec<Vec<Candidate>>| -> serde_json::Result<Value> {
        match masks.as_slice() {
            [one] => serde_json::to_value(one),
            several => serde_json::to_value(several),
        }
    };
    let value = match filled {
        [one] => of_text(one)?,
        several => json!(several.iter().map(of_text).collect::<serde_json::Result<Vec<_>>>()?),
    };
    Ok(format!("{value}\n"))
}

/// For each mask of each text its candidates, one on a line.
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
