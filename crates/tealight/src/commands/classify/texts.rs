//! `tealight classify MODEL TEXT`: the classes of texts.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};
use tealight_train::data::table::{ending, is_table};
use tealight_train::inference::labels::{Classified, Objective};
use tealight_train::inference::text_classifier::Text;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::text_classification::TextClassification;
use tealight_train::storage::files::replace;
use tealight_train::task::classify::BrokenRows;

use crate::args::predict as args;
use crate::runs::input_warnings::{warn_of_truncated, warn_of_unknown};
use crate::terminal::input::{self, is_picture};
use crate::terminal::output::{log, print, print_json};

/// Printed for a text without any label.
const NONE: &str = "–";

pub(super) fn run(args: &args::Classify, pipeline: &TextClassification) -> Result<()> {
    let objective = pipeline.objective();
    if args.top_k.is_some() && objective == Objective::Regression {
        bail!("`--top-k` chooses among labels, and this model predicts a number");
    }
    if let (Some(output), Some(file)) = (&args.output, &args.file) {
        check_output(file, output)?;
    }
    let (texts, is_read) = texts(args, pipeline)?;
    let mut classified = pipeline.answer(&texts)?;
    warn_of_truncated(pipeline.n_truncated(&texts)?, texts.len(), pipeline.max_seq_len());
    let all = texts.iter().flat_map(|one| [Some(&one.text), one.text_pair.as_ref()]);
    let all: Vec<&str> = all.flatten().map(String::as_str).collect();
    warn_of_unknown(pipeline.tokenizer(), &all)?;
    if let (Some(output), Some(file)) = (&args.output, &args.file) {
        return write(pipeline, (file, &is_read), output, &classified);
    }
    if let Some(top_k) = args.top_k {
        for one in &mut classified {
            one.scores.truncate(top_k);
        }
    }
    if args.json {
        return print_json(&as_json(objective, &texts, &classified));
    }
    print(&as_text(objective, &classified))
}

/// Checks that the rows of `file` can be written to `output`, before they are classified.
fn check_output(file: &Path, output: &Path) -> Result<()> {
    let is_plain = output.extension().is_some_and(|last| last.eq_ignore_ascii_case(ending(output)));
    if file.is_dir() || !is_table(file) || ending(file) != ending(output) || !is_plain {
        bail!(
            "`--output` writes the rows of a table to a file of the same ending, without .gz or .zst: not those of `{}` to \
             `{}`",
            file.display(),
            output.display()
        );
    }
    if output.exists() {
        bail!("`{}` exists: `--output` writes a new file", output.display());
    }
    Ok(())
}

/// Writes the rows of `file` that are read, with their labels, to `output`, which has its format.
fn write(
    pipeline: &TextClassification,
    (file, is_read): (&Path, &[bool]),
    output: &Path,
    classified: &[Classified],
) -> Result<()> {
    replace(output, &pipeline.annotated(file, is_read, classified)?)?;
    log(&format!("wrote {}: {} rows", output.display(), classified.len()));
    Ok(())
}

/// The texts of the arguments with their pairs, then those of the file; and which rows of a table they are.
fn texts(args: &args::Classify, pipeline: &TextClassification) -> Result<(Vec<Text>, Vec<bool>)> {
    let broken_rows = if args.skip_broken { BrokenRows::LeftOut } else { BrokenRows::Refused };
    let (table, lines) = match args.file.as_deref() {
        Some(path) if is_table(path) => {
            let read = pipeline.texts_of(path, broken_rows)?;
            read.notes.iter().for_each(|note| log(note));
            ((read.texts, read.is_read), None)
        }
        other => ((Vec::new(), Vec::new()), other),
    };
    let (table, is_read) = table;
    let is_only_a_table = args.texts.is_empty() && lines.is_none();
    let given = if is_only_a_table { Vec::new() } else { input::texts(&args.texts, lines)? };
    if let Some(picture) = given.iter().find(|text| is_picture(Path::new(text))) {
        let name = args.model.path.display();
        bail!("`{picture}` is a picture, and `{name}` is a classifier of texts");
    }
    if let Some(file) = args.texts.iter().find(|text| Path::new(text).is_file()) {
        bail!(
            "`{file}` is a file: `--file {file}` classifies the texts in it, and `-` reads this text from standard input"
        );
    }
    let (n, n_pairs) = (given.len(), args.pair.len());
    if n_pairs > 0 && n_pairs != n {
        bail!(
            "`--pair` is given {n_pairs} times for {n} texts: give it once for each, in their order"
        );
    }
    let mut pairs = args.pair.iter().cloned();
    let given = given.into_iter().map(|text| Text { text, text_pair: pairs.next() });
    let texts: Vec<Text> = given.chain(table).collect();
    if texts.is_empty() {
        bail!("no text given");
    }
    Ok((texts, is_read))
}

/// One line per text: what is predicted, then all labels with their probabilities, the likeliest first; of a
/// regression only the number.
fn as_text(objective: Objective, classified: &[Classified]) -> String {
    let predicted: Vec<String> = classified.iter().map(|one| predicted(objective, one)).collect();
    let width = predicted.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (predicted, Classified { scores, .. }) in predicted.iter().zip(classified) {
        write!(text, "{predicted:<width$}").expect("invariant: a String grows");
        for one in scores.iter().filter(|_| objective != Objective::Regression) {
            let percent = 100. * one.score;
            write!(text, "   {} {percent:.1} %", one.label).expect("invariant: a String grows");
        }
        text.push('\n');
    }
    text
}

fn predicted(objective: Objective, Classified { labels, scores }: &Classified) -> String {
    match objective {
        Objective::Regression => {
            scores.iter().map(|one| format!("{:.4}", one.score)).collect::<Vec<_>>().join("   ")
        }
        _ if labels.is_empty() => NONE.to_owned(),
        _ => labels.join(", "),
    }
}

fn as_json(objective: Objective, texts: &[Text], classified: &[Classified]) -> Value {
    let one = |(text, Classified { labels, scores }): (&Text, &Classified)| {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        put("text", json!(text.text));
        if let Some(pair) = &text.text_pair {
            put("text_pair", json!(pair));
        }
        let by_label = || -> Map<_, _> {
            scores.iter().map(|one| (one.label.clone(), json!(one.score))).collect()
        };
        match objective {
            Objective::Classes => put("label", json!(labels.first())),
            Objective::Labels => put("labels", json!(labels)),
            Objective::Regression => put("value", json!(scores.first().map(|one| one.score))),
        };
        if objective != Objective::Regression {
            put("probabilities", by_label().into());
        }
        put("scores", json!(scores));
        Value::Object(object)
    };
    let all: Vec<_> = texts.iter().zip(classified).map(one).collect();
    json!({ "classified": all })
}
