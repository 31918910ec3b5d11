//! The command line: subcommands and their arguments.

pub(crate) mod ablate;
pub(crate) mod atlas;
pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod complete;
mod examples;
pub(crate) mod explain;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod predict;
pub(crate) mod program;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod shared;
pub(crate) mod tokenizer;
pub(crate) mod train;

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, ColorChoice, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tealight_ops::ProductPrecision;
use tealight_train::config::reference;

use self::ablate::Ablate;
use self::atlas::Atlas;
use self::bench::{Bench, BenchEmbed, BenchFillMask, BenchProduct};
use self::checkpoint::{Checkpoint, Export};
use self::explain::Explain;
use self::init::Init;
use self::inspect::{Attend, Inspect, Plot};
use self::predict::{Classify, Embed, FillMask, Forecast, Generate, Mine, Rerank, Tag, Translate};
use self::program::{Devices, Info, Man};
use self::report::Report;
use self::serve::Serve;
use self::tokenizer::Tokenizer;
use self::train::{Doctor, Evaluate, Train, VerifyResume};
use crate::system::{variables, version};
use crate::terminal::style;
use crate::terminal::verbosity::Verbosity;

/// Train, compare and use small transformers from the command line.
#[derive(Debug, Parser)]
#[command(about, max_term_width = 100, after_long_help = variables::help())]
#[command(version = version::details(), long_version = version::VERSION)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How every command writes.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    /// When to use colours in errors and in the progress bar
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    /// Print results, warnings and errors only: no progress, no log
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Also print what the command computes with, its time and its memory; `train` prints every step of `log.every`
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

impl Output {
    /// `--quiet` and `--verbose` as one.
    pub(crate) fn verbosity(self) -> Verbosity {
        match self {
            Self { quiet: true, .. } => Verbosity::Quiet,
            Self { verbose: true, .. } => Verbosity::Verbose,
            Self { .. } => Verbosity::Normal,
        }
    }
}

impl Arguments {
    /// The arguments of this process. `--help` and errors of the arguments end it, in the colours that `--color` asks
    /// for.
    pub(crate) fn of_process() -> Self {
        style::choose(color(std::env::args_os().skip(1)));
        Self::try_parse().unwrap_or_else(|error| with_setting(error).exit())
    }
}

/// The error about an unknown argument such as `--lr`, with the setting of the same name, if the command takes `--set`.
fn with_setting(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let typed = typed.trim_start_matches('-').replace('-', "_");
    let takes_settings = |name: OsString| {
        let command = Arguments::command();
        let command = name.to_str().and_then(|name| command.find_subcommand(name));
        command
            .is_some_and(|command| command.get_arguments().any(|arg| arg.get_long() == Some("set")))
    };
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    if !is_unknown || !std::env::args_os().skip(1).any(takes_settings) {
        return error;
    }
    let Some(key) = reference::similar_keys(&typed).into_iter().next() else { return error };
    let unit =
        if typed.contains("epoch") { "; training is counted in steps of one batch" } else { "" };
    let tip = format!("`--set {key}=VALUE` overrides this setting of the configuration{unit}");
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// The value of `--color`, before the arguments are parsed; a value that is none is an error of the parser.
fn color(arguments: impl Iterator<Item = OsString>) -> ColorChoice {
    let mut choice = ColorChoice::Auto;
    let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    while let Some(argument) = arguments.next().filter(|argument| argument != "--") {
        let value = match argument.strip_prefix("--color") {
            Some("") => arguments.next(),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        let named = value.and_then(|value| ColorChoice::from_str(&value, false).ok());
        choice = named.unwrap_or(choice);
    }
    choice
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a configuration to start from: one for a task and your data, or a shipped one
    Init(Init),
    /// Train a model from a TOML configuration and evaluate it
    #[command(after_help = examples::TRAIN)]
    Train(Train),
    /// Check a configuration: memory, disk, gradients, masks, overfitting a single batch
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// List, verify, prune or average the checkpoints of a run
    #[command(subcommand, after_help = examples::CHECKPOINT)]
    Checkpoint(Checkpoint),
    /// Kill runs at random times, resume them, and compare them with an uninterrupted run
    #[command(after_help = examples::VERIFY_RESUME)]
    VerifyResume(VerifyResume),
    /// Train all combinations of some settings with several seeds, and compare them
    Ablate(Ablate),
    /// Train many kinds of attention on tasks whose limits are known, and tabulate what each can do
    Atlas(Atlas),
    /// Measure time and memory
    #[command(subcommand, after_help = examples::BENCH)]
    Bench(Bench),
    /// Evaluate a run and compare it with baselines
    Evaluate(Evaluate),
    /// Forecast the next days with a weather model
    #[command(after_help = examples::FORECAST)]
    Forecast(Forecast),
    /// Plot the metrics of runs: loss, accuracy, learning rate, gradient norm, speed
    #[command(after_help = examples::PLOT)]
    Plot(Plot),
    /// Write an HTML page about runs: results, samples, mistakes, charts, attention, settings
    Report(Report),
    /// Draw the attention maps of a text, of days, or of a picture
    Attend(Attend),
    /// Translate texts with a sequence-to-sequence model
    #[command(after_help = examples::TRANSLATE)]
    Translate(Translate),
    /// Train a tokenizer, or encode and decode texts
    #[command(subcommand, after_help = examples::TOKENIZER)]
    Tokenizer(Tokenizer),
    /// Classify texts or pictures
    Classify(Classify),
    /// Tag the words of texts: names of persons and places, parts of speech
    Tag(Tag),
    /// Embed texts as vectors, or find similar texts
    Embed(Embed),
    /// Find hard negatives for pairs of texts, to train an encoder with
    Mine(Mine),
    /// Rank passages by how relevant they are for a query
    Rerank(Rerank),
    /// Predict masked tokens with a masked language model
    FillMask(FillMask),
    /// Continue texts with a causal language model
    Generate(Generate),
    /// Serve runs and models: live pages, a playground, and an API
    Serve(Serve),
    /// Export a model as a folder for `transformers`, for ONNX runtimes, or for Tealight
    #[command(after_help = examples::EXPORT)]
    Export(Export),
    /// List the devices that this build can use, and why others are unavailable
    #[command(after_help = examples::DEVICES)]
    Devices(Devices),
    /// Describe this build and this machine, to paste into a bug report
    #[command(after_help = examples::INFO)]
    Info(Info),
    /// Show parameters and cost of a configuration or run, the parameters of a folder, or all available kinds
    #[command(after_help = examples::INSPECT)]
    Inspect(Inspect),
    /// Explain a setting: its meaning, type, default, kinds, and an example
    Explain(Explain),
    /// Print the JSON Schema of a configuration, for editors
    #[command(after_help = examples::SCHEMA)]
    Schema,
    /// Print shell completions
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages of all commands
    #[command(after_help = examples::MAN)]
    Man(Man),
}

impl Command {
    /// The precision of matrix products, for commands that take it as an argument. The others read it from a run.
    pub(crate) fn product_precision(&self) -> ProductPrecision {
        match self {
            Self::Translate(Translate { computation, .. })
            | Self::Classify(Classify { computation, .. })
            | Self::Tag(Tag { computation, .. })
            | Self::Embed(Embed { computation, .. })
            | Self::Mine(Mine { computation, .. })
            | Self::Rerank(Rerank { computation, .. })
            | Self::FillMask(FillMask { computation, .. })
            | Self::Generate(Generate { computation, .. })
            | Self::Bench(
                Bench::Product(BenchProduct { computation, .. })
                | Bench::FillMask(BenchFillMask { computation, .. })
                | Bench::Embed(BenchEmbed { computation, .. }),
            ) => computation.precision,
            Self::Bench(Bench::AttentionOnce { args }) => args.layer.precision.of_products(),
            _ => ProductPrecision::F32,
        }
    }

    /// The trained model or run whose outputs the command computes, for commands that compute those of one.
    pub(crate) fn model(&self) -> Option<&Path> {
        match self {
            Self::Forecast(Forecast { run, .. }) => Some(&run.path),
            Self::Evaluate(Evaluate { model, .. })
            | Self::Attend(Attend { model, .. })
            | Self::Translate(Translate { model, .. })
            | Self::Classify(Classify { model, .. })
            | Self::Tag(Tag { model, .. })
            | Self::Embed(Embed { model, .. })
            | Self::Mine(Mine { model, .. })
            | Self::Rerank(Rerank { model, .. })
            | Self::FillMask(FillMask { model, .. })
            | Self::Generate(Generate { model, .. })
            | Self::Bench(
                Bench::FillMask(BenchFillMask { model, .. })
                | Bench::Embed(BenchEmbed { model, .. }),
            ) => Some(&model.path),
            _ => None,
        }
    }

    /// Whether several processes of an MPI job run the command together.
    pub(crate) fn is_distributed(&self) -> bool {
        matches!(self, Self::Train(_) | Self::Bench(Bench::Train(_) | Bench::Comm(_)))
    }

    /// Whether the allocator keeps freed memory for reuse. That is faster, but the memory of the
    /// process then does not show how much is in use, so a measurement of memory turns it off.
    pub(crate) fn keeps_freed_memory(&self) -> bool {
        !matches!(self, Self::Bench(Bench::AttentionOnce { args }) if args.memory)
    }
}
