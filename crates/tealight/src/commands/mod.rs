//! One file or folder per subcommand, and which of them a command line asks for.

mod attend;
mod checkpoint;
mod classify;
mod completions;
mod devices;
mod doctor;
mod embed;
mod evaluate;
mod explain;
mod export;
mod fill_mask;
mod forecast;
mod generate;
mod info;
mod init;
mod inspect;
mod man;
mod mine;
mod plot;
mod report;
mod rerank;
mod schema;
mod tag;
mod tokenizer;
mod train;
mod translate;
mod verify_resume;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Command;
use crate::{ablate, atlas, bench, serve};

/// Runs a command.
pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Train(args) => return train::run(args),
        Command::Bench(args) => return bench::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::VerifyResume(args) => verify_resume::run(args),
        Command::Ablate(args) => ablate::run(args),
        Command::Atlas(args) => atlas::run(args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Forecast(args) => forecast::run(args),
        Command::Plot(args) => plot::run(args),
        Command::Report(args) => report::run(args),
        Command::Attend(args) => attend::run(args),
        Command::Translate(args) => translate::run(args),
        Command::Tokenizer(args) => tokenizer::run(args),
        Command::Classify(args) => classify::run(args),
        Command::Tag(args) => tag::run(args),
        Command::Embed(args) => embed::run(args),
        Command::Mine(args) => mine::run(args),
        Command::Rerank(args) => rerank::run(args),
        Command::FillMask(args) => fill_mask::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Export(args) => export::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Info(args) => info::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Init(args) => init::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Schema => schema::run(),
        Command::Completions { shell } => completions::run(*shell),
        Command::Man(args) => man::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}
