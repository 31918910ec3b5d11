//! `tealight train`, `evaluate`, `doctor` and `verify-resume`

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use tealight_ops::ProductPrecision;

use super::complete;
use super::shared::{ConfigFile, Model, TextColumns, positive, product_precision};
use crate::system::device::DeviceName;

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Train {
    /// A TOML file, the name of a shipped configuration, `-` for standard input, or the directory of a run to resume
    #[arg(value_name = "CONFIG", add = ArgValueCompleter::new(complete::config))]
    pub(crate) config: PathBuf,
    /// Override a setting: `--set model.n_heads=1` (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE", add = ArgValueCompleter::new(complete::setting))]
    pub(crate) overrides: Vec<String>,
    /// Number of steps: `--set training.steps=N`. With the directory of a run: start a new run from the parameters of the
    /// checkpoint that its `checkpoint.select` chooses
    #[arg(long, value_name = "N", value_parser = positive::<u64>, conflicts_with = "resume")]
    pub(crate) steps: Option<u64>,
    /// Leave out files that are no pictures, and rows that are no text with its label, and print how many: `--set
    /// task.data.skip_broken=true`
    #[arg(long)]
    pub(crate) skip_broken: bool,
    /// Resume the last run with the name and the settings of this configuration, from its last checkpoint
    #[arg(long)]
    pub(crate) resume: bool,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
    /// Build and check everything, print a summary, and stop before training
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Save a checkpoint and stop after this step, counted from the start of the run; continue with `--resume`
    #[arg(long, value_name = "STEP")]
    pub(crate) stop_after: Option<u64>,
    /// Save a checkpoint and stop after this time: `2h`, `90min`, `1h 30m`
    #[arg(long, value_name = "TIME")]
    pub(crate) time_limit: Option<humantime::Duration>,
    /// Save a checkpoint and stop when the parent process PID exits; `ablate` sets it
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) parent: Option<u32>,
    /// Train even if the estimated memory or disk space is not enough
    #[arg(long)]
    pub(crate) force: bool,
    /// Name of the run's directory [default: that of the configuration file; with `-`, the kind of the task]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Directory with all runs
    #[arg(long, value_name = "DIR", default_value = "runs", value_hint = ValueHint::DirPath)]
    pub(crate) runs: PathBuf,
    /// Print one JSON object at the end instead of the table: the run, how it ended, and its final evaluation or error
    #[arg(long)]
    pub(crate) json: bool,
}

const EVALUATE_EXAMPLES: &str = "\
Examples:
  tealight evaluate runs/reviews                        the validation split of the run
  tealight evaluate runs/reviews --data test.csv        labelled texts that it has not seen
  tealight evaluate bert-base-uncased --data books.txt  a folder, or a name in Hugging Face's cache
  tealight evaluate runs/recall --examples mine.jsonl   answers to one's own examples of symbols

--data is in the form of the task: a file of texts with labels, texts, class folders or an archive of pictures, days.";

#[derive(Args, Debug)]
#[command(after_help = EVALUATE_EXAMPLES)]
pub(crate) struct Evaluate {
    #[command(flatten)]
    pub(crate) model: Model,
    /// Score these data, all of them, instead of the validation split; a model that is no run needs them
    #[arg(long, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) data: Option<PathBuf>,
    /// Answer these examples of symbols, lines of {"ids": […], "labels": […]} with −100 where there is no label: a line for
    /// each, {"predictions": […], "log_probs": [[…], …]}, with an entry for each label
    #[arg(long, value_name = "FILE.jsonl", value_hint = ValueHint::FilePath, conflicts_with_all = ["data", "json"])]
    pub(crate) examples: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) columns: TextColumns,
    /// Number format: f32, tf32 (GPUs only), bf16 (GPUs, and CPUs with bf16 instructions), or int8 (CPUs) [default: that
    /// of the run]
    #[arg(long, value_parser = product_precision)]
    pub(crate) precision: Option<ProductPrecision>,
    /// Use the weights of this exported or averaged model instead of a checkpoint
    #[arg(long, value_name = "FOLDER", conflicts_with = "checkpoint")]
    pub(crate) weights: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl Evaluate {
    /// The file or folder to score or to answer in place of the validation split.
    pub(crate) fn other_data(&self) -> Option<&PathBuf> {
        self.data.as_ref().or(self.examples.as_ref())
    }
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) config: ConfigFile,
    /// Number of steps for overfitting a single batch
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = positive::<u64>)]
    pub(crate) steps: u64,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
    /// Print one JSON object, also if a check fails
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct VerifyResume {
    #[command(flatten)]
    pub(crate) config: ConfigFile,
    /// Number of steps of each run
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = positive::<u64>)]
    pub(crate) steps: u64,
    /// Number of processes to kill
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive::<u64>)]
    pub(crate) kills: u64,
    /// Seed of the random kill times
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}
