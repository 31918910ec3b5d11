//! `tealight attend MODEL SEQUENCE`: what each position read from the others.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use tealight_model::attention::RowSum;
use tealight_model::models::forecaster::ReadOut;
use tealight_train::Session;
use tealight_train::pretrained::Pretrained;
use tealight_train::task::weather::Weather;
use tealight_train::task::{Reading, TaskConfig};
use tealight_train::weather::{format, parse};

use super::forecast::task;
use super::{classify, translate};
use crate::args::Attend;
use crate::pictures::attention::{matrices, mean, pictures};
use crate::pictures::files::save;
use crate::runs::load::{Found, Run};
use crate::terminal::output::{print, print_paths};

pub(crate) fn run(args: &Attend) -> Result<()> {
    match Found::open(&args.model)? {
        Found::Run(run) => of_run(args, &run),
        Found::Folder(model, device) => {
            let readings = model.readings(&args.sequence, &device)?;
            show(args, json!({ "text": args.sequence }), &readings, None, model.model.n_heads)
        }
    }
}

fn of_run(args: &Attend, run: &Run) -> Result<()> {
    let (sequence, readings) = match &run.config.task {
        TaskConfig::Weather(_) => of_days(run, &args.sequence)?,
        TaskConfig::MaskedLm(_) | TaskConfig::CausalLm(_) => {
            let model = Pretrained::open(&args.model.path, args.model.used.checkpoint)?;
            let readings = model.readings(&args.sequence, &run.device)?;
            (json!({ "text": args.sequence }), readings)
        }
        TaskConfig::Seq2Seq(config) => {
            let session = run.load(translate::task(run, config)?)?;
            let readings = session.task.readings_of(&session.twin, &args.sequence)?;
            (json!({ "source": args.sequence }), readings)
        }
        TaskConfig::Classify(config) => {
            let session = run.load(classify::task(run, config)?)?;
            let readings = session.task.readings_of(&session.twin, &args.sequence)?;
            (json!({ "text": args.sequence }), readings)
        }
        TaskConfig::ListOps(_) => {
            bail!(
                "`tealight attend` draws no run of the task \"listops\", as `{}` is: its sequences are too long",
                run.directory.path().display()
            )
        }
    };
    let output = run.directory.path().join("attention");
    show(args, sequence, &readings, Some(output), run.config.model.n_heads)
}

/// Prints or draws; into the folder of `args`, or the one of `output`.
fn show(
    args: &Attend,
    sequence: Value,
    readings: &[Reading],
    output: Option<PathBuf>,
    n_heads: usize,
) -> Result<()> {
    if args.json {
        return print(&as_json(sequence, readings)?);
    }
    if args.text {
        return print(&as_text(readings)?);
    }
    let Some(output) = args.output.clone().or(output) else {
        bail!("`--output DIR` is needed: the model is no run that would keep the pictures");
    };
    let pictures = pictures(readings, args.maps, n_heads)?;
    print_paths(&save(&output, pictures)?)
}

/// What a model of the weather reads in days, which stand in the JSON as numbers and as emoji.
fn of_days(run: &Run, sequence: &str) -> Result<(Value, Vec<Reading>)> {
    let days = parse(sequence).context("the sequence is not weather")?;
    let session = run.load(task(run, "attend")?)?;
    let days = window(&session, &days)?;
    let readings = session.task.readings_of(&session.twin, days)?;
    Ok((json!({ "days": days, "emoji": format(days) }), readings))
}

/// The last days that the model sees. One that forecasts at every position has learnt shorter
/// sequences, too.
fn window<'a>(session: &Session<Weather>, days: &'a [u8]) -> Result<&'a [u8]> {
    let config = session.task.config();
    let (n, window) = (days.len(), config.window);
    if n == 0 {
        bail!("the sequence holds no day: 🌧️ ☁️ ☀️ or the letters R C S, oldest first");
    }
    if n < window && config.read_out != ReadOut::EveryPosition {
        bail!("the sequence has {n} days, and the model reads {window}: it has learnt no other");
    }
    Ok(&days[n.saturating_sub(window)..])
}

/// The mean map of each layer, in percent.
fn as_text(readings: &[Reading]) -> Result<String> {
    let mut text = String::new();
    for Reading { name, queries, keys, maps } in readings {
        let mean = mean(&matrices(&maps.weights)?);
        writeln!(text, "{name}, mean of {} maps, in percent", maps.weights.dim(1)?)?;
        let heading = keys.iter().map(|key| cell(key)).collect::<String>();
        writeln!(text, "{}{heading}", cell(""))?;
        for (query, row) in queries.iter().zip(mean) {
            write!(text, "{}", cell(query))?;
            row.iter().try_for_each(|value| write!(text, "{:>6.1}", 100. * value))?;
            text.push('\n');
        }
    }
    Ok(text)
}

/// A name, six columns wide in a terminal, where an emoji takes two.
fn cell(name: &str) -> String {
    let columns = if name.is_ascii() { name.len() } else { 2 };
    format!("{}{name}", " ".repeat(6_usize.saturating_sub(columns)))
}

/// `sequence` says what was read, and is an object.
fn as_json(mut sequence: Value, readings: &[Reading]) -> Result<String> {
    let mut layers = Vec::new();
    for Reading { name, queries, keys, maps } in readings {
        let mut factors = Map::new();
        for (factor, tensor) in &maps.factors {
            factors.insert((*factor).to_owned(), json!(matrices(tensor)?));
        }
        let row_sum = match maps.row_sum {
            RowSum::One => "one",
            RowSum::AtMostOne => "at_most_one",
            RowSum::Any => "any",
        };
        layers.push(json!({
            "name": name,
            "queries": queries,
            "keys": keys,
            "row_sum": row_sum,
            "weights": matrices(&maps.weights)?,
            "factors": Value::Object(factors),
        }));
    }
    sequence["layers"] = Value::Array(layers);
    Ok(format!("{sequence}\n"))
}
