//! `tealight bench`: time and memory of training steps, attention layers, matrix products,
//! predictions and embeddings.

mod attention;
mod comm;
mod embed;
mod fill_mask;
mod operations;
mod product;
mod times;
mod train;

use std::env;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tealight_ops::threads;

use crate::args::bench::Bench;
use crate::system::subprocess::{THREADS, this_program};

pub(crate) fn run(bench: &Bench) -> Result<ExitCode> {
    let threads = match bench {
        Bench::Train(args) => args.options.threads,
        Bench::Product(args) => args.options.threads,
        Bench::FillMask(args) => args.options.threads,
        Bench::Embed(args) => args.options.threads,
        // `bench attention` measures in subprocesses anyway.
        Bench::Attention(_) | Bench::AttentionOnce { .. } | Bench::Comm(_) => None,
    };
    // A system that grants fewer threads would do so again: the variable prevents a second restart.
    let requested = env::var(THREADS).ok();
    let differs = |threads: &usize| {
        *threads != threads::count() && requested.as_deref() != Some(&threads.to_string())
    };
    if let Some(threads) = threads.filter(differs) {
        return restart_with_threads(threads);
    }
    match bench {
        Bench::Train(args) => return train::run(args),
        Bench::Comm(args) => return comm::run(args),
        Bench::Product(args) => product::run(args),
        Bench::FillMask(args) => fill_mask::run(args),
        Bench::Embed(args) => embed::run(args),
        Bench::Attention(args) => attention::run(args),
        Bench::AttentionOnce { args } => attention::layer::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the same command in a subprocess: the number of threads is fixed when a process starts.
fn restart_with_threads(threads: usize) -> Result<ExitCode> {
    let mut command = this_program()?;
    command.args(env::args_os().skip(1)).env(THREADS, threads.to_string());
    let status = command.status().context("cannot start a subprocess")?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        // The subprocess has reported its errors itself.
        Some(code) => Ok(ExitCode::from(code)),
        None => bail!("the benchmark ended by {status}, possibly out of memory"),
    }
}
