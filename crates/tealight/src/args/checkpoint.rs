//! `tealight checkpoint` and `tealight export`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use tealight_train::run::Selection;

use super::shared::{RunPath, positive};
use super::{complete, examples};

#[derive(Debug, Subcommand)]
pub(crate) enum Checkpoint {
    /// List the checkpoints of a run
    #[command(visible_alias = "list", after_help = examples::LS)]
    Ls(ReadCheckpoints),
    /// Verify the digests of all checkpoints; exits with an error if one is damaged
    #[command(after_help = examples::VERIFY)]
    Verify(ReadCheckpoints),
    /// Remove all checkpoints except the latest and the best
    #[command(after_help = examples::PRUNE)]
    Prune(PruneCheckpoints),
    /// Export the mean of the weights of several checkpoints
    #[command(after_help = examples::AVERAGE)]
    Average(AverageCheckpoints),
}

#[derive(Args, Debug)]
pub(crate) struct ReadCheckpoints {
    #[command(flatten)]
    pub(crate) run: RunPath,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PruneCheckpoints {
    #[command(flatten)]
    pub(crate) run: RunPath,
    /// Number of latest checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive::<usize>)]
    pub(crate) keep: usize,
}

#[derive(Args, Debug)]
pub(crate) struct AverageCheckpoints {
    #[command(flatten)]
    pub(crate) run: RunPath,
    /// Output folder; it must be empty or not exist
    #[arg(
        long,
        short = 'o',
        visible_alias = "output",
        value_name = "FOLDER",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) to: PathBuf,
    /// Number of latest checkpoints to average
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive::<usize>)]
    pub(crate) last: usize,
    /// Average the checkpoints of these steps instead of the latest
    #[arg(long, value_name = "STEP,STEP…", value_delimiter = ',', conflicts_with = "last")]
    pub(crate) steps: Vec<u64>,
    /// Format of the output folder
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) format: ExportFormat,
}

#[derive(Args, Debug)]
pub(crate) struct Export {
    /// A run, a checkpoint, a model folder, or the name of a model in Hugging Face's cache
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(complete::run))]
    pub(crate) model: PathBuf,
    /// Output folder; it must be empty or not exist
    #[arg(
        long,
        short = 'o',
        visible_alias = "output",
        value_name = "FOLDER",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) to: PathBuf,
    /// Checkpoint of the run: latest, best, or a step [default: `checkpoint.select` of the run]
    #[arg(long)]
    pub(crate) checkpoint: Option<Selection>,
    /// Format of the output folder
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) format: ExportFormat,
    /// With `--format onnx`: give the decoder a KV cache as inputs and outputs
    #[arg(long)]
    pub(crate) cache: bool,
    /// With `--format onnx`: give the vectors of texts, too, as `sentence_embedding`: pooled, mapped and normalised as the
    /// model says
    #[arg(long)]
    pub(crate) pooled: bool,
    /// With `--format onnx`: round weights to integers of 8 bits, and write `onnx/model_quantized.onnx`
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) quantize: Option<Quantization>,
    #[command(flatten)]
    pub(crate) card: CardFields,
}

/// The format of the weights of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantization {
    /// Linear maps on integers of 8 bits: a scale for each output of a weight, inputs as they come
    Int8,
}

/// What the model card of an exported folder says in addition to what the run records.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model card")]
pub(crate) struct CardFields {
    /// Licence of the weights, as Hugging Face abbreviates it: apache-2.0, mit, cc-by-4.0
    #[arg(long, value_name = "ID", value_parser = identifier)]
    pub(crate) license: Option<String>,
    /// Language of the texts, such as en or ja (may be repeated) [default: of generated diaries, their languages]
    #[arg(long, value_name = "CODE", value_parser = identifier)]
    pub(crate) language: Vec<String>,
    /// Data set on Hugging Face that the model was trained on (may be repeated)
    #[arg(long, value_name = "NAME", value_parser = identifier)]
    pub(crate) dataset: Vec<String>,
}

/// Parses a name of letters, digits and `-_./`.
fn identifier(text: &str) -> Result<String, String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !text.is_empty() && text.chars().all(is_known) {
        return Ok(text.to_owned());
    }
    Err("expected letters, digits and - _ . /".to_owned())
}

/// The format of an exported folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// For `transformers` if it has a class for the model, otherwise for Tealight
    Auto,
    /// For `transformers`; an error if it has no class for the model
    Hf,
    /// For Tealight
    Tealight,
    /// A graph in `onnx/model.onnx`, for onnxruntime, Optimum and transformers.js
    Onnx,
}
