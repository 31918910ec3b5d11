//! `tealight completions SHELL`

use anyhow::Result;
use clap::CommandFactory;

use crate::args::{Arguments, Completions};
use crate::terminal::output::print;

pub(crate) fn run(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), "tealight", &mut script);
    print(&String::from_utf8_lossy(&script))
}
