//! `tealight export MODEL --to FOLDER`

use anyhow::{Result, bail};
use serde_json::Value;
use tealight_model::hf::Expressed;
use tealight_model::onnx::{Cache, Weights};
use tealight_train::export::Format;
use tealight_train::export::card::{Data, Provenance};
use tealight_train::run::{Manifest, RunDirectory, Selection};
use tealight_train::storage::files::read_text;
use tealight_train::trained::TrainedModel;

use crate::args::checkpoint::{CardFields, Export, ExportFormat, Quantization};
use crate::runs::config::LoadedConfig;
use crate::runs::load::log_notes;
use crate::runs::summary::Summary;
use crate::terminal::output::{log, print};

pub(crate) fn run(args: &Export) -> Result<()> {
    let model = TrainedModel::open(&args.model, args.checkpoint)?;
    log_notes(&model);
    let mut format = format(args.format, model.hugging_face())?;
    if args.cache {
        let Format::Onnx { cache, .. } = &mut format else {
            bail!("`--cache` needs `--format onnx`")
        };
        *cache = Cache::With;
    }
    if args.pooled {
        let Format::Onnx { pooled, .. } = &mut format else {
            bail!("`--pooled` needs `--format onnx`")
        };
        *pooled = true;
    }
    if let Some(quantization) = args.quantize {
        let Format::Onnx { weights, .. } = &mut format else {
            bail!("`--quantize` needs `--format onnx`")
        };
        *weights = match quantization {
            Quantization::Int8 => Weights::Int8,
        };
    }
    if let Err(reason) = model.sentence_settings() {
        log(&format!("exporting without the files of sentence-transformers: {reason}"));
    }
    model.export(&args.to, &format, &about(args, model.run.as_ref())?)?;
    print(&format!("{}\n", args.to.display()))
}

/// The format to write. `expressed` is the model for `transformers`, or why it has no such class.
pub(super) fn format(
    requested: ExportFormat,
    expressed: Result<Expressed, String>,
) -> Result<Format> {
    match (requested, expressed) {
        (ExportFormat::Tealight, expressed) => Ok(Format::Tealight { reason: expressed.err() }),
        (ExportFormat::Onnx, expressed) => {
            match &expressed {
                Ok(expressed) => expressed.notes.iter().for_each(|note| log(note)),
                Err(reason) => log(&format!(
                    "`transformers` has no class for this model: {reason}; exporting without `config.json`"
                )),
            }
            Ok(Format::Onnx {
                expressed: expressed.map(Box::new),
                cache: Cache::Without,
                pooled: false,
                weights: Weights::F32,
            })
        }
        (_, Ok(expressed)) => {
            expressed.notes.iter().for_each(|note| log(note));
            Ok(Format::HuggingFace(Box::new(expressed)))
        }
        (ExportFormat::Auto, Err(reason)) => {
            log(&format!(
                "`transformers` has no class for this model: {reason}; exporting for Tealight"
            ));
            Ok(Format::Tealight { reason: Some(reason) })
        }
        (ExportFormat::Hf, Err(reason)) => {
            bail!("`transformers` has no class for this model: {reason}")
        }
    }
}

/// What the arguments and the run say for the model card; of another folder, its name.
fn about(args: &Export, run: Option<&RunDirectory>) -> Result<Provenance> {
    let path = args.model.as_path();
    let CardFields { license, language, dataset } = args.card.clone();
    let given =
        Provenance { license, languages: language, datasets: dataset, ..Provenance::default() };
    let Some(directory) = run else {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "model".to_owned());
        return Ok(Provenance { name, ..given });
    };
    // The summary holds the metrics of the checkpoint that the configuration selects.
    let is_the_selected = args.checkpoint.is_none() && Selection::named(path, directory).is_none();
    let summary = if is_the_selected { Summary::read(directory.path())? } else { None };
    let mut metrics = summary.map(|summary| summary.metrics).unwrap_or_default();
    // A temperature is part of the exported weights.
    if let (Some(nll), Some(calibrated)) = (metrics.get_mut("nll"), calibrated_nll(directory)) {
        *nll = calibrated;
    }
    let task = LoadedConfig::of_run(directory, &[])?.config.task;
    let of_task = || task.settings().languages().iter().map(ToString::to_string).collect();
    let languages = if given.languages.is_empty() { of_task() } else { given.languages };
    Ok(Provenance {
        name: directory.name(),
        languages,
        data: Some(data(task.kind(), &directory.manifest()?)),
        metrics,
        config: Some(read_text(&directory.resolved_path())?),
        ..given
    })
}

/// The cross-entropy after calibration in the report of a run whose probabilities are calibrated.
fn calibrated_nll(directory: &RunDirectory) -> Option<f64> {
    let report = read_text(&directory.path().join("report.json")).ok()?;
    let report: Value = serde_json::from_str(&report).ok()?;
    let calibration = &report["calibration"];
    calibration["temperature"].as_f64().and(calibration["after"]["nll"].as_f64())
}

/// The data of a run: its files, or that they were generated.
fn data(task: &str, manifest: &Manifest) -> Data {
    let mut names: Vec<String> = Vec::new();
    let files = manifest.data.iter().filter(|file| !file.key.starts_with(TOKENIZER));
    for name in files.filter_map(|file| file.path.file_name()) {
        let name = name.to_string_lossy().into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let name = match &names[..] {
        [] => format!("{task}, generated by Tealight"),
        [first, .., last] if names.len() > MAX_FILES => {
            format!("{first} … {last} ({} files)", names.len())
        }
        _ => names.join(", "),
    };
    Data { kind: task.to_owned(), name }
}

/// The beginning of the keys of files that are no data to train on.
const TOKENIZER: &str = "task.tokenizer";
/// The most files that a model card lists.
const MAX_FILES: usize = 8;
