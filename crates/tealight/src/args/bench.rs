//! `tealight bench`

use clap::{Args, Subcommand};

use super::{count, duration, positive};
use crate::device::DeviceName;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time and peak memory of one layer of each kind of attention, over the length of the sequence
    Attention(BenchAttention),
    /// One of its measurements, which has a process of its own
    #[command(hide = true)]
    AttentionOnce(AttentionOnce),
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
