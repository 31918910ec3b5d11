//! `tealight bench embed`: time of embedding texts.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tealight_ops::profile::{start, stop};
use tealight_ops::threads;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::FeatureExtraction;

use super::operations;
use super::times::{Times, milliseconds, seconds_of};
use crate::args::bench::BenchEmbed;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::system::memory;
use crate::terminal::input;
use crate::terminal::output::{print, print_indented_json};

pub(super) fn run(args: &BenchEmbed) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let started = Instant::now();
    let (model, device) = &open_model(&args.model)?;
    let pipeline = FeatureExtraction::open(model, device)?;
    let embedder = pipeline.embedder();
    let loading = milliseconds(started.elapsed());
    let texts = input::texts(&[], Some(&args.file))?;
    let mut times = Vec::new();
    // The first repeat is a warm-up.
    for _ in 0..=args.repeats {
        times.push(1e3 * seconds_of(device, || embedder.embed(&texts))?);
    }
    let first = times.remove(0);
    let times = Times::from_durations(times);
    let peak_memory_bytes = memory::peak();
    let profile = args.profile.then(|| -> Result<_> {
        start();
        let started = Instant::now();
        (0..args.repeats).try_for_each(|_| embedder.embed(&texts).map(|_| ()))?;
        Ok(operations::shares(&stop(), args.repeats, started.elapsed()))
    });
    let profile = profile.transpose()?;
    if args.options.json {
        return print_indented_json(&json!({
            "threads": threads::count(),
            "repeats": args.repeats,
            "n_texts": texts.len(),
            "loading_ms": loading,
            "first_ms": first,
            "milliseconds": times,
            "peak_memory_bytes": peak_memory_bytes,
            "profile": profile,
        }));
    }
    let Times { median, fastest, slowest } = times;
    let profile = profile.map(|shares| format!("\n{}", operations::table(&shares)));
    print(&format!(
        "loading  {loading:.1} ms\nfirst    {first:.1} ms\nmedian   {median:.1} ms, {fastest:.1} to {slowest:.1} ms \
         for {} texts\n{}",
        texts.len(),
        profile.unwrap_or_default()
    ))
}
