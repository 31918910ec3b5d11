//! `tealight classify MODEL TEXT` and `tealight classify MODEL PICTURE`

mod pictures;
mod texts;

use anyhow::Result;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::image_classification::ImageClassification;
use tealight_train::pipelines::text_classification::TextClassification;

use crate::args::predict::Classify;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;

pub(crate) fn run(args: &Classify) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let (model, device) = open_model(&args.model)?;
    if model.spec.is_some_and(|spec| spec.picture_size().is_some()) {
        return pictures::run(args, &ImageClassification::open(&model, &device)?);
    }
    texts::run(args, &TextClassification::open(&model, &device)?)
}
