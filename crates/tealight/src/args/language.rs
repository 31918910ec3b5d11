//! `tealight fill-mask`, `generate` and `export`

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tealight_train::run::Selection;

use super::Model;

const FILL_MASK_EXAMPLES: &str = "\
Examples:
  tealight fill-mask runs/diary \"Today it was [MASK] in Kyoto.\"
  tealight fill-mask bert-base-uncased \"Paris is the [MASK] of France.\" --top-k 3 --json
  tealight fill-mask runs/diary --file sentences.txt --targets rainy,sunny

Both [MASK] and <mask> are understood, whatever the tokenizer calls its mask. Scores are probabilities, as in \
the fill-mask pipeline of transformers.";

#[derive(Args, Debug)]
#[command(after_help = FILL_MASK_EXAMPLES)]
pub(crate) struct FillMask {
    #[command(flatten)]
    pub(crate) model: Model,
    /// Texts with `[MASK]` for each gap; `-` reads a text from each line of standard input
    #[arg(value_name = "TEXT", required_unless_present = "file")]
    pub(crate) texts: Vec<String>,
    /// Read a text from each line of this file
    #[arg(long)]
    pub(crate) file: Option<PathBuf>,
    /// How many candidates for each mask
    #[arg(long, value_name = "K", default_value = "5")]
    pub(crate) top_k: NonZeroUsize,
    /// Score only these words
    #[arg(long, value_name = "WORD,…", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// Print JSON as the pipeline of transformers returns it
    #[arg(long)]
    pub(crate) json: bool,
}

const GENERATE_EXAMPLES: &str = "\
Examples:
  tealight generate runs/shakespeare_cpu \"ROMEO:\" --max-tokens 200 --temperature 0.8 --top-p 0.95
  tealight generate gpt2 \"The weather today\" --greedy --stop \".\"

The text appears as it is written. The same seed writes the same text.";

#[derive(Args, Debug)]
#[command(after_help = GENERATE_EXAMPLES)]
pub(crate) struct Generate {
    #[command(flatten)]
    pub(crate) model: Model,
    /// What the text begins with; `-` reads it from standard input; empty begins from nothing
    #[arg(value_name = "PROMPT", default_value = "")]
    pub(crate) prompt: String,
    /// Write at most so many tokens
    #[arg(long, value_name = "N", default_value = "200")]
    pub(crate) max_tokens: NonZeroUsize,
    /// Below 1 the likely becomes likelier, above 1 all becomes alike; 0 always takes the likeliest
    #[arg(long, default_value_t = 1., allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Always take the likeliest token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    pub(crate) greedy: bool,
    /// Choose among the K likeliest tokens only
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Choose among the likeliest tokens that have this probability together
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f64>,
    /// Choose among the tokens that have at least this share of the likeliest one's probability
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f64>,
    /// Above 1, tokens that are there already become less likely
    #[arg(long, value_name = "R", default_value_t = 1., allow_negative_numbers = true)]
    pub(crate) repetition_penalty: f64,
    /// End before this text (may be given several times)
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// How many texts, written side by side
    #[arg(long, short, value_name = "N", default_value = "1", value_parser = super::count)]
    pub(crate) n: usize,
    /// Seed of the sampling
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Export {
    /// A run, a checkpoint, or a folder of a model
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// The folder that is written; it must not exist yet
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: PathBuf,
    /// Which checkpoint of a run: latest, best, or a step; the configuration's choice unless given
    #[arg(long)]
    pub(crate) checkpoint: Option<Selection>,
    /// For `transformers`, for Tealight, or for the first that can express the model
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) format: ExportFormat,
}

/// What an exported folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// `transformers` where it has a class for the model, else Tealight
    Auto,
    /// `transformers`, or an error
    Hf,
    /// Tealight
    Tealight,
}
