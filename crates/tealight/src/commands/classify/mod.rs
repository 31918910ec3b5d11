//! `tealight classify MODEL TEXT` and `tealight classify MODEL PICTURE`

mod pictures;
mod texts;

use anyhow::Result;
use tealight_train::pretrained::Purpose;

use crate::args::predict::Classify;
use crate::runs::load::RunOrFolder;
use crate::runs::number_format::NumberFormat;

pub(crate) fn run(args: &Classify) -> Result<()> {
    NumberFormat::of(args.computation.precision, args.model.weights.device).warn_if_replaced();
    match RunOrFolder::open(&args.model)? {
        RunOrFolder::Run(run) => {
            let settings = run.loaded.config.task.settings();
            if let Some(settings) = settings.image_classifier() {
                let session = run.load(run.task(settings)?)?;
                return pictures::run(args, &session.task, &session.eval_model);
            }
            let settings = settings.classifier();
            let settings =
                settings.ok_or_else(|| run.is_not_for("classify", &["classify", "images"]))?;
            let session = run.load(run.task(settings)?)?;
            texts::run(args, &session.task, &session.eval_model)
        }
        RunOrFolder::Folder(pretrained, device) => {
            if let Purpose::Pictures(_) = pretrained.purpose {
                let (task, model) = pretrained.image_classifier(&device)?;
                return pictures::run(args, &task, &model);
            }
            let (task, model) = pretrained.classifier(&device)?;
            texts::run(args, &task, &model)
        }
    }
}
