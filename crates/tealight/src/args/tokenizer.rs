//! `tealight tokenizer`

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use tealight_model::names::Named;
use tealight_train::text::corpus::files::Unit;
use tealight_train::text::tokenizer::TokenizerConfig;

use super::examples;
use super::shared::positive;

#[derive(Debug, Subcommand)]
pub(crate) enum Tokenizer {
    /// Train a tokenizer on text files and save it as a tokenizer.json
    Train(TrainTokenizer),
    /// Print the ids and tokens of texts, one token per line
    #[command(after_help = examples::ENCODE)]
    Encode(Encode),
    /// Print the text of token ids
    #[command(after_help = examples::DECODE)]
    Decode(Decode),
}

const EXAMPLES: &str = "\
Examples:
  tealight tokenizer train --kind wordpiece --vocab-size 8000 books/*.txt -o tokenizer.json
  tealight tokenizer train --kind unigram --vocab-size 4000 japanese.txt -o ja.json
  tealight tokenizer encode tokenizer.json \"The sun [MASK].\"
  tealight tokenizer decode tokenizer.json 2 96 4 3

The same files and settings give the same tokenizer.json. `PreTrainedTokenizerFast` of transformers can \
load it. Training reads at most the first 256 MiB of text.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TrainTokenizer {
    /// Tokenizer algorithm
    #[arg(long, value_parser = trainable(), default_value = "wordpiece")]
    pub(crate) kind: String,
    /// Maximum vocabulary size [default: 8000]
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    pub(crate) vocab_size: Option<usize>,
    /// Minimum frequency of a pair to be merged, and of a character to be in the alphabet
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    pub(crate) min_frequency: Option<usize>,
    /// Convert texts to lower case
    #[arg(long)]
    pub(crate) lowercase: bool,
    /// Strip combining marks: é becomes e, but also が becomes か
    #[arg(long)]
    pub(crate) strip_accents: bool,
    /// How a .txt file is split into documents; `file` keeps line breaks [default: file; paragraph for
    /// wordpiece and unigram]
    #[arg(long, value_parser = units())]
    pub(crate) documents: Option<String>,
    /// Field of a .jsonl line that holds the text [default: text]
    #[arg(long, value_name = "NAME")]
    pub(crate) field: Option<String>,
    /// UTF-8 .txt or .jsonl files, optionally compressed (.gz, .zst), glob patterns, or folders
    #[arg(value_name = "FILES", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Output file
    #[arg(long, short, value_name = "FILE", default_value = "tokenizer.json")]
    pub(crate) output: PathBuf,
}

/// The kinds that can be trained.
fn trainable() -> PossibleValuesParser {
    let kinds = TokenizerConfig::KINDS.iter().map(|kind| kind.name);
    PossibleValuesParser::new(kinds.filter(|name| *name != "file"))
}

/// The kinds of documents.
fn units() -> PossibleValuesParser {
    PossibleValuesParser::new(Unit::KINDS.iter().map(|kind| kind.name))
}

#[derive(Args, Debug)]
pub(crate) struct Encode {
    /// A tokenizer.json, a run, or a folder saved by transformers
    #[arg(value_name = "TOKENIZER")]
    pub(crate) tokenizer: PathBuf,
    /// Texts to encode; `-` reads one text per line from standard input
    #[arg(value_name = "TEXT", required = true)]
    pub(crate) texts: Vec<String>,
    /// Do not add special tokens
    #[arg(long)]
    pub(crate) plain: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Decode {
    /// A tokenizer.json, a run, or a folder saved by transformers
    #[arg(value_name = "TOKENIZER")]
    pub(crate) tokenizer: PathBuf,
    /// Token ids
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<u32>,
    /// Omit special tokens from the text
    #[arg(long)]
    pub(crate) skip_special: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
