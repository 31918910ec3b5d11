//! `tealight explain`

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::complete;

const EXAMPLES: &str = "\
Examples:
  tealight explain                           the tables of the file
  tealight explain model.attention           its kinds
  tealight explain model.attention.local     a kind, with its settings
  tealight explain training.precision";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// A key with its tables, such as `model.attention.window` [default: list all tables]
    #[arg(add = ArgValueCompleter::new(complete::key))]
    pub(crate) key: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
