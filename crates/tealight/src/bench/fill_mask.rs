//! `tealight bench fill-mask`: how long it takes to fill the gaps of a text.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tealight_ops::threads;
use tealight_train::inference::fill_mask::{FillMask, Proposals};

use super::times::Times;
use crate::args::bench::BenchFillMask;
use crate::runs::load;
use crate::system::memory;
use crate::terminal::output::print;

pub(super) fn run(args: &BenchFillMask) -> Result<()> {
    let started = Instant::now();
    let device = &args.model.used.device.open()?;
    let pretrained = load::model(&args.model)?;
    let model = &pretrained.masked_lm(device)?;
    let tokenizer = pretrained.tokenizer()?;
    let fill_mask = FillMask::new(model, &pretrained.model, tokenizer, device);
    let loading = started.elapsed();
    let texts = std::slice::from_ref(&args.text);
    let proposals = Proposals { top_k: 5, targets: None };
    let mut times = Vec::with_capacity(args.repeats);
    // The first time is the price of a first time, and does not count.
    for _ in 0..=args.repeats {
        let since = Instant::now();
        fill_mask.fill(texts, &proposals)?;
        times.push(since.elapsed());
    }
    let (first, times) = (times[0], Times::of(times.into_iter().skip(1)));
    let [loading, first] = [loading, first].map(|time| time.as_secs_f64() * 1e3);
    print(&if args.json {
        let json = json!({
            "threads": threads::count(),
            "repeats": args.repeats,
            "loading_ms": loading,
            "first_ms": first,
            "milliseconds": times,
            "peak_memory_bytes": memory::peak(),
        });
        format!("{}\n", serde_json::to_string_pretty(&json)?)
    } else {
        let Times { median, fastest, slowest } = times;
        format!(
            "loading  {loading:.1} ms\nfirst    {first:.1} ms\nmedian   {median:.2} ms, {fastest:.2} to \
             {slowest:.2} ms\n"
        )
    })
}
