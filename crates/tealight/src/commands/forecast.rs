//! `tealight forecast RUN --start DAYS`: the next days, as emoji.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tealight_train::inference::forecast::{Decoding, Rollout};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::forecast::{self, Request};
use tealight_train::weather::{Weather, format, parse};

use crate::args::predict::Forecast;
use crate::args::shared::{Model, TrainedRun};
use crate::runs::load::open_model;
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Forecast) -> Result<()> {
    let start = parse(&args.start).context("cannot parse `--start` as weather")?;
    if start.is_empty() {
        bail!("`--start` is empty; expected days: 🌧️ ☁️ ☀️ or the letters R C S, oldest first");
    }
    let TrainedRun { path, weights } = &args.run;
    let (model, device) = open_model(&Model { path: path.clone(), weights: *weights })?;
    let pipeline = forecast::Forecast::open(&model, &device)?;
    let decoding = match args.beams {
        Some(beams) => Decoding::Beams(beams),
        None => {
            Decoding::Sample { seed: args.seed, temperature: args.temperature, top_k: args.top_k }
        }
    };
    let request = Request { start: start.clone(), n_days: args.days, decoding };
    let rollout = pipeline.answer(&request)?.rollout;
    if args.json {
        return print_json(&as_json(&rollout));
    }
    print(&as_text(&start, &rollout))
}

fn as_text(start: &[u8], rollout: &Rollout) -> String {
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{line}").expect("invariant: a String grows");
    let next = Weather::ALL.iter().zip(rollout.next);
    let next =
        next.map(|(day, probability)| format!("{} {:.1} %", day.emoji(), 100. * probability));
    line(format!("next day   {}", next.collect::<Vec<_>>().join("   ")));
    for sequence in &rollout.sequences {
        let probability = match rollout.sequences.len() {
            1 => String::new(),
            _ => format!("   {:.2} %", 100. * sequence.log_probability.exp()),
        };
        line(format!("{} → {}{probability}", format(start), format(&sequence.days)));
    }
    if rollout.n_unknown > 0 {
        line(format!(
            "(the model's window has {} more days: averaged over days drawn by the model)",
            rollout.n_unknown
        ));
    }
    text
}

fn as_json(rollout: &Rollout) -> Value {
    let sequences: Vec<_> = rollout
        .sequences
        .iter()
        .map(|sequence| {
            json!({
                "days": sequence.days,
                "emoji": format(&sequence.days),
                "log_probability": sequence.log_probability,
            })
        })
        .collect();
    let [rain, cloud, sun] = rollout.next;
    let next = json!({ "rain": rain, "cloud": cloud, "sun": sun });
    json!({ "next": next, "sequences": sequences, "n_unknown": rollout.n_unknown })
}
