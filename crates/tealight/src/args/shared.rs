//! Arguments and value parsers that several subcommands share.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use tealight_model::names::Named;
use tealight_train::config::Precision;
use tealight_train::run::Selection;

use super::complete;
use crate::system::device::DeviceName;

/// A configuration file with `--set` overrides.
#[derive(Args, Debug)]
pub(crate) struct ConfigFile {
    /// A TOML file, the name of a shipped configuration (`weather/dotmod`), or `-` for standard input
    #[arg(value_name = "CONFIG", add = ArgValueCompleter::new(complete::config))]
    pub(crate) path: PathBuf,
    /// Override a setting: `--set model.n_heads=1` (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE", add = ArgValueCompleter::new(complete::setting))]
    pub(crate) overrides: Vec<String>,
}

/// The directory of a run.
#[derive(Args, Debug)]
pub(crate) struct RunPath {
    /// The directory of a run
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(complete::run))]
    pub(crate) path: PathBuf,
}

/// A trained run.
#[derive(Args, Debug)]
pub(crate) struct TrainedRun {
    /// The directory of a run
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(complete::run))]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) weights: Weights,
}

/// A trained model: a run or a folder.
#[derive(Args, Debug)]
pub(crate) struct Model {
    /// A run, a checkpoint, an exported folder, a Hugging Face model folder, or the name of one in its cache
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(complete::run))]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) weights: Weights,
}

/// The weights of a model, and the device that they are loaded to.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// Checkpoint of the run: latest, best, or a step [default: `checkpoint.select` of the run]
    #[arg(long)]
    pub(crate) checkpoint: Option<Selection>,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

/// The number format that a trained model computes in.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Computation {
    /// Number format: f32, tf32 (a GPU), or bf16 (a GPU, or a CPU with instructions for it)
    #[arg(long, value_parser = precision, default_value = "f32")]
    pub(crate) precision: Precision,
}

/// Parses a number format, `training.precision`.
pub(crate) fn precision(text: &str) -> Result<Precision, String> {
    named(text)
}

/// Parses a word that stands for a value.
pub(crate) fn named<T: Named>(text: &str) -> Result<T, String> {
    T::ALL.iter().find(|value| value.name() == text).copied().ok_or_else(|| {
        let names: Vec<_> = T::ALL.iter().map(|value| value.name()).collect();
        format!("expected one of: {}", names.join(", "))
    })
}

/// Parses an integer of at least 1.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("expected a positive integer".to_owned()),
    }
}

/// Parses a number of repeats. The upper limit keeps a typing error from exhausting memory.
pub(crate) fn repeats(text: &str) -> Result<usize, String> {
    const MAX: usize = 1_000_000;
    match text.parse() {
        Ok(n) if (1..=MAX).contains(&n) => Ok(n),
        _ => Err(format!("expected a positive integer of at most {MAX}")),
    }
}

/// Parses a number of threads or of parallel texts. The upper limit keeps a typing error from
/// exhausting the machine.
pub(crate) fn parallelism(text: &str) -> Result<usize, String> {
    const MAX: usize = 1024;
    match text.parse() {
        Ok(n) if (1..=MAX).contains(&n) => Ok(n),
        _ => Err(format!("expected 1 to {MAX}")),
    }
}

/// Parses a finite number of seconds, 0 or more.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0. => Ok(seconds),
        _ => Err("expected seconds".to_owned()),
    }
}
