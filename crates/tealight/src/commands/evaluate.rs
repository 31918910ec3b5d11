//! `tealight evaluate RUN`: the report of a trained run.

use std::collections::BTreeMap;

use anyhow::Result;
use tealight_ops::with_product_precision;
use tealight_train::task::{RegisteredTask, TaskVisitor};
use tealight_train::trained::TrainedModel;

use crate::args::train::Evaluate;
use crate::charts::illustrations::save_of;
use crate::runs::load::{Run, log_notes, with_task};
use crate::runs::number_format::NumberFormat;
use crate::terminal::output::{log, print, print_indented_json, warn};

pub(crate) fn run(args: &Evaluate) -> Result<()> {
    let mut run = Run::open(&args.run.path, &args.run.weights)?;
    let precision = &mut run.loaded.config.training.precision;
    *precision = args.precision.unwrap_or(*precision);
    NumberFormat::for_device(*precision, args.run.weights.device).warn_if_replaced();
    let products = precision.of_products();
    let weights =
        args.weights.as_deref().map(|folder| TrainedModel::open(folder, None)).transpose()?;
    weights.iter().for_each(log_notes);
    let evaluation = Evaluation { run: &run, weights, json: args.json };
    with_product_precision(products, || {
        with_task(&run.loaded, &run.device, Some(&run.directory), evaluation)
    })
}

struct Evaluation<'a> {
    run: &'a Run,
    weights: Option<TrainedModel>,
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
        if let Some((name, loss)) = diverged(&report.metrics) {
            let run = self.run.directory.path().display();
            warn(&format!("`{run}`: {name} = {loss} is not finite, because the weights diverged"));
        }
        if self.json {
            print_indented_json(&report.values)?;
        } else {
            print(&report.to_string())?;
        }
        let drawn = save_of(&report, self.run.directory.path())?;
        for path in drawn {
            log(&path.display().to_string());
        }
        Ok(())
    }
}

/// The loss of a report with its name, if it is not finite.
fn diverged(metrics: &BTreeMap<String, f64>) -> Option<(&'static str, f64)> {
    ["loss", "nll", "mse"].into_iter().find_map(|name| {
        let loss = metrics.get(name).filter(|loss| !loss.is_finite())?;
        Some((name, *loss))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_is_not_finite_is_found_and_a_score_is_not() {
        let found = |numbers: &[(&str, f64)]| {
            let named = numbers.iter().map(|&(name, value)| (name.to_owned(), value));
            diverged(&named.collect::<BTreeMap<_, _>>()).map(|(name, _)| name)
        };
        assert_eq!(found(&[("accuracy", 0.3), ("nll", f64::NAN)]), Some("nll"));
        assert_eq!(found(&[("mse", f64::INFINITY), ("pearson", 0.)]), Some("mse"));
        assert_eq!(found(&[("loss", 1.), ("pearson", f64::NAN)]), None);
    }
}
