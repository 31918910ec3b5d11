//! `tealight man DIR`: a manual page of the program and of each command.

use std::fs;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use tealight_train::storage::files::replace;

use crate::args::{self, Arguments};
use crate::system::version::VERSION;
use crate::terminal::output::print_paths;

pub(crate) fn run(args: &args::program::Man) -> Result<()> {
    let directory = &args.directory;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create `{}`", directory.display()))?;
    let mut program = Arguments::command().disable_help_subcommand(true);
    // `-V` says what this machine has.
    program = program.version(VERSION).long_version(VERSION);
    program.build();
    let mut pages = Vec::new();
    write(&program, "tealight", &mut pages)?;
    let paths: Vec<_> = pages.iter().map(|(name, _)| directory.join(name)).collect();
    for (path, (_, page)) in paths.iter().zip(&pages) {
        replace(path, page)?;
    }
    print_paths(&paths)
}

/// The pages of a command and of the commands below it: `tealight-checkpoint-ls.1`.
fn write(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let mut page = Vec::new();
    Man::new(command.clone()).title(name.to_uppercase()).render(&mut page)?;
    pages.push((format!("{name}.1"), page));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(below, &format!("{name}-{}", below.get_name()), pages)?;
    }
    Ok(())
}
