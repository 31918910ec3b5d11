//! `tealight tokenizer`: train one, and see what it does.

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
use crate::terminal::output::print;

pub(crate) fn run(args: &args::Tokenizer) -> Result<()> {
    match args {
        args::Tokenizer::Train(args) => train(args),
        args::Tokenizer::Encode(args) => encode(args),
        args::Tokenizer::Decode(args) => decode(args),
    }
}

fn train(args: &args::TrainTokenizer) -> Result<()> {
    let config = config(args)?;
    let files = Files::open(&files(args)).map_err(by_option)?;
    let documents = files.documents().map_err(by_option)?;
    let texts = documents.map(|document| Ok(document?.text));
    let tokenizer = Tokenizer::train(&config, texts).map_err(by_option)?;
    tokenizer.save(&args.output)?;
    let size = thousands(tokenizer.vocab_size() as u64);
    print(&format!("{}: {size} tokens\n", args.output.display()))
}

/// The files that were given. Where ends of lines are tokens, they are read with them.
fn files(args: &args::TrainTokenizer) -> files::Config {
    let otherwise = match args.kind.as_str() {
        "wordpiece" | "unigram" => Unit::Paragraph,
        _ => Unit::File,
    };
    let named =
        |name: &String| Unit::ALL.iter().zip(Unit::KINDS).find(|(_, kind)| kind.name == name);
    let documents = args.documents.as_ref().and_then(named).map_or(otherwise, |(unit, _)| *unit);
    files::Config {
        paths: args.files.clone(),
        documents,
        field: args.field.clone(),
        ..files::Config::default()
    }
}

/// The kind with the settings that were given.
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
            (Some(_), None) => bail!("`{option}` is no setting of `--kind {}`", args.kind),
            (None, _) => {}
        }
    }
    Ok(serde_json::from_value(settings)?)
}

/// What is said of a setting of a run's configuration, said of what sets it here.
fn by_option(error: Error) -> anyhow::Error {
    let Error::Config(fault) = error else { return error.into() };
    let options = [
        ("task.tokenizer.vocab_size", "--vocab-size"),
        ("task.corpus.documents", "--documents"),
        ("task.corpus.field", "--field"),
        ("task.corpus.paths", "FILES"),
    ];
    let said = |message: String, (key, option): &(&str, &str)| message.replace(key, option);
    anyhow!(options.iter().fold(fault.message, said))
}

fn encode(args: &args::Encode) -> Result<()> {
    let tokenizer = Tokenizer::open(&args.tokenizer)?;
    let texts = input::given(&args.texts)?;
    let encode = |text: &String| {
        if args.plain { tokenizer.encode_alone(text) } else { tokenizer.encode(text) }
    };
    let encoded = texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    print(&if args.json { as_json(&texts, &encoded) } else { as_text(&encoded) })
}

/// An id and its token on each line, and a blank line between texts.
fn as_text(encoded: &[Encoded]) -> String {
    let lines = |one: &Encoded| {
        let line = |(id, token): (&u32, &String)| format!("{id:>7}  {token}\n");
        one.ids.iter().zip(&one.tokens).map(line).collect::<String>()
    };
    encoded.iter().map(lines).collect::<Vec<_>>().join("\n")
}

fn as_json(texts: &[String], encoded: &[Encoded]) -> String {
    let one = |(text, one): (&String, &Encoded)| json!({ "text": text, "ids": one.ids, "type_ids": one.type_ids, "tokens": one.tokens });
    let texts: Vec<Value> = texts.iter().zip(encoded).map(one).collect();
    format!("{}\n", json!({ "texts": texts }))
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
    print(&format!("{}\n", tokenizer.decode(&args.ids, specials)?))
}
