//! `tealight bench product`: throughput of matrix products.

use std::time::Instant;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use serde_json::json;
use tealight_ops::int8_linear::{Map, Weight, int8_linears};
use tealight_ops::linear::linear;
use tealight_ops::{ProductPrecision, threads};
use tealight_train::task::table::Table;

use super::times::{Times, seconds_of};
use crate::args::bench::{BenchProduct, ProductShape};
use crate::runs::number_format::NumberFormat;
use crate::terminal::output::{print, print_indented_json};

/// The minimum number of repeats for a median.
const MIN_REPEATS: usize = 5;

pub(super) fn run(args: &BenchProduct) -> Result<()> {
    let device = args.device.open()?;
    let precision = args.computation.precision;
    let format = NumberFormat::for_device(precision, args.device);
    format.warn_if_replaced();
    let measure = |shape: &ProductShape| Ok((*shape, measure(*shape, args, &device)?));
    let measured: Vec<_> = args.shapes.iter().map(measure).collect::<Result<_>>()?;
    if args.options.json {
        let products = measured.iter().map(|(shape, times)| {
            json!({
                "shape": shape.to_string(),
                "milliseconds": times,
                "gflops": rate(*shape, times.median),
                "best_gflops": rate(*shape, times.fastest),
            })
        });
        let products: Vec<_> = products.collect();
        return print_indented_json(&json!({
            "threads": threads::count(),
            "precision": precision.name(),
            "computed_in": format.used().name(),
            "products": products,
        }));
    }
    let mut table = Table::new(["M x N x K", "ms", "GFLOP/s", "best"]);
    for (shape, times) in measured {
        let rate = |milliseconds| format!("{:.1}", rate(shape, milliseconds));
        let ms = format!("{:.3}", times.median);
        table.row([shape.to_string(), ms, rate(times.median), rate(times.fastest)]);
    }
    print(&table.to_string())
}

fn measure(
    ProductShape { m, n, k }: ProductShape,
    args: &BenchProduct,
    device: &Device,
) -> Result<Times> {
    let precision = args.computation.precision;
    let is_half = precision == ProductPrecision::Bf16 && device.is_cuda();
    let dtype = if is_half { DType::BF16 } else { DType::F32 };
    let x = Tensor::ones((m, k), dtype, device)?;
    let weight = Tensor::ones((n, k), dtype, device)?;
    let int8 =
        if precision == ProductPrecision::Int8 { Weight::from_tensor(&weight)? } else { None };
    let product = || match &int8 {
        Some(weight) => int8_linears(&x, &[Map { weight, bias: None, function: None }]).map(|_| ()),
        None => linear(&x, &weight, None).map(|_| ()),
    };
    product()?;
    let (started, mut times) = (Instant::now(), Vec::new());
    while times.len() < MIN_REPEATS || started.elapsed().as_secs_f64() < args.seconds {
        times.push(1e3 * seconds_of(device, product)?);
    }
    Ok(Times::from_durations(times))
}

/// GFLOP/s; a multiply-add counts as two operations.
fn rate(ProductShape { m, n, k }: ProductShape, milliseconds: f64) -> f64 {
    2. * (m * n * k) as f64 / milliseconds / 1e6
}
