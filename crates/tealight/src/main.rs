//! `tealight`: train, compare and use small transformers from the command line.

mod args;
mod child;
mod commands;
mod console;
mod device;
mod failure;
mod interrupt;
mod list;
mod memory;
mod pictures;
mod room;
mod summary;
mod table;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

#[global_allocator]
static ALLOCATOR: tealight_ops::allocator::Allocator = tealight_ops::allocator::Allocator;

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    if command.keeps_freed_memory() {
        tealight_ops::allocator::keep_freed_memory();
    }
    let result = match command {
        Command::Train(args) => return failure::ended(commands::train::run(&args)),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Checkpoint(args) => commands::checkpoint::run(&args),
        Command::VerifyResume(args) => commands::verify_resume::run(&args),
        Command::Ablate(args) => commands::ablate::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Evaluate(args) => commands::evaluate::run(&args),
        Command::Forecast(args) => commands::forecast::run(&args),
        Command::Plot(args) => commands::plot::run(&args),
        Command::Attend(args) => commands::attend::run(&args),
        Command::Translate(args) => commands::translate::run(&args),
        Command::Tokenizer(args) => commands::tokenizer::run(&args),
        Command::Classify(args) => commands::classify::run(&args),
        Command::FillMask(args) => commands::fill_mask::run(&args),
        Command::Generate(args) => commands::generate::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Devices => commands::devices::run(),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
    };
    failure::ended(result.map(|()| ExitCode::SUCCESS))
}
