//! `tealight explain`

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  tealight explain                           the tables of the file
  tealight explain model.attention           its kinds
  tealight explain model.attention.local     a kind, with its settings
  tealight explain training.precision";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// A key of the file, with its tables: `model.attention.window` [default: lists the tables]
    pub(crate) key: Option<String>,
}
