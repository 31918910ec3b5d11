//! `tealight evaluate RUN`: the report of a trained run.

use anyhow::Result;
use tealight_ops::with_product_precision;
use tealight_train::pretrained::Pretrained;
use tealight_train::task::{RegisteredTask, TaskVisitor};

use crate::args::train::Evaluate;
use crate::charts::illustrations::save_of;
use crate::runs::load::{Run, log_notes, with_task};
use crate::runs::number_format::NumberFormat;
use crate::terminal::output::{log, print, print_indented_json};

pub(crate) fn run(args: &Evaluate) -> Result<()> {
    let mut run = Run::open(&args.run.path, &args.run.weights)?;
    let precision = &mut run.loaded.config.training.precision;
    *precision = args.precision.unwrap_or(*precision);
    NumberFormat::of(*precision, args.run.weights.device).warn_if_replaced();
    let products = precision.of_products();
    let weights =
        args.weights.as_deref().map(|folder| Pretrained::open(folder, None)).transpose()?;
    weights.iter().for_each(log_notes);
    let evaluation = Evaluation { run: &run, weights, json: args.json };
    with_product_precision(products, || {
        with_task(&run.loaded, &run.device, Some(&run.directory), evaluation)
    })
}

struct Evaluation<'a> {
    run: &'a Run,
    weights: Option<Pretrained>,
    json: bool,
}

impl TaskVisitor for Evaluation<'_> {
    type Output = Result<()>;

    fn visit<T: RegisteredTask>(self, task: T) -> Result<()> {
        let session = match &self.weights {
            Some(model) => self.run.with_weights(task, &model.weights, &model.origin)?,
            None => self.run.load(task)?,
        };
        self.run.directory.manifest()?.check_data(&session.task.data_files())?;
        let report = session.task.report(&session.eval_model)?;
        if self.json {
            print_indented_json(&report)?;
        } else {
            print(&report.to_string())?;
        }
        let drawn = save_of(&*session.task, &report, self.run.directory.path())?;
        for path in drawn {
            log(&path.display().to_string());
        }
        Ok(())
    }
}
