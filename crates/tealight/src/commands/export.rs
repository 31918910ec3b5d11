//! `tealight export MODEL --to FOLDER`

use anyhow::{Result, bail};
use tealight_model::hf::Expressed;
use tealight_model::onnx::Cache;
use tealight_train::pretrained::Pretrained;
use tealight_train::pretrained::export::{Format, Provenance};
use tealight_train::run::{RunDirectory, Selection};
use tealight_train::storage::files::read_text;

use crate::args::checkpoint::{Export, ExportFormat};
use crate::runs::load::log_notes;
use crate::runs::summary::Summary;
use crate::terminal::output::{log, print};

pub(crate) fn run(args: &Export) -> Result<()> {
    let pretrained = Pretrained::open(&args.model, args.checkpoint)?;
    log_notes(&pretrained);
    let mut format = format(args.format, pretrained.hugging_face())?;
    if args.cache {
        let Format::Onnx { cache, .. } = &mut format else {
            bail!("`--cache` needs `--format onnx`")
        };
        *cache = Cache::With;
    }
    if let Err(reason) = pretrained.sentence_settings() {
        log(&format!("exporting without the files of sentence-transformers: {reason}"));
    }
    pretrained.export(&args.to, &format, &about(args)?)?;
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
            Ok(Format::Onnx { expressed: expressed.map(Box::new), cache: Cache::Without })
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

/// Name, metrics and configuration of a run for the model card; of another folder, its name only.
fn about(args: &Export) -> Result<Provenance> {
    let path = args.model.as_path();
    let Ok(directory) = RunDirectory::open(path) else {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "model".to_owned());
        return Ok(Provenance { name, ..Provenance::default() });
    };
    // The summary holds the metrics of the checkpoint that the configuration selects.
    let is_the_selected = args.checkpoint.is_none() && Selection::named(path, &directory).is_none();
    let summary = if is_the_selected { Summary::read(directory.path())? } else { None };
    Ok(Provenance {
        name: directory.name(),
        metrics: summary.map(|summary| summary.metrics).unwrap_or_default(),
        config: Some(read_text(&directory.resolved_path())?),
    })
}
