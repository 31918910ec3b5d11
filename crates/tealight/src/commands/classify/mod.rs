//! `tealight classify MODEL TEXT` and `tealight classify MODEL PICTURE`

mod pictures;
mod texts;

use anyhow::{Result, bail};
use tealight_train::data::table::is_table;
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
    let reads_pictures = model.spec.is_some_and(|spec| spec.picture_size().is_some());
    let is_of_table = args.file.as_deref().is_some_and(is_table) && !reads_pictures;
    if args.skip_broken && !is_of_table {
        bail!("`--skip-broken` leaves out rows of a table of texts, which `--file` names");
    }
    if reads_pictures {
        return pictures::run(args, &ImageClassification::open(&model, &device)?);
    }
    texts::run(args, &TextClassification::open(&model, &device)?)
}
