//! `tealight export RUN --to FOLDER`: a model as a folder that others can use.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tealight_train::pretrained::Pretrained;
use tealight_train::pretrained::export::{About, Format};
use tealight_train::run::{RunDirectory, Selection};

use super::{note, print};
use crate::args;
use crate::args::ExportFormat;
use crate::console::log;
use crate::summary::Summary;

pub(crate) fn run(args: &args::Export) -> Result<()> {
    let pretrained = Pretrained::open(&args.model, args.checkpoint)?;
    note(&pretrained);
    let about = about(args, &pretrained)?;
    let format = match (args.format, pretrained.hugging_face()) {
        (ExportFormat::Tealight, _) => Format::Tealight,
        (_, Ok(expressed)) => {
            expressed.notes.iter().for_each(|note| log(note));
            Format::HuggingFace
        }
        (ExportFormat::Auto, Err(reason)) => {
            log(&format!(
                "`transformers` has no class for this model: {reason}; \
                 writing a folder that Tealight reads"
            ));
            Format::Tealight
        }
        (ExportFormat::Hf, Err(reason)) => {
            bail!("`transformers` has no class for this model: {reason}")
        }
    };
    pretrained.export(&args.to, format, &about)?;
    print(&format!("{}\n", args.to.display()))
}

/// What the run says of the model; of one that comes from elsewhere only the name is known.
fn about(args: &args::Export, pretrained: &Pretrained) -> Result<About> {
    let path = args.model.as_path();
    let file_name = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "model".to_owned())
    };
    let Ok(directory) = RunDirectory::open(path) else {
        let (task, sizes) = pretrained.purpose.description();
        return Ok(About { name: file_name(path), task, sizes, ..About::default() });
    };
    let (_, config) = super::load::resolved(&directory)?;
    let resolved = directory.resolved_path();
    let text = std::fs::read_to_string(&resolved)
        .with_context(|| format!("cannot read `{}`", resolved.display()))?;
    // The results are those of the checkpoint that the settings select, and of no other.
    let is_the_selected = args.checkpoint.is_none() && Selection::named(path, &directory).is_none();
    let summary = if is_the_selected { Summary::read(directory.path())? } else { None };
    let metrics = summary.map(|summary| summary.metrics);
    Ok(About {
        name: directory.name(),
        task: config.task.kind().to_owned(),
        sizes: directory.manifest()?.sizes,
        metrics: metrics.unwrap_or_else(BTreeMap::new),
        config: Some(text),
    })
}
