//! `tealight report`

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::shared::Weights;

const EXAMPLES: &str = "\
Examples:
  tealight report runs/dotmod
  tealight report runs/dotmod runs/dotmod-2 --output comparison.html
  tealight report runs/ablations/dotmod

The page is one file that loads nothing. Attention maps are computed from a checkpoint; a page of several runs has \
none.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Report {
    /// The directories of runs, or the directory of an ablation; several runs share each chart
    #[arg(value_name = "RUN", required = true, value_hint = ValueHint::DirPath)]
    pub(crate) runs: Vec<PathBuf>,
    /// Output file [default: `report.html` in the directory of the run; for several runs, in the current directory]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Leave out attention maps, so that no weights have to be loaded
    #[arg(long)]
    pub(crate) no_attention: bool,
    #[command(flatten)]
    pub(crate) weights: Weights,
}
