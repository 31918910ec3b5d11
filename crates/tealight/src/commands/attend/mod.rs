//! `tealight attend MODEL SEQUENCE`: attention maps of a sequence or a picture.

mod pictures;
mod sequences;

use anyhow::Result;
use tealight_train::pretrained::Purpose;

use crate::args::inspect::Attend;
use crate::runs::load::RunOrFolder;

pub(crate) fn run(args: &Attend) -> Result<()> {
    match RunOrFolder::open(&args.model)? {
        RunOrFolder::Run(run) => {
            if let Some(settings) = run.loaded.config.task.settings().image_classifier() {
                let output = run.directory.path().join("attention");
                let session = run.load(run.task(settings)?)?;
                return pictures::run(args, &session.task, &session.eval_model, Some(output));
            }
            sequences::of_run(args, &run)
        }
        RunOrFolder::Folder(model, device) => {
            if let Purpose::Pictures(_) = model.purpose {
                let (task, model) = model.image_classifier(&device)?;
                return pictures::run(args, &task, &model, None);
            }
            sequences::of_folder(args, &model, &device)
        }
    }
}
