//! `tealight bench fill-mask`: latency of predicting masked tokens.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tealight_ops::threads;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::fill_mask::{FillMask, Request};

use super::times::{Times, milliseconds, seconds_of};
use crate::args::bench::BenchFillMask;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::system::memory;
use crate::terminal::output::{print, print_indented_json};

pub(super) fn run(args: &BenchFillMask) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let started = Instant::now();
    let (model, device) = &open_model(&args.model)?;
    let pipeline = FillMask::open(model, device)?;
    let loading = milliseconds(started.elapsed());
    let request = Request { texts: vec![args.text.clone()], top_k: 5, targets: None, budget: None };
    let mut times = Vec::new();
    // The first repeat is a warm-up.
    for _ in 0..=args.repeats {
        times.push(1e3 * seconds_of(device, || pipeline.answer(&request))?);
    }
    let first = times.remove(0);
    let times = Times::from_durations(times);
    if args.options.json {
        return print_indented_json(&json!({
            "threads": threads::count(),
            "repeats": args.repeats,
            "loading_ms": loading,
            "first_ms": first,
            "milliseconds": times,
            "peak_memory_bytes": memory::peak(),
        }));
    }
    let Times { median, fastest, slowest } = times;
    print(&format!(
        "loading  {loading:.1} ms\nfirst    {first:.1} ms\nmedian   {median:.2} ms, {fastest:.2} to \
         {slowest:.2} ms\n"
    ))
}
