//! What keeps runs from harm: `tealight checkpoint`, `tealight verify-resume` and `tealight doctor`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::language::ExportFormat;
use super::positive;
use crate::system::device::DeviceName;

#[derive(Debug, Subcommand)]
pub(crate) enum Checkpoint {
    /// List the checkpoints of a run
    Ls(OfRun),
    /// Read every checkpoint to its last byte; fails if one is damaged
    Verify(OfRun),
    /// Remove all but the latest checkpoints and the best
    Prune(PruneCheckpoints),
    /// Write the mean of the weights of several checkpoints as a model
    Average(AverageCheckpoints),
}

#[derive(Args, Debug)]
pub(crate) struct OfRun {
    /// The directory of a run
    #[arg(value_name = "RUN")]
    pub(crate) path: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct PruneCheckpoints {
    /// The directory of a run
    #[arg(value_name = "RUN")]
    pub(crate) path: PathBuf,
    /// How many of the latest stay
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(crate) keep: usize,
}

#[derive(Args, Debug)]
pub(crate) struct AverageCheckpoints {
    /// The directory of a run
    #[arg(value_name = "RUN")]
    pub(crate) path: PathBuf,
    /// The folder that is written; it must not exist yet
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: PathBuf,
    /// How many of the last checkpoints
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(crate) last: usize,
    /// Which steps, instead of the last ones
    #[arg(long, value_name = "STEP,STEP…", value_delimiter = ',', conflicts_with = "last")]
    pub(crate) steps: Vec<u64>,
    /// For `transformers`, for Tealight, or for the first that can express the model
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) format: ExportFormat,
}

#[derive(Args, Debug)]
pub(crate) struct VerifyResume {
    /// A TOML file
    #[arg(value_name = "CONFIG")]
    pub(crate) config: PathBuf,
    /// Change a setting: `--set model.n_heads=1` (may be given several times)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// How many steps each run takes
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,
    /// How often a process is killed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) kills: u64,
    /// Seed of the times at which processes are killed
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// A TOML file
    #[arg(value_name = "CONFIG")]
    pub(crate) config: PathBuf,
    /// Change a setting: `--set model.n_heads=1` (may be given several times)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// How many steps are spent on learning one batch by heart
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}
