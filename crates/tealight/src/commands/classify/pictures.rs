//! `tealight classify MODEL PICTURE`: the classes of pictures.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tealight_train::inference::labels::Score;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::image_classification::{ImageClassification, Request, TOP_K};

use crate::args::predict::Classify;
use crate::terminal::input::{Pictures, pictures};
use crate::terminal::output::{print, print_json};

pub(super) fn run(args: &Classify, pipeline: &ImageClassification) -> Result<()> {
    let name = args.model.path.display();
    if !args.pair.is_empty() {
        bail!("`--pair` is for texts, and `{name}` is a classifier of pictures");
    }
    if args.output.is_some() {
        bail!(
            "`--output` writes the rows of a table of texts, and `{name}` is a classifier of pictures"
        );
    }
    let reader = format!("`{name}`, a classifier of pictures");
    let Pictures { paths, is_one } = pictures(&args.texts, args.file.as_deref(), &reader)?;
    let requests: Vec<Request> = paths.iter().cloned().map(Request::File).collect();
    let top_k = args.top_k.unwrap_or(TOP_K);
    let classified = pipeline.answers(&requests.iter().collect::<Vec<_>>())?.into_iter();
    let scores = classified.map(|one| one.scores.into_iter().take(top_k).collect());
    let scores: Vec<Vec<Score>> = scores.collect();
    if args.json {
        return print_json(&as_json(&scores, is_one));
    }
    print(&as_text(&paths, &scores))
}

/// The output of the image-classification pipeline of transformers: a list of classes for the only picture, or a list
/// of those.
fn as_json(scores: &[Vec<Score>], is_one: bool) -> Value {
    match scores {
        [only] if is_one => json!(only),
        several => json!(several),
    }
}

/// One line per picture: its path, then the likeliest classes with their probabilities.
fn as_text(paths: &[PathBuf], scores: &[Vec<Score>]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let width = paths.iter().map(|path| path.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (path, scores) in paths.iter().zip(scores) {
        write!(text, "{path:<width$}").expect("invariant: a String grows");
        for Score { label, score, .. } in scores {
            let percent = 100. * score;
            write!(text, "   {label} {percent:.1} %").expect("invariant: a String grows");
        }
        text.push('\n');
    }
    text
}
