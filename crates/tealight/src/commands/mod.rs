//! One file per subcommand.

pub(crate) mod ablate;
pub(crate) mod attend;
pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod evaluate;
pub(crate) mod export;
pub(crate) mod fill_mask;
pub(crate) mod forecast;
pub(crate) mod generate;
pub(crate) mod inspect;
mod language;
mod listops;
mod load;
pub(crate) mod plot;
mod presented;
mod seq2seq;
mod texts;
pub(crate) mod tokenizer;
pub(crate) mod train;
pub(crate) mod translate;
pub(crate) mod verify_resume;
mod weather;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use tealight_train::pretrained::Pretrained;

use crate::console::log;

/// Writes the paths of pictures to stdout, a line each.
pub(crate) fn print_paths(paths: &[PathBuf]) -> Result<()> {
    let lines = paths.iter().map(|path| format!("{}\n", path.display()));
    print(&lines.collect::<String>())
}

/// Writes a result to stdout. A reader that has seen enough and left is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the result"),
    }
}

/// Says what a person should know of a model from elsewhere: what was not read, what is not kept.
fn note(model: &Pretrained) {
    for note in model.hf.iter().flat_map(|hf| &hf.notes) {
        log(&format!("{}: {note}", model.origin.display()));
    }
}
