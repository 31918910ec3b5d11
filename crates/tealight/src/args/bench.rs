//! `tealight bench`

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use tealight_train::config::Precision;

use super::examples;
use super::shared::{
    Computation, ConfigFile, Model, number, parallelism, positive, precision, repeats, seconds,
    warm_up_steps,
};
use crate::system::device::DeviceName;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time, throughput and memory of training steps, optionally per operation
    Train(BenchTrain),
    /// Time and peak memory of one layer per kind of attention and sequence length
    Attention(BenchAttention),
    /// Throughput of matrix products
    #[command(after_help = examples::BENCH_PRODUCT)]
    Product(BenchProduct),
    /// Latency of predicting masked tokens
    #[command(after_help = examples::BENCH_FILL_MASK)]
    FillMask(BenchFillMask),
    /// Time of embedding texts
    #[command(after_help = examples::BENCH_EMBED)]
    Embed(BenchEmbed),
    /// Time of exchanging gradients between the processes of an MPI job, compared with `MPI_Allreduce`
    Comm(BenchComm),
    /// Internal: one measurement of `bench attention`, in its own process
    #[command(hide = true)]
    AttentionOnce {
        /// Its settings as JSON
        #[arg(value_parser = |json: &str| serde_json::from_str::<AttentionOnce>(json))]
        args: AttentionOnce,
    },
}

/// Arguments that the benchmarks share.
#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// Number of CPU threads [default: all]
    #[arg(long, value_name = "N", value_parser = parallelism)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const TRAIN_EXAMPLES: &str = "\
Examples:
  tealight bench train configs/weather/dotmod.toml
  tealight bench train configs/causal_lm/shakespeare_cpu.toml --steps 100 --threads 1 --profile
  tealight bench train my.toml --set model.attention.kind=nystrom --json

Makes the steps of `tealight train` without evaluations and checkpoints, and writes no files. MFU, the model \
FLOPs utilisation (Chowdhery et al. 2022, appendix B), is the FLOP/s of the model divided by the FLOP/s of one large \
matrix product in the run's precision (2048 x 2048 x 2048 on a CPU, 8192 x 8192 x 8192 on a GPU). `tealight inspect` \
counts the FLOPs of the model in the same way.";

#[derive(Args, Debug)]
#[command(after_help = TRAIN_EXAMPLES)]
pub(crate) struct BenchTrain {
    #[command(flatten)]
    pub(crate) config: ConfigFile,
    /// Override `training.precision`: f32, tf32 or bf16
    #[arg(long, value_parser = precision)]
    pub(crate) precision: Option<Precision>,
    /// Number of measured steps
    #[arg(long, value_name = "N", value_parser = repeats, default_value_t = 20)]
    pub(crate) steps: usize,
    /// Number of warm-up steps before the measurement
    #[arg(long, value_name = "N", value_parser = warm_up_steps, default_value_t = 3)]
    pub(crate) warmup: usize,
    /// Show the time of each operation, measured in additional steps
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

#[derive(Args, Debug)]
pub(crate) struct BenchProduct {
    /// Shapes of the products y (M, N) = x (M, K) W (N, K)ᵀ
    #[arg(
        long,
        value_name = "MxNxK,…",
        value_delimiter = ',',
        value_parser = product_shape,
        default_value = "4096x1024x256,4096x256x1024,614x8192x256,2048x2048x2048,1000x64x32,768x512x128"
    )]
    pub(crate) shapes: Vec<ProductShape>,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// Minimum duration of the measurement of each shape, in seconds
    #[arg(long, value_parser = seconds, default_value_t = 1., allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

/// The shape of a product `x (m, k) · W (n, k)ᵀ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductShape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

fn product_shape(text: &str) -> Result<ProductShape, String> {
    const MAX: usize = 1 << 16;
    let sizes: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
    match sizes.as_deref() {
        Ok(&[m, n, k]) if [m, n, k].iter().all(|size| (1..=MAX).contains(size)) => {
            Ok(ProductShape { m, n, k })
        }
        _ => Err(format!("expected MxNxK, each 1 to {MAX}, such as 4096x1024x256")),
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
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// A text with `[MASK]` tokens
    #[arg(value_name = "TEXT")]
    pub(crate) text: String,
    /// Number of measured repeats, after one warm-up
    #[arg(long, value_name = "N", value_parser = repeats, default_value_t = 20)]
    pub(crate) repeats: usize,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
}

#[derive(Args, Debug)]
pub(crate) struct BenchEmbed {
    #[command(flatten)]
    pub(crate) model: Model,
    #[command(flatten)]
    pub(crate) computation: Computation,
    /// The texts: one per line of this file
    #[arg(long)]
    pub(crate) file: PathBuf,
    /// Number of measured repeats, after one warm-up
    #[arg(long, value_name = "N", value_parser = repeats, default_value_t = 5)]
    pub(crate) repeats: usize,
    /// Show the time of each operation, measured in additional repeats
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
}

const COMM_EXAMPLES: &str = "\
Examples:
  mpirun -n 4 tealight bench comm
  mpirun -n 2 tealight bench comm --megabytes 40 --step-ms 100

Measures how long an exchange of gradients takes that does not overlap with computation, and the latency of one \
message. From both, the cost model of docs/CLUSTER.md predicts the efficiency of steps that take --step-ms.";

#[derive(Args, Debug)]
#[command(after_help = COMM_EXAMPLES)]
pub(crate) struct BenchComm {
    /// Total sizes of the gradients, in megabytes; a million parameters have 4
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = megabytes,
          default_value = "1,10,100", allow_negative_numbers = true)]
    pub(crate) megabytes: Vec<f64>,
    /// Time of a step of one process with one micro-batch, from which the efficiency is predicted
    #[arg(long, value_name = "MS", value_parser = milliseconds, default_value_t = 100., allow_negative_numbers = true)]
    pub(crate) step_ms: f64,
    /// Number of measured exchanges of each size, after one warm-up
    #[arg(long, value_name = "N", value_parser = repeats, default_value_t = 10)]
    pub(crate) repeats: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn milliseconds(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0. && n.is_finite(), "a number of milliseconds above 0")
}

fn megabytes(text: &str) -> Result<f64, String> {
    number(text, |n| (0.001..=10_000.).contains(&n), "a number of megabytes, 0.001 to 10000")
}

const ATTENTION_EXAMPLES: &str = "\
Examples:
  tealight bench attention --backward
  tealight bench attention --kinds softmax --lengths 512,1024,2048 --causal --threads 1
  tealight bench attention --kinds softmax,nystrom:n_landmarks=32,nystrom:n_landmarks=64
  tealight bench attention --kinds softmax,mla,gated_deltanet,mamba2 --causal --decoding

Each measurement runs in its own process. Time: median over the repeats. Memory: peak memory of a process \
that computes once, minus its memory before the layer was built.
The defaults are those of Table 1 of the Nyströmformer paper (https://arxiv.org/abs/2102.03902).";

#[derive(Args, Debug)]
#[command(after_help = ATTENTION_EXAMPLES)]
pub(crate) struct BenchAttention {
    /// Kinds with optional settings: `a,b:key=value,key=value` [default: all kinds]
    #[arg(long, value_name = "KIND[:KEY=VALUE],…")]
    pub(crate) kinds: Option<String>,
    /// Sequence lengths
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = positive::<usize>,
          default_value = "512,1024,2048,4096,8192")]
    pub(crate) lengths: Vec<usize>,
    /// Also measure forward and backward together
    #[arg(long)]
    pub(crate) backward: bool,
    /// Also measure the decoding of one position after each length, and what decoding keeps of the sequence
    #[arg(long, requires = "causal")]
    pub(crate) decoding: bool,
    /// Also write charts of time over length to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
    #[command(flatten)]
    pub(crate) layer: Layer,
}

/// The layer and the repeats of a measurement, for all kinds and lengths.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Layer {
    /// Width of the residual stream
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 768)]
    pub(crate) d_model: usize,
    /// Number of heads
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 12)]
    pub(crate) n_heads: usize,
    /// Number format: f32, tf32 (GPUs only), or bf16 (GPUs, and CPUs with bf16 instructions)
    #[arg(long, value_parser = precision, default_value = "f32")]
    pub(crate) precision: Precision,
    /// Causal attention: position i reads positions j ≤ i
    #[arg(long)]
    pub(crate) causal: bool,
    /// Number of repeats [default: as many as fit into --seconds]
    #[arg(long, value_name = "N", value_parser = repeats)]
    pub(crate) repeats: Option<usize>,
    /// Minimum duration of each measurement, in seconds
    #[arg(long, value_parser = seconds, default_value_t = 2., allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

/// What a layer computes while it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pass {
    Forward,
    ForwardAndBackward,
    /// One more position after a sequence.
    Decoding,
}

impl Pass {
    pub(crate) const ALL: [Self; 3] = [Self::Forward, Self::ForwardAndBackward, Self::Decoding];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::ForwardAndBackward => "forward and backward",
            Self::Decoding => "decoding of one position",
        }
    }
}

/// One measurement of `bench attention`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AttentionOnce {
    /// The kind of attention with its settings, in the syntax of `--kinds`.
    pub(crate) kind: String,
    pub(crate) length: usize,
    pub(crate) pass: Pass,
    /// Measure memory instead of time.
    pub(crate) memory: bool,
    pub(crate) layer: Layer,
}
