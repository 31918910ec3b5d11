//! `tealight rerank MODEL QUERY PASSAGE…`: passages in the order of their relevance for a query.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::reranking::{Ranked, Request, Reranking};

use crate::args::predict as args;
use crate::runs::input_warnings::{warn_of_truncated, warn_of_unknown};
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input;
use crate::terminal::output::{log, print, print_json};

/// A passage at its rank.
#[derive(Serialize)]
struct Passage<'a> {
    /// Its place among the given ones, from 0.
    index: usize,
    score: f64,
    text: &'a str,
}

pub(crate) fn run(args: &args::Rerank) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let (model, device) = open_model(&args.model)?;
    let passages = input::texts(&args.passages, args.file.as_deref())?;
    let pipeline = Reranking::open(&model, &device)?;
    if !pipeline.is_cross_encoder() {
        log(
            "the model reads one text at a time: scores are cosines of the vectors of query and passage",
        );
    }
    let request = Request { query: args.query.clone(), passages };
    let relevance = pipeline.answer(&request)?;
    let n_truncated = relevance.iter().filter(|one| one.is_truncated).count();
    warn_of_truncated(n_truncated, relevance.len(), pipeline.max_seq_len());
    let read = [&request.query].into_iter().chain(&request.passages).map(String::as_str);
    warn_of_unknown(pipeline.tokenizer(), &read.collect::<Vec<_>>())?;

    let ranked = Ranked::of(&relevance, args.raw).into_iter();
    let passage = |Ranked { index, score }| {
        let text = &*request.passages[index];
        Passage { index, score, text }
    };
    let ranked: Vec<Passage<'_>> =
        ranked.take(args.top_k.unwrap_or(usize::MAX)).map(passage).collect();
    if args.json {
        return print_json(&ranked);
    }
    let width = ranked.iter().map(|one| one.index.to_string().len()).max().unwrap_or(0);
    let mut lines = String::new();
    for Passage { index, score, text } in &ranked {
        let _ = writeln!(lines, "{score:>8.4}  {index:>width$}  {text}");
    }
    print(&lines)
}
