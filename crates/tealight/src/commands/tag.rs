//! `tealight tag MODEL TEXT`: the tags of the words of texts.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde_json::json;
use tealight_train::data::shown::on_one_line;
use tealight_train::data::tags::{Content, Sentence, Wanted, read};
use tealight_train::inference::tagger::{Answer, Input, Span, Strategy, Tagging, WordTag};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::token_classification::{Request, TokenClassification};

use crate::args::predict as args;
use crate::runs::input_warnings::warn_of_unknown;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input;
use crate::terminal::numbers::counted;
use crate::terminal::output::{log, print, print_json};

/// Printed for a text without any tag.
const NONE: &str = "–";

pub(crate) fn run(args: &args::Tag) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    if args.words && args.strategy != Strategy::Word {
        bail!("`--words` gives each word the tag of its first token: leave out `--strategy`");
    }
    let (model, device) = open_model(&args.model)?;
    let pipeline = TokenClassification::open(&model, &device)?;
    let sentences = if args.words { sentences(args)? } else { Vec::new() };
    let inputs: Vec<Input> = if args.words {
        sentences.iter().map(|(words, _)| Input::Words(words.clone())).collect()
    } else {
        let texts = input::texts(&args.texts, args.file.as_deref())?;
        texts.into_iter().map(Input::Text).collect()
    };
    let tagging =
        Tagging { strategy: args.strategy, stride: args.stride, ignored: args.ignore.clone() };
    let request = Request { inputs, tagging };
    let mut answers = pipeline.answer(&request)?;
    warn(&pipeline, &request.inputs, &answers)?;
    let least = args.threshold.unwrap_or(0.);
    for answer in &mut answers {
        answer.spans.retain(|span| span.score >= least);
    }
    if args.words {
        return of_words(args, &sentences, &answers);
    }
    if args.json {
        let spans: Vec<&[Span]> = answers.iter().map(|answer| &answer.spans[..]).collect();
        // Standard input may have any number of lines.
        let is_one = args.file.is_none() && matches!(&args.texts[..], [text] if text != "-");
        return match spans[..] {
            [only] if is_one => print_json(&only),
            _ => print_json(&spans),
        };
    }
    print(&as_text(&answers))
}

/// Words with their tags, if these are given.
type Words = (Vec<String>, Vec<String>);

/// The sentences of the arguments, as words, and those of the file.
fn sentences(args: &args::Tag) -> Result<Vec<Words>> {
    let given = if args.texts.is_empty() { Vec::new() } else { input::texts(&args.texts, None)? };
    let split = |text: &String| (text.split_whitespace().map(str::to_owned).collect(), Vec::new());
    let mut sentences: Vec<Words> = given.iter().map(split).collect();
    let Some(path) = &args.file else { return Ok(sentences) };
    let wanted = Wanted { needs_tags: false, ..Wanted::default() };
    let read = read("--file", path, &wanted, None)?;
    read.notes.iter().for_each(|note| log(note));
    sentences.extend(read.all.into_iter().map(|Sentence { content, .. }| match content {
        Content::Words { words, tags } => (words, tags),
        Content::Text { text, .. } => split(&text),
    }));
    Ok(sentences)
}

/// Says what the model does not know, and that long texts were read in pieces.
fn warn(pipeline: &TokenClassification, inputs: &[Input], answers: &[Answer]) -> Result<()> {
    let all: Vec<String> = inputs
        .iter()
        .map(|input| match input {
            Input::Text(text) => text.clone(),
            Input::Words(words) => words.join(" "),
        })
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    warn_of_unknown(pipeline.tokenizer(), &all)?;
    let long = answers.iter().filter(|answer| answer.n_pieces > 1);
    let (n, n_pieces) = long.fold((0, 0), |(n, pieces), one| (n + 1, pieces + one.n_pieces));
    if n > 0 {
        log(&format!(
            "{} longer than the model reads at once: read in {n_pieces} overlapping pieces",
            counted(n, "text")
        ));
    }
    Ok(())
}

/// A line for each tagged part: the text, its tag, its characters, and the probability.
fn as_text(answers: &[Answer]) -> String {
    let mut text = String::new();
    for (at, answer) in answers.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        if answer.spans.is_empty() {
            let _ = writeln!(text, "{NONE}");
        }
        let place = |span: &Span| format!("{}-{}", span.start, span.end);
        let shown =
            |span: &Span| [&span.word, &span.label].map(|text| on_one_line(text).into_owned());
        let widths = answer.spans.iter().fold([0; 3], |widths, span| {
            let [word, label] = shown(span).map(|text| text.chars().count());
            let lens = [word, label, place(span).len()];
            std::array::from_fn(|i| widths[i].max(lens[i]))
        });
        let [word, label, places] = widths;
        for span in &answer.spans {
            let [shown, tag] = shown(span);
            let _ = writeln!(
                text,
                "{shown:<word$}  {tag:<label$}  {:>places$}  {:.3}",
                place(span),
                span.score
            );
        }
    }
    text
}

fn of_words(args: &args::Tag, sentences: &[Words], answers: &[Answer]) -> Result<()> {
    if args.json {
        let tagged = |((words, _), answer): (&Words, &Answer)| {
            let words = words.iter().zip(&answer.words);
            let word = |(word, WordTag { tag, score }): (&String, &WordTag)| json!({ "word": word, "tag": tag, "score": score });
            words.map(word).collect::<Vec<_>>()
        };
        return print_json(&sentences.iter().zip(answers).map(tagged).collect::<Vec<_>>());
    }
    // A word and a tag may hold blanks.
    let has_blanks = |text: &String| text.is_empty() || text.contains(char::is_whitespace);
    let mut separator = " ";
    for (number, ((words, tags), answer)) in (1..).zip(sentences.iter().zip(answers)) {
        let found = answer.words.iter().map(|one| &one.tag);
        let mut all = words.iter().chain(tags).chain(found);
        if let Some(wrong) =
            all.clone().find(|text| args.conll && text.contains(['\t', '\n', '\r']))
        {
            bail!(
                "sentence {number}: {wrong:?} holds a tab or a line end, and columns cannot: use `--json`"
            );
        }
        if all.any(has_blanks) {
            separator = "\t";
        }
    }
    let mut text = String::new();
    for ((words, tags), answer) in sentences.iter().zip(answers) {
        let lines = words.iter().zip(&answer.words).enumerate().map(|(at, (word, found))| {
            if !args.conll {
                return format!("{word}/{}", found.tag);
            }
            let given = tags.get(at).into_iter().map(String::as_str);
            [&**word]
                .into_iter()
                .chain(given)
                .chain([&*found.tag])
                .collect::<Vec<_>>()
                .join(separator)
        });
        let lines: Vec<String> = lines.collect();
        let [between, end] = if args.conll { ["\n", "\n\n"] } else { [" ", "\n"] };
        text += &lines.join(between);
        text += end;
    }
    print(&text)
}
