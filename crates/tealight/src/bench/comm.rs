//! `tealight bench comm`: the exchange of gradients between processes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use tealight_train::communicator::mpi::Mpi;
use tealight_train::communicator::ranks::Ranks;
use tealight_train::communicator::transport::{ThroughHost, Transport};
use tealight_train::config::DistributedConfig;
use tealight_train::task::table::Table;
use tealight_train::training::distributed::measure::{Cost, time_exchanges};

use super::times::{Times, milliseconds};
use crate::args::bench::BenchComm;
use crate::runs::job;
use crate::terminal::output::{print, print_indented_json};

/// Bytes of a gradient's element.
const WIDTH: f64 = 4.;

pub(super) fn run(args: &BenchComm) -> Result<ExitCode> {
    job::run(|ranks, mpi| {
        let Some(mpi) = mpi else {
            bail!(
                "there is no other process to communicate with; `mpirun -n 2 tealight bench comm` starts two"
            )
        };
        let report = Report::measure(args, ranks, mpi)?;
        if ranks.is_first() {
            if args.json { print_indented_json(&report) } else { print(&report.text()) }?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

#[derive(Debug, Serialize)]
struct Report {
    library: String,
    n_ranks: usize,
    hosts: Vec<String>,
    /// Microseconds of one small message from each rank to all.
    latency_us: f64,
    step_ms: f64,
    sizes: Vec<Size>,
}

/// The measurements of one size.
#[derive(Debug, Serialize)]
struct Size {
    megabytes: f64,
    /// Milliseconds of an exchange of gradients with its sums: the slowest rank's.
    exchange: Times,
    /// Milliseconds of `MPI_Allreduce`, whose sums depend on the number of ranks.
    allreduce: Times,
    /// Bytes that a rank sends per second, from the difference to the exchange of half the size.
    bytes_per_second: f64,
    /// Predicted efficiency of a step with one micro-batch per rank.
    efficiency: f64,
    efficiency_without_overlap: f64,
}

impl Report {
    fn measure(args: &BenchComm, ranks: &Ranks, mpi: &Mpi) -> Result<Self> {
        let latency = latency(ranks)?;
        let sizes = args.megabytes.iter().map(|&mb| Size::measure(mb, args, ranks, mpi, latency));
        Ok(Self {
            library: mpi.describe(),
            n_ranks: ranks.size(),
            hosts: (0..ranks.size()).map(|rank| ranks.host(rank).to_owned()).collect(),
            latency_us: latency * 1e6,
            step_ms: args.step_ms,
            sizes: sizes.collect::<Result<_>>()?,
        })
    }

    fn text(&self) -> String {
        let Self { library, n_ranks, latency_us, step_ms, .. } = self;
        let mut table = Table::new([
            "MB".to_owned(),
            "exchange ms".to_owned(),
            "GB/s".to_owned(),
            "MPI_Allreduce ms".to_owned(),
            "ratio".to_owned(),
            format!("efficiency at {step_ms} ms"),
            "without overlap".to_owned(),
        ]);
        for size in &self.sizes {
            table.row([
                format!("{}", size.megabytes),
                format!("{:.2}", size.exchange.median),
                format!("{:.2}", size.bytes_per_second / 1e9),
                format!("{:.2}", size.allreduce.median),
                format!("{:.2}", size.exchange.median / size.allreduce.median),
                format!("{:.2}", size.efficiency),
                format!("{:.2}", size.efficiency_without_overlap),
            ]);
        }
        format!("{n_ranks} processes, {library}, latency {latency_us:.1} µs\n\n{table}")
    }
}

impl Size {
    fn measure(
        megabytes: f64,
        args: &BenchComm,
        ranks: &Ranks,
        mpi: &Mpi,
        latency: f64,
    ) -> Result<Self> {
        let Measured { exchange, half, allreduce } =
            Measured::measure(megabytes, args.repeats, ranks, mpi)?;
        let seconds = [exchange.median, half.median].map(|ms| ms / 1e3);
        let bytes_per_second = bandwidth(ranks.size(), megabytes, seconds, latency);
        let cost = |overlaps| Cost {
            n_ranks: ranks.size(),
            n_micro_batches: ranks.size() as u64,
            n_parameters: megabytes * 1e6 / WIDTH,
            bytes_per_number: WIDTH,
            bandwidth: bytes_per_second,
            latency,
            n_buckets: n_buckets(megabytes),
            micro_batch: args.step_ms / 1e3,
            // A backward pass computes twice what a forward pass does.
            backward: args.step_ms / 1e3 * 2. / 3.,
            update: 0.,
            overlaps,
        };
        let [efficiency, efficiency_without_overlap] =
            [true, false].map(|overlaps| cost(overlaps).efficiency());
        Ok(Self {
            megabytes,
            exchange,
            allreduce,
            bytes_per_second,
            efficiency,
            efficiency_without_overlap,
        })
    }
}

/// Milliseconds of the slowest rank.
struct Measured {
    exchange: Times,
    /// The exchange of half the size.
    half: Times,
    allreduce: Times,
}

impl Measured {
    fn measure(megabytes: f64, repeats: usize, ranks: &Ranks, mpi: &Mpi) -> Result<Self> {
        let len = (megabytes * 1e6 / WIDTH) as usize;
        let (terms, mut sums) = (vec![1.; len], vec![0.; len]);
        let mut times = [const { Vec::new() }; 3];
        // In turns, so that a disturbance of the machine meets all.
        for _ in 0..=repeats {
            let exchanges = [time_exchange(ranks, len)?, time_exchange(ranks, len / 2)?];
            ranks.gather(&())?;
            let started = Instant::now();
            mpi.allreduce_f32_sum(&terms, &mut sums)?;
            let all = [exchanges[0], exchanges[1], started.elapsed()];
            for (times, time) in times.iter_mut().zip(all) {
                times.push(slowest(ranks, milliseconds(time))?);
            }
        }
        let [exchange, half, allreduce] =
            times.map(|times| Times::from_durations(times[1..].to_vec()));
        Ok(Self { exchange, half, allreduce })
    }
}

/// An exchange of `len` numbers, after another one.
fn time_exchange(ranks: &Ranks, len: usize) -> Result<Duration> {
    // Parameters of about a megabyte, as models have many.
    let starts = (0..len).step_by(1 << 18);
    let sizes: Vec<_> = starts.map(|start| (len - start).min(1 << 18)).collect();
    let transport: Arc<dyn Transport> = Arc::new(ThroughHost::new(ranks.clone()));
    let times = time_exchanges(ranks, &transport, &sizes, &DistributedConfig::default(), 2)?;
    Ok(times[1])
}

/// The bytes per second at which the second half of `megabytes` travels, where `seconds` are the times of the whole and
/// of half of it: neither latency nor anything else that every exchange takes is counted.
fn bandwidth(n_ranks: usize, megabytes: f64, seconds: [f64; 2], latency: f64) -> f64 {
    let n = n_ranks as f64;
    let bytes = |megabytes: f64| 2. * (n - 1.) / n * megabytes * 1e6;
    let n_more_buckets = n_buckets(megabytes) - n_buckets(megabytes / 2.);
    let more = seconds[0] - seconds[1] - 2. * (n - 1.) * n_more_buckets * latency;
    // Where the times scatter more than they differ, latency cannot be told from the rest.
    if more > 0. { bytes(megabytes / 2.) / more } else { bytes(megabytes) / seconds[0] }
}

fn n_buckets(megabytes: f64) -> f64 {
    (megabytes / DistributedConfig::default().bucket_mb).ceil()
}

/// Seconds of one small message from each rank to all.
fn latency(ranks: &Ranks) -> Result<f64> {
    const REPEATS: usize = 200;
    let mut all = vec![0; ranks.size()];
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        let started = Instant::now();
        ranks.communicator().gather(&[0], &mut all, &vec![1; ranks.size()])?;
        times.push(started.elapsed().as_secs_f64());
    }
    slowest(ranks, Times::from_durations(times).median)
}

/// The largest of the ranks' values.
fn slowest(ranks: &Ranks, own: f64) -> Result<f64> {
    Ok(ranks.gather(&own)?.into_iter().fold(0., f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_not_in_the_bandwidth() {
        let (bandwidth_, latency) = (1e9, 50e-6);
        // Two ranks: a rank sends as many bytes as there are, in 2 messages for each bucket, after 3 ms of preparation.
        let seconds = |megabytes: f64| {
            3e-3 + megabytes * 1e6 / bandwidth_ + 2. * n_buckets(megabytes) * latency
        };
        for megabytes in [1., 10., 100.] {
            let measured =
                bandwidth(2, megabytes, [seconds(megabytes), seconds(megabytes / 2.)], latency);
            assert!((measured / bandwidth_ - 1.).abs() < 1e-9, "{measured}");
        }
        assert_eq!(bandwidth(2, 10., [1e-2, 2e-2], latency), 1e9);
    }
}
