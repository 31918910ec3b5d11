//! `tealight`: train, compare and use small transformers from the command line.
//!
//! The program is a library with one function, [`main`], so that a fuzz target can call what answers requests
//! ([`Rehearsal`]). The library for other programs is `tealight-train`.

mod ablate;
mod args;
mod atlas;
mod bench;
mod charts;
mod commands;
mod report;
mod runs;
mod serve;
mod shipped;
mod starter;
mod system;
mod terminal;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;

use args::{Arguments, Command};
use system::memory;
use system::version::{VERSION, instruction_sets};
use tealight_ops::{check_instructions, threads, with_product_precision};
use tealight_train::communicator::mpi;
use terminal::failure;
use terminal::numbers::{counted, format_bytes};
use terminal::output::log;
use terminal::verbosity::is_verbose;

pub use serve::rehearsal::Rehearsal;

/// Does what the arguments of the process ask for, and returns its exit status.
pub fn main() -> ExitCode {
    let started = Instant::now();
    args::complete::answer_shell();
    failure::hide_caught_panics();
    let Arguments { output, command } = Arguments::of_process();
    output.verbosity().choose();
    if command.keeps_freed_memory() {
        tealight_ops::allocator::keep_freed_memory();
    }
    let precision = command.product_precision();
    let model = command.model().map(Path::to_owned);
    let result = check_instructions()
        .and_then(|()| threads::check())
        .map_err(anyhow::Error::msg)
        .and_then(|()| check_launch(&command))
        .map(|()| log_computation())
        .and_then(|()| with_product_precision(precision, || commands::run(&command)));
    log_cost(started);
    result.unwrap_or_else(|error| failure::report(&failure::naming(model.as_deref(), error)))
}

/// Under `--verbose`: what computes.
fn log_computation() {
    if is_verbose() {
        let threads = counted(threads::count(), "thread");
        log(&format!("tealight {VERSION} on {} with {threads}", instruction_sets()));
    }
}

/// Under `--verbose`: the time that a command took, and its memory.
fn log_cost(started: Instant) {
    if !is_verbose() {
        return;
    }
    let peak = memory::peak().map(|bytes| format_bytes(bytes as f64));
    let peak = peak.map_or(String::new(), |peak| format!(", at most {peak} of memory"));
    log(&format!("{:.2} s{peak}", started.elapsed().as_secs_f64()));
}

/// Refuses several processes of a command that is a single one.
fn check_launch(command: &Command) -> anyhow::Result<()> {
    match mpi::launched_together() {
        Some(launcher) if !command.is_distributed() => bail!(
            "{launcher}, and only `tealight train`, `bench train` and `bench comm` are commands of several; start this \
             one without the launcher, or set `TEALIGHT_MPI` to `none` to run it in each process"
        ),
        _ => Ok(()),
    }
}
