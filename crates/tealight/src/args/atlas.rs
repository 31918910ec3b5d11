//! `tealight atlas`

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::shared::positive;

const EXAMPLES: &str = "\
Examples:
  tealight atlas --dry-run                                   what is to train and, once a cell is finished, about how long
  tealight atlas --panels recall --kinds softmax,deltanet    some cells
  tealight atlas --jobs 2                                    all of them; the same command goes on
  tealight atlas --merge atlas.json --check 5                five recorded cells again";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Atlas {
    /// A plan: panels, kinds, rates, seeds [default: the one that is part of the program, configs/atlas.toml]
    #[arg(value_name = "PLAN", value_hint = ValueHint::FilePath)]
    pub(crate) plan: Option<PathBuf>,
    /// Only these panels of the plan
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) panels: Option<Vec<String>>,
    /// Only these kinds of the plan
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) kinds: Option<Vec<String>>,
    /// Number of runs to train in parallel
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive::<usize>, conflicts_with = "check")]
    pub(crate) jobs: usize,
    /// Folder for runs, tables and the page [default: runs/atlas]
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Also take the cells of this record, an `atlas.json`, that are missing (may be repeated)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) merge: Vec<PathBuf>,
    /// List what is to train, and stop before training
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Train this many recorded cells again, which the date chooses, and compare them with the record
    #[arg(long, value_name = "N", conflicts_with = "dry_run", value_parser = positive::<usize>)]
    pub(crate) check: Option<usize>,
    /// Print the record as one JSON object
    #[arg(long, conflicts_with_all = ["dry_run", "check"])]
    pub(crate) json: bool,
}
