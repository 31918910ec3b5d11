//! Measures the exchange of gradients by itself, and predicts what it costs a step.
//!
//! ```text
//! c    = (k + 1)·(R−1)/R·P·b/B + 2·(R−1)·n_b·α
//! T(R) = (M/R)·t_micro + t_update + max(c − φ·t_backward, c/n_b)
//! E    = T(1) / (R·T(R))
//! ```
//!
//! P parameters of b bytes on the wire, R ranks, k partial sums per rank, n_b buckets, bandwidth B and latency α of a
//! rank's connection, M micro-batches; φ is 1 with `distributed.overlap`, otherwise 0. The last bucket cannot be
//! hidden.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};

use super::bucket_reducer::{BucketReducer, NeededSums};
use super::exchange::GradientExchange;
use super::plan::{Division, Plan};
use crate::communicator::ranks::Ranks;
use crate::communicator::transport::Transport;
use crate::config::DistributedConfig;
use crate::error::Result;
use crate::training::pairwise_sum::nodes_within;

/// The times that `repeats` exchanges of gradients of these `sizes` take, in elements, when nothing else is computed.
/// Each rank has one micro-batch. All ranks call it.
///
/// # Errors
/// If communication fails.
pub fn time_exchanges(
    ranks: &Ranks,
    transport: &Arc<dyn Transport>,
    sizes: &[usize],
    settings: &DistributedConfig,
    repeats: usize,
) -> Result<Vec<Duration>> {
    let (device, n) = (transport.device(), ranks.size());
    let plan = Arc::new(Plan::new(sizes, settings.bucket_len(), &Division::Equal(n)));
    let gradients = sizes.iter().map(|&size| Tensor::ones(size, DType::F32, device));
    let gradients = gradients.collect::<candle_core::Result<Vec<_>>>()?;
    let (wire, needed) = (settings.compress, NeededSums::All);
    let reducer = BucketReducer::new(ranks, transport.clone(), n as u64, wire, needed);
    thread::scope(|scope| {
        let mut exchange = GradientExchange::start(plan, reducer, scope)?;
        let mut time = || {
            device.synchronize()?;
            // All begin together.
            ranks.gather(&())?;
            let started = Instant::now();
            for (index, gradient) in gradients.iter().enumerate() {
                exchange.offer(index, vec![Some(gradient.clone())]);
            }
            exchange.finish()?;
            device.synchronize()?;
            Ok(started.elapsed())
        };
        (0..repeats).map(|_| time()).collect()
    })
}

/// A job, as the model of its cost describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// R.
    pub n_ranks: usize,
    /// M, of all ranks together.
    pub n_micro_batches: u64,
    /// P.
    pub n_parameters: f64,
    /// b: 4, or 2 with `compress = "bf16"`.
    pub bytes_per_number: f64,
    /// B, in bytes per second.
    pub bandwidth: f64,
    /// α, in seconds.
    pub latency: f64,
    /// n_b.
    pub n_buckets: f64,
    /// Forward and backward of a micro-batch, in seconds.
    pub micro_batch: f64,
    /// The backward pass alone, in seconds.
    pub backward: f64,
    /// The update, in seconds.
    pub update: f64,
    /// φ = 1.
    pub overlaps: bool,
}

impl Cost {
    /// c: the seconds that an exchange takes by itself.
    pub fn exchange(&self) -> f64 {
        let Self { n_ranks, n_micro_batches, n_parameters, .. } = *self;
        if n_ranks == 1 {
            return 0.;
        }
        let (r, own) = (n_ranks as f64, n_micro_batches / n_ranks as u64);
        let partials = (0..n_ranks as u64)
            .map(|rank| nodes_within(rank * own..(rank + 1) * own, n_micro_batches).len());
        let k = partials.max().unwrap_or(1) as f64;
        let bytes = (k + 1.) * (r - 1.) / r * n_parameters * self.bytes_per_number;
        bytes / self.bandwidth + 2. * (r - 1.) * self.n_buckets * self.latency
    }

    /// The part of the exchange that the backward pass does not hide, in seconds.
    pub fn exposed(&self) -> f64 {
        let c = self.exchange();
        if self.overlaps { (c - self.backward).max(c / self.n_buckets) } else { c }
    }

    /// T(R): the seconds of a step.
    pub fn step(&self) -> f64 {
        let own = self.n_micro_batches as f64 / self.n_ranks as f64;
        own * self.micro_batch + self.update + self.exposed()
    }

    /// E: the share of R times the speed of one rank.
    pub fn efficiency(&self) -> f64 {
        let alone = Self { n_ranks: 1, ..*self };
        alone.step() / (self.n_ranks as f64 * self.step())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 GbE, one micro-batch per rank whose backward pass takes two thirds of it, buckets of 4 MB.
    fn on_four(n_parameters: f64, micro_batch: f64, overlaps: bool) -> Cost {
        Cost {
            n_ranks: 4,
            n_micro_batches: 4,
            n_parameters,
            bytes_per_number: 4.,
            bandwidth: 1.1e9,
            latency: 30e-6,
            n_buckets: (n_parameters * 4. / 4e6).ceil(),
            micro_batch,
            backward: micro_batch * 2. / 3.,
            update: 0.,
            overlaps,
        }
    }

    #[test]
    fn a_step_costs_what_the_formula_says() {
        let cost = on_four(10e6, 0.1, false);
        // 2·3/4·40 MB / 1.1 GB/s + 2·3·10·30 µs
        assert!((cost.exchange() - (60e6 / 1.1e9 + 1.8e-3)).abs() < 1e-9);
        assert!((cost.efficiency() - 0.64).abs() < 0.01, "{}", cost.efficiency());
        let overlapped = on_four(10e6, 0.1, true);
        assert!((overlapped.efficiency() - 0.95).abs() < 0.01, "{}", overlapped.efficiency());
        assert_eq!(Cost { n_ranks: 1, ..cost }.efficiency(), 1.);
        // Three micro-batches of six are two subtrees.
        let uneven = Cost { n_ranks: 2, n_micro_batches: 6, latency: 0., ..cost };
        assert!((uneven.exchange() - 3. / 2. * 40e6 / 1.1e9).abs() < 1e-9);
    }
}
