//! `tealight classify MODEL TEXT` and `tealight classify MODEL PICTURE`

mod pictures;
mod texts;

use anyhow::Result;
use tealight_train::pipelines::image_classification::ImageClassification;
use tealight_train::pipelines::text_classification::TextClassification;
use tealight_train::pipelines::{Pipeline, name_of};

use crate::args::predict::Classify;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;

pub(crate) fn run(args: &Classify) -> Result<()> {
    NumberFormat::of(args.computation.precision, args.model.weights.device).warn_if_replaced();
    let (model, device) = open_model(&args.model)?;
    match name_of(&model) {
        Some(ImageClassification::NAME) => {
            pictures::run(args, &ImageClassification::open(&model, &device)?)
        }
        _ => texts::run(args, &TextClassification::open(&model, &device)?),
    }
}
