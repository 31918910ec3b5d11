//! Nanoseconds per element of the operations between matrix products: `cargo bench -p tealight-ops
//! --bench operations`.
//!
//! Median of runs over tensors that fit into a second-level cache, and over some that do not.

#![expect(clippy::print_stdout, reason = "a benchmark is read on the terminal")]

use std::time::Instant;

use candle_core::{Device, Result, Tensor, Var};
use tealight_ops::adamw::{self, Hyper, Slot};
use tealight_ops::dropout::Draw;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::{activation, allocator, backward, norm, residual, softmax, threads};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// Rows and width.
const SHAPES: [[usize; 2]; 4] = [[1_000, 32], [768, 128], [4_096, 256], [4_096, 1_024]];

fn normal(index: u64, shape: &[usize]) -> Result<Tensor> {
    let stream = Stream::new(17, Purpose::Data).fork(index);
    let n = shape.iter().product::<usize>() as u64;
    let values: Vec<f32> = (0..n).map(|i| stream.normal(i) as f32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

type Op<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// Nanoseconds per element of `f`.
fn time(n_elements: usize, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let runs = (200_000_000 / n_elements).clamp(5, 200);
    let mut times = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64() * 1e9 / n_elements as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Forward, and forward with backward.
fn times(op: Op, x: &Var) -> Result<[f64; 2]> {
    let n = x.elem_count();
    let detached = x.as_detached_tensor();
    let forward = time(n, || op(&detached).map(|_| ()))?;
    let both = time(n, || {
        let loss = op(x.as_tensor())?.sum_all()?;
        backward(&loss, [("x", x.as_tensor())]).map(|_| ())
    })?;
    Ok([forward, both])
}

fn main() -> Result<()> {
    allocator::keep_freed_memory();
    for n_threads in [1, threads::count()] {
        threads::with(n_threads, || table(n_threads))?;
    }
    Ok(())
}

fn table(n_threads: usize) -> Result<()> {
    println!("\n{n_threads} threads; ns per element, forward / with backward");
    let stream = Stream::new(1, Purpose::Dropout);
    for shape in SHAPES {
        let x = Var::from_tensor(&normal(0, &shape)?)?;
        let (weight, bias) = (normal(1, &shape[1..])?, normal(2, &shape[1..])?);
        let draw = Some(Draw { rate: 0.1, stream });
        let ops: [(&str, Op); 9] = [
            ("relu", &activation::relu),
            ("gelu", &activation::gelu),
            ("silu", &activation::silu),
            ("softmax", &softmax::softmax),
            ("layer_norm", &|x| norm::layer_norm(x, &weight, Some(&bias), 1e-5)),
            ("rms_norm", &|x| norm::rms_norm(x, &weight, 1e-5)),
            ("residual", &|x| residual::residual(x, x, None)),
            ("residual, dropout", &|x| residual::residual(x, x, draw)),
            ("nothing", &|x| Ok(x.clone())),
        ];
        for (name, op) in ops {
            let [forward, both] = times(op, &x)?;
            println!("{shape:?}  {name:<18} {forward:7.3} {both:7.3}");
        }
        let gradient = normal(3, &shape)?;
        let [m, v] = [Var::from_tensor(&x.zeros_like()?)?, Var::from_tensor(&x.zeros_like()?)?];
        let hyper = Hyper {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            gradient_scale: 1.,
        };
        let slot =
            Slot { parameter: &x, gradient: &gradient, first_moment: &m, second_moment: &v, hyper };
        let step = time(x.elem_count(), || adamw::step_all(&[slot], 1))?;
        println!("{shape:?}  {:<18} {step:7.3}", "adamw");
    }
    Ok(())
}
