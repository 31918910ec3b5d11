//! Attention in tiles beside the same in matrix products: `cargo bench -p tealight-ops`.
//!
//! Milliseconds, median (and best) of runs that alternate; memory is what the process had at most
//! beyond what it had before (Linux).

#![expect(clippy::print_stdout, reason = "a benchmark is read on the terminal")]

use std::time::Instant;

use candle_core::{Device, Result, Tensor, Var};
use tealight_ops::attention::{Options, attention};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::softmax::softmax;
use tealight_ops::{allocator, backward};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// batch, n_heads, seq_len, head_dim
const SIZES: [[usize; 4]; 3] = [[100, 4, 10, 8], [12, 4, 64, 32], [16, 6, 256, 64]];

fn normal(index: u64, shape: &[usize]) -> Result<Tensor> {
    let stream = Stream::new(17, Purpose::Data).fork(index);
    let n = shape.iter().product::<usize>() as u64;
    let values: Vec<f32> = (0..n).map(|i| stream.normal(i) as f32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// softmax(q kᵀ) v with the matrix of weights.
fn dense(query: &Tensor, key: &Tensor, value: &Tensor, causal: Option<&Tensor>) -> Result<Tensor> {
    let scale = 1. / (query.dims4()?.3 as f64).sqrt();
    let mut scores = (query * scale)?.matmul(&key.t()?)?;
    if let Some(causal) = causal {
        scores = scores.broadcast_add(causal)?;
    }
    softmax(&scores)?.matmul(value)
}

type Op<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Milliseconds of a forward, and of a forward with its backward.
fn times(op: Op, operands: &[Var; 3]) -> Result<[f64; 2]> {
    let [query, key, value] = operands.each_ref().map(Var::as_tensor);
    let start = Instant::now();
    op(&query.detach(), &key.detach(), &value.detach())?;
    let forward = start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let loss = op(query, key, value)?.sum_all()?;
    backward(&loss, [("query", query), ("key", key), ("value", value)])?;
    Ok([forward, start.elapsed().as_secs_f64() * 1e3])
}

fn operands(shape: &[usize]) -> Result<[Var; 3]> {
    let var = |i| Var::from_tensor(&normal(i, shape)?);
    Ok([var(0)?, var(1)?, var(2)?])
}

fn compare(names: &[&str], ops: &[Op], shape: &[usize], n_runs: usize) -> Result<()> {
    let operands = operands(shape)?;
    let mut all = vec![[Vec::new(), Vec::new()]; ops.len()];
    for _ in 0..n_runs {
        for (op, all) in ops.iter().zip(&mut all) {
            for (times, time) in all.iter_mut().zip(times(op, &operands)?) {
                times.push(time);
            }
        }
    }
    for (name, all) in names.iter().zip(&mut all) {
        let [forward, both] = all.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            format!("{:9.3} ({:9.3})", times[times.len() / 2], times[0])
        });
        println!("{shape:?} {name:<16} forward {forward}   forward + backward {both}");
    }
    Ok(())
}

fn main() -> Result<()> {
    allocator::keep_freed_memory();
    for shape in SIZES {
        let len = shape[2];
        let ahead = |i, j| if j > i { f32::NEG_INFINITY } else { 0. };
        let causal = (0..len).flat_map(|i| (0..len).map(move |j| ahead(i, j)));
        let causal = Tensor::from_vec(causal.collect::<Vec<f32>>(), (len, len), &Device::Cpu)?;
        let options = Options::default();
        let ops: [Op; 4] = [
            &|q, k, v| attention(q, k, v, &options),
            &|q, k, v| dense(q, k, v, None),
            &|q, k, v| attention(q, k, v, &Options { causal: true, ..options }),
            &|q, k, v| dense(q, k, v, Some(&causal)),
        ];
        let n_runs = if len > 100 { 15 } else { 200 };
        compare(&["tiles", "dense", "tiles, causal", "dense, causal"], &ops, &shape, n_runs)?;
    }
    let long = [1, 12, 8192, 64];
    let options = Options { causal: true, ..Options::default() };
    let near = Options { window: Some(256), ..options };
    let ops: [Op; 2] =
        [&|q, k, v| attention(q, k, v, &options), &|q, k, v| attention(q, k, v, &near)];
    compare(&["tiles, causal", "window 256"], &ops, &long, 1)?;
    println!("at most {} MiB in memory", peak_mib());
    Ok(())
}

fn peak_mib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    peak.and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or("?".into(), |kib| (kib >> 10).to_string())
}
