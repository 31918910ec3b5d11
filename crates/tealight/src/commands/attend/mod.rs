//! `tealight attend MODEL SEQUENCE`: attention maps of a sequence or a picture.

mod pictures;
mod sequences;

use anyhow::Result;
use tealight_train::pipelines::attention_maps::AttentionMaps;
use tealight_train::pipelines::image_classification::ImageClassification;
use tealight_train::pipelines::{Pipeline, name_of};
use tealight_train::storage::files::refuse_link;

use crate::args::inspect::Attend;
use crate::runs::load::open_model;

pub(crate) fn run(args: &Attend) -> Result<()> {
    let (model, device) = open_model(&args.model)?;
    let output = model.run.as_ref().map(|run| run.path().join("attention"));
    output.as_deref().map_or(Ok(()), refuse_link)?;
    if name_of(&model) == Some(ImageClassification::NAME) {
        return pictures::run(args, &ImageClassification::open(&model, &device)?, output);
    }
    sequences::refuse_picture(args)?;
    let pipeline = AttentionMaps::open(&model, &device)?;
    sequences::run(args, &pipeline, model.config.n_heads, output)
}
