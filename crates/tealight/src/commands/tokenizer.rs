//! `tealight tokenizer`: trains a tokenizer, encodes and decodes texts.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tealight_model::names::Named;
use tealight_train::Error;
use tealight_train::task::table::thousands;
use tealight_train::text::corpus::Corpus;
use tealight_train::text::corpus::files::{self, Files, Unit};
use tealight_train::text::tokenizer::{Encoded, Specials, Tokenizer, TokenizerConfig};

use crate::args::tokenizer as args;
use crate::terminal::input;
use crate::terminal::output::{log, print, print_json};

pub(crate) fn run(args: &args::Tokenizer) -> Result<()> {
    match args {
        args::Tokenizer::Train(args) => train(args),
        args::Tokenizer::Encode(args) => encode(args),
        args::Tokenizer::Decode(args) => decode(args),
    }
}

fn train(args: &args::TrainTokenizer) -> Result<()> {
    let config = config(args)?;
    let files = Files::open(&files(args)).map_err(name_options)?;
    let documents = files.documents().map_err(name_options)?;
    let texts = documents.map(|document| Ok(document?.text));
    let tokenizer = Tokenizer::train(&config, texts).map_err(name_options)?;
    tokenizer.save(&args.output)?;
    for note in files.notes() {
        log(&note);
    }
    let size = thousands(tokenizer.vocab_size() as u64);
    print(&format!("{}: {size} tokens\n", args.output.display()))
}

/// The text files. Tokenizers with tokens for line breaks read whole files by default.
fn files(args: &args::TrainTokenizer) -> files::Config {
    let default = match args.kind.as_str() {
        "wordpiece" | "unigram" => Unit::Paragraph,
        _ => Unit::File,
    };
    let named = |name: &String| Unit::ALL.iter().find(|unit| unit.name() == name);
    let documents = *args.documents.as_ref().and_then(named).unwrap_or(&default);
    files::Config {
        paths: args.files.clone(),
        documents,
        field: args.field.clone(),
        ..files::Config::default()
    }
}

/// The chosen kind with the given settings.
fn config(args: &args::TrainTokenizer) -> Result<TokenizerConfig> {
    let default =
        TokenizerConfig::default_of(&args.kind).context("invariant: clap knows the kinds")?;
    let mut settings = serde_json::to_value(default)?;
    for (option, key, value) in [
        ("--vocab-size", "vocab_size", args.vocab_size.map(Value::from)),
        ("--min-frequency", "min_frequency", args.min_frequency.map(Value::from)),
        ("--lowercase", "lowercase", args.lowercase.then(|| json!(true))),
        ("--strip-accents", "strip_accents", args.strip_accents.then(|| json!(true))),
    ] {
        match (value, settings.get_mut(key)) {
            (Some(value), Some(setting)) => *setting = value,
            (Some(_), None) => bail!("`{option}` is not a setting of `--kind {}`", args.kind),
            (None, _) => {}
        }
    }
    Ok(serde_json::from_value(settings)?)
}

/// Replaces the configuration keys of an error by the options of this command.
fn name_options(error: Error) -> anyhow::Error {
    let Error::Config(fault) = error else { return error.into() };
    let options = [
        ("task.tokenizer.vocab_size", "--vocab-size"),
        ("task.corpus.documents", "--documents"),
        ("task.corpus.field", "--field"),
        ("task.corpus.paths", "FILES"),
    ];
    let rename = |message: String, (key, option): &(&str, &str)| message.replace(key, option);
    anyhow!(options.iter().fold(fault.message, rename))
}

fn encode(args: &args::Encode) -> Result<()> {
    let tokenizer = Tokenizer::open(&args.tokenizer)?;
    let texts = input::texts(&args.texts, None)?;
    let encode = |text: &String| {
        if args.plain { tokenizer.encode_alone(text) } else { tokenizer.encode(text) }
    };
    let encoded = texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        return print_json(&as_json(&texts, &encoded));
    }
    print(&as_text(&encoded))
}

/// One id and token per line, with a blank line between texts.
fn as_text(encoded: &[Encoded]) -> String {
    let lines = |one: &Encoded| {
        let line = |(id, token): (&u32, &String)| format!("{id:>7}  {token}\n");
        one.ids.iter().zip(&one.tokens).map(line).collect::<String>()
    };
    encoded.iter().map(lines).collect::<Vec<_>>().join("\n")
}

fn as_json(texts: &[String], encoded: &[Encoded]) -> Value {
    let object = |(text, Encoded { ids, type_ids, tokens, .. }): (&String, &Encoded)| json!({ "text": text, "ids": ids, "type_ids": type_ids, "tokens": tokens });
    json!({ "texts": texts.iter().zip(encoded).map(object).collect::<Vec<_>>() })
}

fn decode(args: &args::Decode) -> Result<()> {
    let tokenizer = Tokenizer::open(&args.tokenizer)?;
    if let Some(id) = args.ids.iter().find(|&&id| tokenizer.token(id).is_none()) {
        bail!(
            "no token has the id {id}; the largest is {}",
            tokenizer.vocab_size().saturating_sub(1)
        );
    }
    let specials = if args.skip_special { Specials::Skip } else { Specials::Keep };
    let text = tokenizer.decode(&args.ids, specials)?;
    if args.json {
        return print_json(&json!({ "ids": args.ids, "text": text }));
    }
    print(&format!("{text}\n"))
}
