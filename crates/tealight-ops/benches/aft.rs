//! The attention-free means over the length of the sequence: `cargo bench -p tealight-ops --bench aft`.
//!
//! Milliseconds at d_model 768, best of three. All but AFT-full should double from line to line; it should quadruple.

#![expect(clippy::print_stdout, reason = "a benchmark is read on the terminal")]

use std::time::Instant;

use candle_core::{Device, Result, Tensor, Var};
use tealight_ops::Reach;
use tealight_ops::aft::{Alignment, aft_conv, aft_full, aft_local, aft_simple};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::{allocator, backward};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

const LENGTHS: [usize; 4] = [1024, 2048, 4096, 8192];
const D_MODEL: usize = 768;
const N_HEADS: usize = 12;
const WINDOW: usize = 32;
const KERNEL_SIZE: usize = 11;
const N_RUNS: usize = 3;

fn normal(index: u64, shape: &[usize]) -> Result<Var> {
    let stream = Stream::new(17, Purpose::Data).fork(index);
    let n = shape.iter().product::<usize>() as u64;
    let values: Vec<f32> = (0..n).map(|i| stream.normal(i) as f32).collect();
    Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// Of key, value and w.
type Op<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Milliseconds of a forward, and of the backward that follows one.
fn times(op: Op, [key, value, w]: [&Tensor; 3]) -> Result<[f64; 2]> {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..N_RUNS {
        let start = Instant::now();
        let y = op(key, value, w)?;
        best[0] = best[0].min(start.elapsed().as_secs_f64() * 1e3);
        let loss = y.sum_all()?;
        let start = Instant::now();
        backward(&loss, [("key", key), ("value", value), ("w", w)])?;
        best[1] = best[1].min(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

fn main() -> Result<()> {
    allocator::keep_freed_memory();
    for len in LENGTHS {
        let (key, value) = (normal(0, &[1, len, D_MODEL])?, normal(1, &[1, len, D_MODEL])?);
        let heads = normal(2, &[1, len, N_HEADS])?;
        let wide = (1, len, N_HEADS, D_MODEL / N_HEADS);
        for reach in [Reach::Everything, Reach::Past] {
            let conv: Op = &|key, value, w| {
                aft_conv(key, &value.reshape(wide)?, w, Alignment::Centred, None, reach)
            };
            let kinds: [(&str, &Var, [usize; 2], Op); 4] = [
                ("simple", &key, [1, 1], &|k, v, _| aft_simple(k, v, None, reach)),
                ("local", &key, [len, 2 * WINDOW - 1], &|k, v, w| aft_local(k, v, w, None, reach)),
                ("conv", &heads, [N_HEADS, KERNEL_SIZE], conv),
                ("full", &key, [len, len], &|k, v, w| aft_full(k, v, w, None, reach)),
            ];
            for (name, key, shape, op) in kinds {
                let w = normal(3, &shape)?;
                let [forward, backward] = times(op, [key.as_tensor(), &value, &w])?;
                println!(
                    "{len:>5} {reach:?} {name:<6} {forward:10.2} ms forward {backward:10.2} ms backward"
                );
            }
        }
    }
    Ok(())
}
