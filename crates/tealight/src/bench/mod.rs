//! `tealight bench`: what a training step costs, a matrix product, a text whose gaps are filled; and, over
//! the length of the sequence, each kind of attention.

mod fill_mask;
mod kind;
mod once;
mod product;
mod profile;
mod tables;
mod times;
mod train;

use std::env;
use std::process::{Command, exit};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tealight_ops::threads;

use self::kind::{Kind, kinds};
use self::once::{Growth, Timing};
use crate::args::bench::{Bench, BenchAttention, Layer};
use crate::pictures::files::save;
use crate::system::device::DeviceName;
use crate::system::subprocess::{complaint, this_program};
use crate::terminal::output::{log, print};

/// How a process is told of its threads.
const THREADS: &str = "RAYON_NUM_THREADS";

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let threads = match bench {
        Bench::Train(args) => args.threads,
        Bench::Product(args) => args.threads,
        Bench::FillMask(args) => args.threads,
        Bench::Attention(_) | Bench::AttentionOnce(_) => None,
    };
    // Once: a system that gives fewer threads gives no more to another process.
    let asked = env::var(THREADS).ok();
    let differs = |threads: &usize| {
        *threads != threads::count() && asked.as_deref() != Some(&threads.to_string())
    };
    if let Some(threads) = threads.filter(differs) {
        return with_threads(threads);
    }
    match bench {
        Bench::Train(args) => train::run(args),
        Bench::Product(args) => product::run(args),
        Bench::FillMask(args) => fill_mask::run(args),
        Bench::Attention(args) => attention(args),
        Bench::AttentionOnce(args) => once::run(args),
    }
}

/// The same command in a process with so many threads, for there they are counted at the start.
fn with_threads(threads: usize) -> Result<()> {
    let mut command = this_program()?;
    command.args(env::args_os().skip(1)).env(THREADS, threads.to_string());
    let status = command.status().context("cannot start a process")?;
    match status.code() {
        Some(0) => Ok(()),
        // What it had to say, it has said.
        Some(code) => exit(code),
        None => bail!("the benchmark ended by {status}, as when memory runs out"),
    }
}

/// What is computed: with or without the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    ForwardAndBackward,
}

impl Pass {
    const ALL: [Self; 2] = [Self::Forward, Self::ForwardAndBackward];

    fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::ForwardAndBackward => "forward and backward",
        }
    }

    fn file_name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::ForwardAndBackward => "forward_and_backward",
        }
    }
}

/// What came of one kind, at one length, in one pass.
#[derive(Debug)]
struct Cell {
    kind: String,
    length: usize,
    pass: Pass,
    /// Or why there is no measurement.
    measured: Result<Measurement, String>,
}

fn attention(args: &BenchAttention) -> Result<()> {
    let kinds = kinds(args.kinds.as_deref())?;
    let Layer { d_model, n_heads, .. } = args.layer;
    if !d_model.is_multiple_of(n_heads) {
        bail!("`--n-heads {n_heads}` does not divide `--d-model {d_model}`");
    }
    // Before anything is measured: is there such a device?
    args.layer.device.open()?;
    let passes = if args.backward { &Pass::ALL[..] } else { &Pass::ALL[..1] };
    let mut cells = Vec::new();
    for &pass in passes {
        for kind in &kinds {
            for &length in &args.lengths {
                let measured = measure(args, kind, length, pass)?;
                let cell = Cell { kind: kind.to_string(), length, pass, measured };
                log(&tables::line(&cell));
                cells.push(cell);
            }
        }
    }
    if cells.iter().all(|cell| cell.measured.is_err()) {
        bail!("nothing could be measured");
    }
    if let Some(directory) = &args.plot {
        for path in save(directory, tables::pictures(args, &cells))? {
            log(&path.display().to_string());
        }
    }
    let threads = args.threads.unwrap_or_else(threads::count);
    print(&if args.json {
        let json = tables::json(args, threads, &cells);
        format!("{}\n", serde_json::to_string_pretty(&json)?)
    } else {
        tables::markdown(args, threads, &cells)
    })
}

/// What was measured of a layer.
#[derive(Clone, Copy, Debug, Serialize)]
struct Measurement {
    /// The median of the repeats, the shortest and the longest.
    seconds: f64,
    range: [f64; 2],
    n_repeats: usize,
    /// `None` where the system does not say.
    peak_memory_bytes: Option<u64>,
    n_parameters: u64,
}

impl Measurement {
    fn new(timing: Timing, Growth { peak_memory_bytes }: Growth) -> Self {
        let Timing { seconds, range, n_repeats, n_parameters } = timing;
        Self { seconds, range, n_repeats, peak_memory_bytes, n_parameters }
    }
}

/// Measures memory and time, each in a process of its own. The first to fail says why.
fn measure(
    args: &BenchAttention,
    kind: &Kind,
    length: usize,
    pass: Pass,
) -> Result<Result<Measurement, String>> {
    let growth = if args.layer.device == DeviceName::Cpu {
        let mut command = once(args, kind, length, pass)?;
        // Every buffer of some size is given back when it is freed (`mallopt(3)`).
        command.arg("--memory").env("MALLOC_MMAP_THRESHOLD_", "65536");
        match answer(&mut command)? {
            Ok(growth) => growth,
            Err(reason) => return Ok(Err(reason)),
        }
    } else {
        Growth { peak_memory_bytes: None }
    };
    let timing = answer(&mut once(args, kind, length, pass)?)?;
    Ok(timing.map(|timing| Measurement::new(timing, growth)))
}

/// The command that measures a layer once.
fn once(args: &BenchAttention, kind: &Kind, length: usize, pass: Pass) -> Result<Command> {
    let Layer { d_model, n_heads, causal, repeats, seconds, device } = &args.layer;
    let mut command = this_program()?;
    command.args(["bench", "attention-once", "--kind", &kind.to_string()]);
    let numbers = [("--length", length), ("--d-model", *d_model), ("--n-heads", *n_heads)];
    for (name, number) in numbers.into_iter().chain(repeats.map(|n| ("--repeats", n))) {
        command.args([name, &number.to_string()]);
    }
    command.args(["--seconds", &seconds.to_string(), "--device", &device.to_string()]);
    let flags = [("--causal", *causal), ("--backward", pass == Pass::ForwardAndBackward)];
    command.args(flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name));
    if let Some(threads) = args.threads {
        command.env(THREADS, threads.to_string());
    }
    Ok(command)
}

/// The JSON that a process prints, or what it complains of.
fn answer<T: DeserializeOwned>(command: &mut Command) -> Result<Result<T, String>> {
    let output = command.output().context("cannot start a process")?;
    if !output.status.success() {
        return Ok(Err(complaint(&output)));
    }
    let answer = serde_json::from_slice(&output.stdout);
    Ok(Ok(answer.context("a measurement cannot be read")?))
}
