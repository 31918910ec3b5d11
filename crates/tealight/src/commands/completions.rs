//! `tealight completions SHELL`

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::terminal::output::print;

pub(crate) fn run(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tealight", &mut script);
    print(&String::from_utf8_lossy(&script))
}
