//! `tealight export RUN --to FOLDER`: a model as a folder that others can use.

use anyhow::{Result, bail};
use tealight_model::hf::Expressed;
use tealight_train::pretrained::Pretrained;
use tealight_train::pretrained::export::{About, Format};
use tealight_train::run::{RunDirectory, Selection};
use tealight_train::storage::files::read_text;

use crate::args::language::{self as args, ExportFormat};
use crate::runs::load::note;
use crate::runs::summary::Summary;
use crate::terminal::output::{log, print};

pub(crate) fn run(args: &args::Export) -> Result<()> {
    let pretrained = Pretrained::open(&args.model, args.checkpoint)?;
    note(&pretrained);
    let format = format(args.format, pretrained.hugging_face())?;
    pretrained.export(&args.to, &format, &about(args)?)?;
    print(&format!("{}\n", args.to.display()))
}

/// What is written, where `transformers` has a class for the model or, by its `reason`, none.
pub(super) fn format(
    asked: ExportFormat,
    expressed: std::result::Result<Expressed, String>,
) -> Result<Format> {
    match (asked, expressed) {
        (ExportFormat::Tealight, expressed) => Ok(Format::Tealight { reason: expressed.err() }),
        (_, Ok(expressed)) => {
            expressed.notes.iter().for_each(|note| log(note));
            Ok(Format::HuggingFace(Box::new(expressed)))
        }
        (ExportFormat::Auto, Err(reason)) => {
            log(&format!(
                "`transformers` has no class for this model: {reason}; \
                 writing a folder that Tealight reads"
            ));
            Ok(Format::Tealight { reason: Some(reason) })
        }
        (ExportFormat::Hf, Err(reason)) => {
            bail!("`transformers` has no class for this model: {reason}")
        }
    }
}

/// What the run says of the model; of one that comes from elsewhere only the name is known.
fn about(args: &args::Export) -> Result<About> {
    let path = args.model.as_path();
    let Ok(directory) = RunDirectory::open(path) else {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "model".to_owned());
        return Ok(About { name, ..About::default() });
    };
    // The results are those of the checkpoint that the settings select, and of no other.
    let is_the_selected = args.checkpoint.is_none() && Selection::named(path, &directory).is_none();
    let summary = if is_the_selected { Summary::read(directory.path())? } else { None };
    Ok(About {
        name: directory.name(),
        metrics: summary.map(|summary| summary.metrics).unwrap_or_default(),
        config: Some(read_text(&directory.resolved_path())?),
    })
}
