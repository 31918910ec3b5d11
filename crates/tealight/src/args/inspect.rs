//! `tealight inspect`, `plot` and `attend`

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::complete;
use super::shared::Model;
use crate::charts::attention::MapSelection;

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    /// A TOML file, the name of a shipped configuration, `-` for standard input, the directory of a run, an exported folder,
    /// a Hugging Face folder, or the name of a model in Hugging Face's cache
    #[arg(value_name = "CONFIG|MODEL", required_unless_present = "list", add = ArgValueCompleter::new(complete::config))]
    pub(crate) target: Option<PathBuf>,
    /// Override a setting: `--set model.n_heads=1` (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE", add = ArgValueCompleter::new(complete::setting))]
    pub(crate) overrides: Vec<String>,
    /// List all available kinds, with a one-line description of each
    #[arg(long, conflicts_with = "target")]
    pub(crate) list: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Plot {
    /// The directories of runs; several runs share each chart, with one line per run
    #[arg(value_name = "RUN", required = true, add = ArgValueCompleter::new(complete::run))]
    pub(crate) runs: Vec<PathBuf>,
    /// Output directory [default: `plots` in the run's directory]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Use logarithmic y axes
    #[arg(long)]
    pub(crate) log: bool,
    /// Plot the mean of the runs with a band of ± 1 standard deviation
    #[arg(long)]
    pub(crate) mean: bool,
}

const ATTEND_EXAMPLES: &str = "\
Examples:
  tealight attend runs/diary \"It was sunny in Oslo.\" --maps mean
  tealight attend runs/shapes picture.png
  tealight attend folder picture.png --patch 2,5 --output maps

The map of a picture shows how much the classification attends to each patch: the attention weights of [CLS], or, \
without [CLS], the mean of the attention weights of all patches, in which a patch counts as in the read-out. The \
attention rollout multiplies the weights of all layers (Abnar & Zuidema 2020).";

#[derive(Args, Debug)]
#[command(after_help = ATTEND_EXAMPLES)]
pub(crate) struct Attend {
    #[command(flatten)]
    pub(crate) model: Model,
    /// A text, days (🌧️ ☁️ ☀️ or the letters R C S, oldest first), or a picture (PNG or JPEG)
    #[arg(value_name = "SEQUENCE")]
    pub(crate) sequence: String,
    /// Output directory [default: `attention` in the run's directory; required for a model folder]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Maps to draw per layer: mean, all, or the first N [default: all if at most 16, else the mean and 7]
    #[arg(long, value_name = "mean|all|N")]
    pub(crate) maps: Option<MapSelection>,
    /// For a picture: show what this patch attends to, in place of the classification; rows and columns count from 0
    #[arg(long, value_name = "ROW,COLUMN", value_parser = place)]
    pub(crate) patch: Option<[usize; 2]>,
    /// For a picture: draw only the attention rollout (Abnar & Zuidema 2020)
    #[arg(long, conflicts_with_all = ["json", "text", "maps"])]
    pub(crate) rollout: bool,
    /// Print the mean map of each layer in percent instead of drawing
    #[arg(long, conflicts_with_all = ["json", "maps", "output"])]
    pub(crate) text: bool,
    /// Print all maps as one JSON object instead of drawing
    #[arg(long, conflicts_with_all = ["maps", "output"])]
    pub(crate) json: bool,
}

/// Parses `ROW,COLUMN`.
fn place(text: &str) -> Result<[usize; 2], String> {
    let parsed = text
        .split_once(',')
        .and_then(|(row, column)| Some([row.trim().parse().ok()?, column.trim().parse().ok()?]));
    parsed.ok_or_else(|| "expected a row and a column, such as 0,3".to_owned())
}
