//! What a person types.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use tealight_train::run::Selection;

use self::ablate::Ablate;
use self::bench::{AttentionOnce, Bench};
use self::checkpoint::{Checkpoint, Doctor, VerifyResume};
use self::language::{Export, FillMask, Generate};
use self::tokenizer::Tokenizer;
use crate::pictures::attention::Maps;
use crate::system::device::DeviceName;

pub(crate) mod ablate;
pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod language;
pub(crate) mod list;
pub(crate) mod tokenizer;

/// Train, compare and use small transformers from the command line.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train what a TOML file describes, and show what came of it
    Train(Train),
    /// Check a configuration: room, gradients, masks, and whether one batch is learnt by heart
    Doctor(Doctor),
    /// See, check, thin out or average what a run has saved
    #[command(subcommand)]
    Checkpoint(Checkpoint),
    /// Kill a run at random moments, resume it, and compare it with one that was left alone
    VerifyResume(VerifyResume),
    /// Train every combination of some settings with several seeds, and compare them in a table
    Ablate(Ablate),
    /// Measure what parts cost: time and memory
    #[command(subcommand)]
    Bench(Bench),
    /// Evaluate a run beside the baselines and the limit of what can be known
    Evaluate(Evaluate),
    /// Forecast the days after those given, with a weather model
    Forecast(Forecast),
    /// Draw how runs went: loss, metrics, learning rate, gradient norm, speed
    Plot(Plot),
    /// Draw what each position of a sequence reads from the others
    Attend(Attend),
    /// Write what a model of pairs makes of texts: reversed, sorted, dates, or what a file has taught it
    Translate(Translate),
    /// Train a tokenizer, or see what one makes of texts
    #[command(subcommand)]
    Tokenizer(Tokenizer),
    /// Tell the class of texts
    Classify(Classify),
    /// Fill the gaps of texts with what a masked language model expects there
    FillMask(FillMask),
    /// Continue texts with a causal language model
    Generate(Generate),
    /// Write a model as a folder that `transformers`, or another Tealight, loads
    Export(Export),
    /// Show where this build can compute on this machine, and what is missing where it cannot
    Devices,
    /// Show what a configuration or a run consists of, or every kind of everything
    Inspect(Inspect),
    /// Print the completions for a shell
    Completions(Completions),
}

impl Command {
    /// Whether freed memory is to stay with the process. It makes for speed, and hides how much is
    /// needed from those who look at the process to learn it.
    pub(crate) fn keeps_freed_memory(&self) -> bool {
        !matches!(self, Self::Bench(Bench::AttentionOnce(AttentionOnce { memory: true, .. })))
    }
}

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag that a person types")]
pub(crate) struct Train {
    /// A TOML file, or the directory of a run to resume
    #[arg(value_name = "CONFIG")]
    pub(crate) config: PathBuf,
    /// Change a setting: `--set model.n_heads=1` (may be given several times)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Go on with the last run of this configuration from its last checkpoint
    #[arg(long)]
    pub(crate) resume: bool,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
    /// Build and check everything, show what would be trained, and stop
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Stop after this step with a checkpoint; `--resume` goes on from there
    #[arg(long, value_name = "STEP")]
    pub(crate) stop_after: Option<u64>,
    /// Stop after the step in which this time is over, with a checkpoint: `2h`, `90min`, `1h 30m`
    #[arg(long, value_name = "TIME")]
    pub(crate) time_limit: Option<humantime::Duration>,
    /// Train even if memory or disk will probably not suffice; the system may then end the run
    #[arg(long)]
    pub(crate) force: bool,
    /// Name of the run's directory; the name of the file unless given
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The directory that runs are kept in
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(crate) runs: PathBuf,
    /// No progress bar and no log, only the result
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// A count of at least one.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("expected a positive integer".to_owned()),
    }
}

/// A count of threads, or of texts that are written at once: more would keep a machine busy without end.
fn count(text: &str) -> Result<usize, String> {
    const MOST: usize = 1024;
    match text.parse() {
        Ok(n) if (1..=MOST).contains(&n) => Ok(n),
        _ => Err(format!("expected 1 to {MOST}")),
    }
}

/// Seconds, possibly none.
fn duration(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0. => Ok(seconds),
        _ => Err("expected seconds".to_owned()),
    }
}

/// A run that was trained.
#[derive(Args, Debug)]
pub(crate) struct Trained {
    /// The directory of a run
    #[arg(value_name = "RUN")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) used: Used,
}

/// A model that is there already, wherever it comes from.
#[derive(Args, Debug)]
pub(crate) struct Model {
    /// A run, a checkpoint, an exported folder, or a model folder of Hugging Face
    #[arg(value_name = "MODEL")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) used: Used,
}

/// In which state a model is used, and where.
#[derive(Args, Debug)]
pub(crate) struct Used {
    /// Which checkpoint of a run: latest, best, or a step; the configuration's choice unless given
    #[arg(long)]
    pub(crate) checkpoint: Option<Selection>,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

#[derive(Args, Debug)]
pub(crate) struct Evaluate {
    #[command(flatten)]
    pub(crate) trained: Trained,
    /// The weights of a model that `checkpoint average` or `export` wrote, in the place of a checkpoint's
    #[arg(long, value_name = "FOLDER", conflicts_with = "checkpoint")]
    pub(crate) weights: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Forecast {
    #[command(flatten)]
    pub(crate) trained: Trained,
    /// The last days, oldest first: 🌧️ ☁️ ☀️ or the letters R C S
    #[arg(long, value_name = "DAYS")]
    pub(crate) start: String,
    /// How many days to forecast
    #[arg(long, default_value_t = 7)]
    pub(crate) days: usize,
    /// Seed of the sampling
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Below 1 the likely becomes likelier, above 1 all becomes alike; 0 always takes the likeliest
    #[arg(long, default_value_t = 1., allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Choose among the K likeliest only
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Search for the likeliest sequences with this many beams instead of sampling
    #[arg(long, value_name = "N", conflicts_with_all = ["temperature", "top_k", "seed"])]
    pub(crate) beams: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Plot {
    /// The directories of runs; several are drawn together, a line for each
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Where the pictures go; `plots` in the run's directory unless given
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Space all numbers by powers of ten
    #[arg(long)]
    pub(crate) log: bool,
    /// Draw the mean of the runs, and their standard deviation as a band
    #[arg(long)]
    pub(crate) mean: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Attend {
    #[command(flatten)]
    pub(crate) model: Model,
    /// What is read: days, oldest first (🌧️ ☁️ ☀️ or the letters R C S), or a text
    #[arg(value_name = "SEQUENCE")]
    pub(crate) sequence: String,
    /// Where the pictures go; `attention` in the run's directory unless given, and needed for a folder
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Which maps of a layer are drawn: mean, all, or the first N; up to 16 are all drawn unless given
    #[arg(long, value_name = "mean|all|N")]
    pub(crate) maps: Option<Maps>,
    /// Print the mean map of each layer, in percent, and draw nothing
    #[arg(long, conflicts_with_all = ["json", "maps", "output"])]
    pub(crate) text: bool,
    /// Print all matrices as one JSON object, and draw nothing
    #[arg(long, conflicts_with_all = ["maps", "output"])]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Translate {
    #[command(flatten)]
    pub(crate) model: Model,
    /// What to translate; `-` reads a text from each line of standard input
    #[arg(value_name = "TEXT", required = true)]
    pub(crate) texts: Vec<String>,
    /// Search with this many beams instead of always taking the likeliest token
    #[arg(long, value_name = "N", conflicts_with_all = ["temperature", "top_k", "seed"])]
    pub(crate) beams: Option<usize>,
    /// How much beams favour long texts: 0 not at all, 1 as much as their length
    #[arg(
        long,
        value_name = "A",
        requires = "beams",
        default_value_t = 0.6,
        allow_negative_numbers = true
    )]
    pub(crate) length_penalty: f64,
    /// Draw tokens at random: below 1 the likely becomes likelier, above 1 all becomes alike
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// Draw tokens at random, among the K likeliest only
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Draw tokens at random, from this seed
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Write at most so many tokens; as many as the model was built for unless given
    #[arg(long, value_name = "N")]
    pub(crate) max_len: Option<usize>,
    /// Print one JSON object, with every beam
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Classify {
    #[command(flatten)]
    pub(crate) model: Model,
    /// What to classify; `-` reads a text from each line of standard input
    #[arg(value_name = "TEXT", required = true)]
    pub(crate) texts: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    /// A TOML file or the directory of a run
    #[arg(value_name = "CONFIG|RUN", required_unless_present = "list")]
    pub(crate) target: Option<PathBuf>,
    /// Change a setting: `--set model.n_heads=1` (may be given several times)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// List every kind of everything, with one line each
    #[arg(long, conflicts_with = "target")]
    pub(crate) list: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}
