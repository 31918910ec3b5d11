//! `tealight attend MODEL SEQUENCE`: what each position read from the others.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use candle_core::{DType, Tensor};
use serde_json::{Map, Value, json};
use tealight_model::attention::RowSum;
use tealight_model::models::forecaster::ReadOut;
use tealight_train::Session;
use tealight_train::observer::tensorboard::Image;
use tealight_train::pretrained::Pretrained;
use tealight_train::task::weather::Weather;
use tealight_train::task::{Reading, TaskConfig};
use tealight_train::weather::{format, parse};

use super::forecast::task;
use super::load::{Found, Run};
use super::{classify, print, print_paths, translate};
use crate::args::{Attend, Maps};
use crate::pictures::{HeatMaps, Panel, Picture, Scale, file_name};

pub(crate) fn run(args: &Attend) -> Result<()> {
    match Found::open(&args.model)? {
        Found::Run(run) => of_run(args, &run),
        Found::Folder(model, device) => {
            let readings = model.attention_maps(&args.sequence, &device)?;
            show(args, json!({ "text": args.sequence }), &readings, None, model.model.n_heads)
        }
    }
}

fn of_run(args: &Attend, run: &Run) -> Result<()> {
    let (sequence, readings) = match &run.config.task {
        TaskConfig::Weather(_) => of_days(run, &args.sequence)?,
        TaskConfig::MaskedLm(_) | TaskConfig::CausalLm(_) => {
            let model = Pretrained::open(&args.model.path, args.model.used.checkpoint)?;
            let readings = model.attention_maps(&args.sequence, &run.device)?;
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
    std::fs::create_dir_all(&output)
        .with_context(|| format!("cannot create `{}`", output.display()))?;
    let mut paths = Vec::new();
    for (name, picture) in pictures {
        paths.extend(picture.save(&output, &file_name(&name))?);
    }
    print_paths(&paths)
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

/// A picture for each attention, and for each of its factors.
fn pictures(
    readings: &[Reading],
    maps: Option<Maps>,
    n_heads: usize,
) -> Result<Vec<(String, Picture)>> {
    let mut pictures = Vec::new();
    for reading in readings {
        pictures.push((reading.name.clone(), weights(reading, maps, n_heads)?.draw()));
        for (name, factor) in &reading.maps.factors {
            let title = format!("{} of {}", name.replace('_', " "), reading.name);
            let picture = factor_maps(reading, title, factor, maps, n_heads)?.draw();
            pictures.push((format!("{} {name}", reading.name), picture));
        }
    }
    Ok(pictures)
}

/// The pictures that TensorBoard shows.
pub(crate) fn images(
    readings: &[Reading],
    n_heads: usize,
) -> Result<Vec<Image>, Box<dyn Error + Send + Sync>> {
    let image = |(name, picture): (String, Picture)| {
        let (width, height) = picture.png_size(1.);
        Ok(Image { tag: format!("attention/{name}"), width, height, png: picture.png(1.)? })
    };
    Ok(pictures(readings, None, n_heads)?.into_iter().map(image).collect::<Result<_>>()?)
}

fn weights(reading: &Reading, maps: Option<Maps>, n_heads: usize) -> Result<HeatMaps> {
    let Reading { name, queries, keys, maps: of } = reading;
    let matrices = matrices(&of.weights)?;
    let panels = panels(&matrices, maps, n_heads, queries, keys);
    let caption = match of.row_sum {
        RowSum::One => "each row is a position, its columns what it reads; a row sums to 1",
        RowSum::AtMostOne => {
            "each row is a position, its columns what it reads; a row sums to 1 at most"
        }
        RowSum::Any => "each row is a position, its columns what it reads",
    };
    let scale = Scale::of(panels.iter().flat_map(|panel| &panel.values).flatten().copied());
    let title = format!("what the positions read, {name}");
    Ok(HeatMaps { title, caption: caption.to_owned(), scale, panels })
}

fn factor_maps(
    reading: &Reading,
    title: String,
    factor: &Tensor,
    maps: Option<Maps>,
    n_heads: usize,
) -> Result<HeatMaps> {
    let matrices = matrices(factor)?;
    let (_batch, _n_maps, rows, columns) = factor.dims4()?;
    // An axis as long as the sequence is the sequence; others are landmarks and the like.
    let named = |n: usize, names: &[String]| {
        if n == names.len() { names.to_vec() } else { (1..=n).map(|i| i.to_string()).collect() }
    };
    let (rows, columns) = (named(rows, &reading.queries), named(columns, &reading.keys));
    let panels = panels(&matrices, maps, n_heads, &rows, &columns);
    let scale = Scale::of(panels.iter().flat_map(|panel| &panel.values).flatten().copied());
    let caption = "as the layer multiplies it; an axis of positions bears their names".to_owned();
    Ok(HeatMaps { title, caption, scale, panels })
}

/// Of the first sequence: `(batch, n_maps, rows, columns)` → maps × rows × columns.
fn matrices(maps: &Tensor) -> Result<Vec<Vec<Vec<f32>>>> {
    let device = &candle_core::Device::Cpu;
    Ok(maps.get(0)?.to_dtype(DType::F32)?.to_device(device)?.to_vec3()?)
}

/// More maps than these are not all drawn unless asked for.
const MANY: usize = 16;

fn panels(
    matrices: &[Vec<Vec<f32>>],
    maps: Option<Maps>,
    n_heads: usize,
    rows: &[String],
    columns: &[String],
) -> Vec<Panel> {
    let n = matrices.len();
    let (shows_mean, n_shown) = match maps {
        Some(Maps::Mean) => (true, 0),
        Some(Maps::First(first)) => (false, first.min(n)),
        None if n > MANY => (true, 7),
        Some(Maps::All) | None => (false, n),
    };
    let panel =
        |name, values| Panel { name, rows: rows.to_vec(), columns: columns.to_vec(), values };
    // Kinds without heads may have a map for each channel.
    let what = if n == n_heads { "head" } else { "map" };
    let name = |i: usize| if n == 1 { String::new() } else { format!("{what} {}", i + 1) };
    let mean = shows_mean.then(|| panel(format!("mean of {n} {what}s"), mean(matrices)));
    let shown = matrices[..n_shown].iter().enumerate();
    mean.into_iter().chain(shown.map(|(i, values)| panel(name(i), values.clone()))).collect()
}

fn mean(matrices: &[Vec<Vec<f32>>]) -> Vec<Vec<f32>> {
    let mut mean = matrices.first().cloned().unwrap_or_default();
    for matrix in matrices.iter().skip(1) {
        for (sum, value) in mean.iter_mut().flatten().zip(matrix.iter().flatten()) {
            *sum += value;
        }
    }
    mean.iter_mut().flatten().for_each(|sum| *sum /= matrices.len() as f32);
    mean
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
