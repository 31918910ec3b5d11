//! `tealight bench train`: time, throughput and memory of training steps.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use candle_core::{Device, Tensor};
use serde::Serialize;
use tealight_ops::allocator::n_allocations;
use tealight_ops::linear::linear;
use tealight_ops::profile::{start, stop};
use tealight_ops::{threads, with_product_precision};
use tealight_train::communicator::ranks::Ranks;
use tealight_train::config::Precision;
use tealight_train::observer::{Event, Observer};
use tealight_train::task::table::thousands;
use tealight_train::task::{AnyTask, RegisteredTask, Task};
use tealight_train::training::distributed::exchange::WAITING;
use tealight_train::training::distributed::join::Identity;
use tealight_train::training::distributed::measure::time_exchanges;
use tealight_train::{Session, fit};

use super::operations::{self, Share};
use super::times::{Times, milliseconds, seconds_of};
use crate::args::bench::BenchTrain;
use crate::runs::config::LoadedConfig;
use crate::runs::job::{self, agree, open_device};
use crate::runs::load::task_of;
use crate::runs::number_format::NumberFormat;
use crate::system::memory;
use crate::terminal::failure::at_its_place;
use crate::terminal::numbers::{MEBIBYTE, counted};
use crate::terminal::output::{print, print_indented_json};

pub(super) fn run(args: &BenchTrain) -> Result<ExitCode> {
    job::run(|ranks, _| bench(args, ranks).map(|()| ExitCode::SUCCESS))
}

fn bench(args: &BenchTrain, ranks: &Ranks) -> Result<()> {
    let opened = open_device(args.device, ranks).and_then(|device| {
        Ok((device, LoadedConfig::read(&args.config.path, &args.config.overrides)?))
    });
    let (device, mut loaded) = agree(ranks, opened)?;
    if loaded.init_model.is_some() {
        bail!("`init_from` does not change the time of a step; run the benchmark without it");
    }
    let n_steps = args.steps * if args.profile || !ranks.is_alone() { 2 } else { 1 };
    // One more, because the last step of a run evaluates.
    let total = (args.warmup + n_steps) as u64 + 1;
    let config = &mut loaded.config;
    config.training.precision = args.precision.unwrap_or(config.training.precision);
    config.training.steps = config.training.steps.max(total);
    config.training.evaluate_every = config.training.steps;
    config.training.early_stopping = None;
    config.log.every = 1;
    let bench = TrainingBench { ranks, args, device: &device, loaded: &loaded };
    bench.print(task_of(&loaded, &device, None)?)
}

struct TrainingBench<'a> {
    ranks: &'a Ranks,
    args: &'a BenchTrain,
    device: &'a Device,
    loaded: &'a LoadedConfig,
}

impl TrainingBench<'_> {
    fn print(self, task: AnyTask) -> Result<()> {
        let at_its_place = |error| at_its_place(error, &self.loaded.source);
        if self.ranks.is_first() {
            self.number_format().warn_if_replaced();
        }
        let mut session = self.session(task).map_err(at_its_place)?;
        self.loaded.set_teacher(&mut session)?;
        let measured = self.measure(&mut session).map_err(at_its_place)?;
        let report = self.report(&session, measured)?;
        match (self.ranks.is_first(), self.args.options.json) {
            (false, _) => Ok(()),
            (true, true) => print_indented_json(&report),
            (true, false) => print(&report.text()),
        }
    }
}

/// What was measured of a run.
struct Measured {
    steps: Steps,
    peak_memory_bytes: Option<u64>,
    profile: Option<Vec<Share>>,
    communication: Option<Communication>,
}

impl TrainingBench<'_> {
    /// A session that has joined the other ranks.
    fn session<T: Task>(&self, task: T) -> tealight_train::Result<Session<T>> {
        let mut session = Session::new(&self.loaded.config, task, self.device)?;
        session.check_memory(self.ranks.size())?;
        session.check()?;
        session.join(self.ranks.clone(), &Identity::default())?;
        Ok(session)
    }

    fn measure<T: Task>(&self, session: &mut Session<T>) -> tealight_train::Result<Measured> {
        let Self { args, ranks, .. } = self;
        steps(session, args.warmup)?;
        memory::reset_peak();
        let measured = steps(session, args.steps)?;
        let peak_memory_bytes = memory::peak();
        let is_profiled = args.profile || !ranks.is_alone();
        let profile = is_profiled.then(|| profiled(session, args.steps)).transpose()?;
        let communication = communication(session, profile.as_deref())?;
        Ok(Measured { steps: measured, peak_memory_bytes, profile, communication })
    }

    fn number_format(&self) -> NumberFormat {
        let precision = self.loaded.config.training.precision;
        NumberFormat::for_device(precision.of_products(), self.args.device)
    }

    /// FLOP/s of a large matrix product on all processes. Each has its share of the cores, or a GPU.
    fn product_rate(&self, precision: Precision) -> Result<f64> {
        Ok(product_rate(self.device, precision)? * self.ranks.size() as f64)
    }

    fn report<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        measured: Measured,
    ) -> Result<Report> {
        let Measured { steps, peak_memory_bytes, profile, communication } = measured;
        let (args, config) = (self.args, &session.config);
        let cost = session.task.cost(&session.model, &config.model, &session.params);
        let n_examples = session.examples_per_step();
        let tokens_per_step = steps.mean_tokens_per_example() * n_examples as f64;
        let step = Times::from_durations(steps.milliseconds);
        let steps_per_second = 1e3 / step.median;
        let flops_per_step = 3 * cost.forward_flops * n_examples;
        let product_flops_per_second = self.product_rate(config.training.precision)?;
        Ok(Report {
            config: args.config.path.display().to_string(),
            attention: config.model.attention_kinds(),
            device: args.device.to_string(),
            threads: threads::count(),
            n_parameters: cost.n_parameters,
            n_steps: args.steps,
            n_warmup_steps: args.warmup,
            step,
            examples_per_step: n_examples,
            tokens_per_step,
            flops_per_step,
            precision: config.training.precision,
            computed_in: self.number_format().used().name(),
            product_flops_per_second,
            peak_memory_bytes,
            n_captured_steps: steps.n_captured,
            allocations_per_step: (steps.allocations as f64 / args.steps as f64).round(),
            loss: steps.loss,
            profile: profile.filter(|_| args.profile),
            communication,
            steps_per_second,
            tokens_per_second: tokens_per_step * steps_per_second,
            model_flops_utilisation: flops_per_step as f64 * steps_per_second
                / product_flops_per_second,
        })
    }
}

/// The exchange of gradients between the processes of an MPI job.
#[derive(Clone, Copy, Debug, Serialize)]
struct Communication {
    n_ranks: usize,
    /// Milliseconds of an exchange when nothing else is computed.
    exchange_ms: f64,
    /// Milliseconds per step that a process waits for the exchange, and so for slower processes.
    exposed_ms: f64,
}

/// What the exchange takes by itself, and how much of it a step of `profile` waits for; `None` in a single process.
fn communication<T: Task>(
    session: &Session<T>,
    profile: Option<&[Share]>,
) -> tealight_train::Result<Option<Communication>> {
    const REPEATS: usize = 6;
    let (Session { ranks, transport, config, params, .. }, Some(profile)) = (session, profile)
    else {
        return Ok(None);
    };
    if ranks.is_alone() {
        return Ok(None);
    }
    let sizes: Vec<_> = params.trained().map(|(_, parameter)| parameter.elem_count()).collect();
    let times = time_exchanges(ranks, transport, &sizes, &config.distributed, REPEATS)?;
    let times = Times::from_durations(times[1..].iter().copied().map(milliseconds).collect());
    let waits = profile.iter().filter(|share| share.operation == WAITING);
    let exposed_ms = waits.map(|share| share.milliseconds).sum();
    Ok(Some(Communication { n_ranks: ranks.size(), exchange_ms: times.median, exposed_ms }))
}

/// What was measured in several steps.
#[derive(Debug, Default)]
struct Steps {
    milliseconds: Vec<f64>,
    allocations: u64,
    /// Number of steps since the pass was captured as a CUDA graph.
    n_captured: usize,
    /// The sum over the steps.
    tokens_per_example: f64,
    /// Loss of the last step.
    loss: Option<f64>,
}

impl Steps {
    /// The mean over the steps.
    fn mean_tokens_per_example(&self) -> f64 {
        self.tokens_per_example / self.milliseconds.len() as f64
    }
}

/// Takes `n` steps and measures each.
fn steps<T: Task>(session: &mut Session<T>, n: usize) -> tealight_train::Result<Steps> {
    let mut steps = Steps::default();
    let clock = Clock {
        steps: &mut steps,
        last: (Instant::now(), n_allocations()),
        is_captured: false,
        seq_len: session.task.seq_len(),
    };
    let last = session.progress.step + n as u64;
    fit(session, last, None, &mut [Box::new(clock)])?;
    Ok(steps)
}

/// An observer that measures each step.
struct Clock<'a> {
    steps: &'a mut Steps,
    /// Time and number of allocations at the end of the previous step.
    last: (Instant, u64),
    is_captured: bool,
    seq_len: usize,
}

impl Observer for Clock<'_> {
    fn observe(&mut self, event: &Event<'_>) -> tealight_train::Result<()> {
        if let Event::GraphCaptured = event {
            self.is_captured = true;
        } else if let Event::Step(report) = event {
            let (began, before) = self.last;
            self.last = (Instant::now(), n_allocations());
            let tokens = report.tokens_per_second.map(|rate| rate / report.examples_per_second);
            self.steps.milliseconds.push(milliseconds(self.last.0 - began));
            self.steps.allocations += self.last.1 - before;
            self.steps.n_captured += usize::from(self.is_captured);
            self.steps.tokens_per_example += tokens.unwrap_or(self.seq_len as f64);
            self.steps.loss = Some(report.loss);
        }
        Ok(())
    }
}

/// Takes `n` steps and measures each operation.
fn profiled<T: Task>(session: &mut Session<T>, n: usize) -> tealight_train::Result<Vec<Share>> {
    let started = Instant::now();
    start();
    let measured = steps(session, n);
    let (times, elapsed) = (stop(), started.elapsed());
    measured.map(|_| operations::shares(&times, n, elapsed))
}

/// FLOP/s of one large matrix product: the fastest of several.
fn product_rate(device: &Device, precision: Precision) -> Result<f64> {
    const REPEATS: usize = 5;
    let n = if device.is_cpu() { 2048 } else { 8192 };
    let matrix = || {
        // Constant input would be faster on a GPU: fewer bits change, which draws less power.
        let numbers = Tensor::arange(0_f32, n as f32, device)?;
        let numbers = numbers.reshape((n, 1))?.broadcast_mul(&numbers)?.sin()?;
        numbers.to_dtype(precision.computes_in(device))
    };
    let (x, weight) = (matrix()?, matrix()?);
    let product = |x: &Tensor, weight: &Tensor| {
        with_product_precision(precision.of_products(), || linear(x, weight, None))
    };
    let mut fastest = f64::INFINITY;
    for _ in 0..REPEATS {
        fastest = fastest.min(seconds_of(device, || product(&x, &weight))?);
    }
    Ok(2. * (n as f64).powi(3) / fastest)
}

#[derive(Debug, Serialize)]
struct Report {
    config: String,
    attention: String,
    device: String,
    precision: Precision,
    /// `precision`, or f32 where the device lacks what it needs.
    computed_in: &'static str,
    threads: usize,
    n_parameters: usize,
    n_steps: usize,
    n_warmup_steps: usize,
    /// Milliseconds per step.
    step: Times,
    examples_per_step: u64,
    tokens_per_step: f64,
    /// FLOPs of forward and backward, counted as by `tealight inspect`.
    flops_per_step: u64,
    /// FLOP/s of one large matrix product.
    product_flops_per_second: f64,
    /// `null` where the system does not report it.
    peak_memory_bytes: Option<u64>,
    allocations_per_step: f64,
    /// Number of steps since the pass was captured as a CUDA graph.
    #[serde(rename = "n_recorded_steps")]
    n_captured_steps: usize,
    /// Loss of the last step; `null` if no step had a target.
    loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Vec<Share>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    communication: Option<Communication>,
    steps_per_second: f64,
    tokens_per_second: f64,
    model_flops_utilisation: f64,
}

impl Report {
    fn text(&self) -> String {
        let Times { median, fastest, slowest } = self.step;
        let memory = self
            .peak_memory_bytes
            .map_or("unknown".to_owned(), |bytes| format!("{:.0} MiB", bytes as f64 / MEBIBYTE));
        let format = match self.precision {
            Precision::F32 => String::new(),
            _ => format!(" in {}", self.computed_in),
        };
        let whole = |number: f64| thousands(number.round() as u64);
        let mut lines = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(lines, "{name:<22}{value}");
        };
        row("step, median", format!("{median:.3} ms"));
        row("fastest, slowest", format!("{fastest:.3}, {slowest:.3} ms"));
        row("tokens per second", whole(self.tokens_per_second));
        row("examples per second", whole(self.examples_per_step as f64 * self.steps_per_second));
        row("FLOPs per step", format!("{:.3} GFLOP", self.flops_per_step as f64 / 1e9));
        let rate = self.product_flops_per_second / 1e9;
        row("MFU", format!("{:.1} % of {rate:.1} GFLOP/s", 100. * self.model_flops_utilisation));
        row("peak memory", memory);
        row("allocations per step", whole(self.allocations_per_step));
        if self.n_captured_steps > 0 {
            row("CUDA graph steps", self.n_captured_steps.to_string());
        }
        if let Some(Communication { n_ranks, exchange_ms, exposed_ms }) = self.communication {
            row("processes", n_ranks.to_string());
            row("exchange alone", format!("{exchange_ms:.3} ms"));
            let exposed = format!("{exposed_ms:.3} ms, with waiting for slower processes");
            row("exposed per step", exposed);
        }
        let profile =
            self.profile.as_deref().map(|shares| format!("\n{}", operations::table(shares)));
        format!(
            "{}: {}, {} parameters, {} steps after {} warm-up steps, on {}{format} ({})\n\n{lines}{}",
            self.config,
            self.attention,
            thousands(self.n_parameters as u64),
            thousands(self.n_steps as u64),
            self.n_warmup_steps,
            self.device,
            counted(self.threads, "thread"),
            profile.unwrap_or_default()
        )
    }
}
