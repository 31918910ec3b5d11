//! `tealight bench`

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::{Model, count, duration, positive};
use crate::system::device::DeviceName;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time, speed and memory of the steps of a training run, and where the time goes
    Train(BenchTrain),
    /// Time and peak memory of one layer of each kind of attention, over the length of the sequence
    Attention(BenchAttention),
    /// How fast matrices are multiplied
    Product(BenchProduct),
    /// How long a model takes to fill the gaps of a text, once it is loaded
    FillMask(BenchFillMask),
    /// One of its measurements, which has a process of its own
    #[command(hide = true)]
    AttentionOnce(AttentionOnce),
}

const TRAIN_EXAMPLES: &str = "\
Examples:
  tealight bench train configs/weather/dotmod.toml
  tealight bench train configs/causal_lm/shakespeare_cpu.toml --steps 100 --threads 1 --profile
  tealight bench train my.toml --set model.attention.kind=nystrom --json

The steps are those of `tealight train`, without evaluations and checkpoints; nothing is written. The first \
of them do not count. MFU, the model FLOPs utilisation (Chowdhery et al. 2022, appendix B), is how fast the \
operations of the model are done, as `tealight inspect` counts them, in parts of how fast a single matrix \
product of 2048 x 2048 x 2048 is (on a GPU, of 8192 x 8192 x 8192 in the run's precision).";

#[derive(Args, Debug)]
#[command(after_help = TRAIN_EXAMPLES)]
pub(crate) struct BenchTrain {
    /// A TOML file
    #[arg(value_name = "CONFIG")]
    pub(crate) config: PathBuf,
    /// Change a setting: `--set model.n_heads=1` (may be given several times)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Steps that count
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 20)]
    pub(crate) steps: usize,
    /// Steps before them
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) warmup: usize,
    /// Show the share of each operation, measured in further steps
    #[arg(long)]
    pub(crate) profile: bool,
    /// Threads of the CPU; as many as it has unless given
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

#[derive(Args, Debug)]
pub(crate) struct BenchProduct {
    /// y (M, N) = x (M, K) W (N, K)ᵀ for each shape
    #[arg(
        long,
        value_name = "MxNxK,…",
        value_delimiter = ',',
        default_value = "4096x1024x256,4096x256x1024,614x8192x256,2048x2048x2048,1000x64x32,768x512x128"
    )]
    pub(crate) shapes: Vec<ProductShape>,
    /// Multiply for about as long as this
    #[arg(long, value_parser = duration, default_value_t = 1., allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// Threads of the CPU; as many as it has unless given
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

/// Rows, columns and depth of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductShape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl FromStr for ProductShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        /// Beyond this, a matrix is larger than what is multiplied in practice.
        const MOST: usize = 1 << 16;
        let sizes: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        match sizes.as_deref() {
            Ok(&[m, n, k]) if [m, n, k].iter().all(|size| (1..=MOST).contains(size)) => {
                Ok(Self { m, n, k })
            }
            _ => Err(format!("expected MxNxK, each 1 to {MOST}, such as 4096x1024x256")),
        }
    }
}

impl fmt::Display for ProductShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, n, k } = self;
        write!(f, "{m}x{n}x{k}")
    }
}

#[derive(Args, Debug)]
pub(crate) struct BenchFillMask {
    #[command(flatten)]
    pub(crate) model: Model,
    /// A text with `[MASK]` for each gap
    #[arg(value_name = "TEXT")]
    pub(crate) text: String,
    /// How often it is filled
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 20)]
    pub(crate) repeats: usize,
    /// Threads of the CPU; as many as it has unless given
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  tealight bench attention --backward
  tealight bench attention --kinds softmax --lengths 512,1024,2048 --causal --threads 1
  tealight bench attention --kinds softmax,nystrom:n_landmarks=32,nystrom:n_landmarks=64

Each measurement has a process of its own. The time is the median of the repeats. The memory is how far \
a process grows that computes once: the most that it holds on the way, less what it held before the layer \
was built.
The defaults are the setting of Table 1 of the Nyströmformer (https://arxiv.org/abs/2102.03902).";

#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub(crate) struct BenchAttention {
    /// Which kinds, and with which settings: `a,b:key=value,key=value`; all unless given
    #[arg(long, value_name = "KIND[:KEY=VALUE],…")]
    pub(crate) kinds: Option<String>,
    /// Lengths of the sequence
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = positive,
          default_value = "512,1024,2048,4096,8192")]
    pub(crate) lengths: Vec<usize>,
    /// Measure forward and backward together, too
    #[arg(long)]
    pub(crate) backward: bool,
    /// Draw time over length into this directory, too
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
    /// Threads of the CPU; as many as it has unless given
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) layer: Layer,
}

/// What is measured, whatever the kind and the length.
#[derive(Args, Clone, Debug)]
pub(crate) struct Layer {
    /// Width of the residual stream
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 768)]
    pub(crate) d_model: usize,
    /// Number of heads
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 12)]
    pub(crate) n_heads: usize,
    /// Position i reads j ≤ i
    #[arg(long)]
    pub(crate) causal: bool,
    /// Repeat as often as this; for as long as --seconds unless given
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) repeats: Option<usize>,
    /// Repeat for about as long as this
    #[arg(long, value_parser = duration, default_value_t = 2., allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

#[derive(Args, Debug)]
pub(crate) struct AttentionOnce {
    /// The kind with its settings
    #[arg(long)]
    pub(crate) kind: String,
    /// Length of the sequence
    #[arg(long)]
    pub(crate) length: usize,
    /// Forward alone, or with backward
    #[arg(long)]
    pub(crate) backward: bool,
    /// Measure the memory, not the time
    #[arg(long)]
    pub(crate) memory: bool,
    #[command(flatten)]
    pub(crate) layer: Layer,
}
