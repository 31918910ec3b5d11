//! `tealight evaluate MODEL`: the report of a trained model, on the validation split of a run or on other data.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use candle_core::Device;
use serde_json::json;
use tealight_model::names::Named;
use tealight_ops::{ProductPrecision, with_product_precision};
use tealight_train::config::Precision;
use tealight_train::run::RunDirectory;
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::table::Table;
use tealight_train::task::{AnyTask, RegisteredTask};
use tealight_train::trained::TrainedModel;
use tealight_train::{Error, Session};

use crate::args::train::Evaluate;
use crate::charts::illustrations::save_of;
use crate::runs::config::LoadedConfig;
use crate::runs::load::{Run, in_runs, log_notes, open_model, task_of};
use crate::runs::number_format::NumberFormat;
use crate::runs::test_data;
use crate::terminal::output::{log, print, print_indented_json, print_json, warn};

pub(crate) fn run(args: &Evaluate) -> Result<()> {
    let mut evaluated = Evaluated::open(args)?;
    let (loaded, device) = evaluated.loaded();
    let precision = &mut loaded.config.training.precision;
    let products = args.precision.unwrap_or(precision.of_products());
    // In int8, everything but the products is in f32.
    let is_asked_for = |precision: &&Precision| precision.of_products() == products;
    *precision = Precision::ALL.iter().find(is_asked_for).copied().unwrap_or(Precision::F32);
    let format = NumberFormat::for_device(products, args.model.weights.device);
    format.warn_if_replaced();
    if let Some(data) = args.other_data() {
        loaded.test_on(data, &args.columns)?;
    }
    let weights =
        args.weights.as_deref().map(|folder| TrainedModel::open(folder, None)).transpose()?;
    weights.iter().for_each(log_notes);
    let device = device.clone();
    let Evaluate { json, ref examples, .. } = *args;
    let answers_only = examples.is_some();
    let in_int8 = format.used() == ProductPrecision::Int8;
    let evaluation = Evaluation { evaluated: &evaluated, weights, answers_only, in_int8, json };
    let (loaded, run) = match &evaluated {
        Evaluated::Run(run) => (&run.loaded, Some(&run.directory)),
        Evaluated::Folder { loaded, .. } => (&**loaded, None),
    };
    with_product_precision(products, || evaluation.print(task_of(loaded, &device, run)?))
}

/// What is evaluated.
enum Evaluated {
    Run(Box<Run>),
    /// An exported folder, or one of Hugging Face.
    Folder {
        loaded: Box<LoadedConfig>,
        model: Box<TrainedModel>,
        device: Device,
    },
}

impl Evaluated {
    /// A run is evaluated as it was trained; of a folder, the data must be given.
    fn open(args: &Evaluate) -> Result<Self> {
        let path = &args.model.path;
        match RunDirectory::open(path) {
            Ok(_) => return Ok(Self::Run(Box::new(Run::open(path, &args.model.weights)?))),
            Err(error @ Error::NotARun { .. }) if args.other_data().is_none() => {
                bail!("{error}; `--data FILE` scores the model of a folder")
            }
            Err(Error::NotARun { .. }) => {}
            Err(error) if args.other_data().is_none() => return Err(in_runs(path, error)),
            // It may be the name of a model in the cache of Hugging Face.
            Err(_) => {}
        }
        if args.weights.is_some() {
            bail!("`--weights` needs a run, but `{}` is a folder", path.display());
        }
        let (model, device) = open_model(&args.model)?;
        let loaded = Box::new(LoadedConfig::to_test(&model)?);
        Ok(Self::Folder { loaded, model: Box::new(model), device })
    }

    fn loaded(&mut self) -> (&mut LoadedConfig, &Device) {
        match self {
            Self::Run(run) => (&mut run.loaded, &run.device),
            Self::Folder { loaded, device, .. } => (loaded, device),
        }
    }

    /// A session with the parameters.
    fn session<T: RegisteredTask>(
        &self,
        task: T,
        weights: Option<&TrainedModel>,
    ) -> Result<Session<T>> {
        match (self, weights) {
            (Self::Run(run), Some(model)) => {
                run.with_weights(task, &weights_of(run, model), &model.origin)
            }
            (Self::Run(run), None) => run.load(task),
            (Self::Folder { loaded, model, device }, _) => {
                let mut session = loaded.session(task, device)?;
                let initialised = session.begin_with(model)?;
                if let [name, ..] = &initialised.fresh[..] {
                    bail!(
                        "`{}` has no parameter `{name}`, so that it cannot be scored",
                        model.origin.display()
                    );
                }
                Ok(session)
            }
        }
    }

    /// The path of the run or folder.
    fn path(&self) -> &Path {
        match self {
            Self::Run(run) => run.directory.path(),
            Self::Folder { model, .. } => &model.origin,
        }
    }
}

struct Evaluation<'a> {
    evaluated: &'a Evaluated,
    weights: Option<TrainedModel>,
    /// `--examples`
    answers_only: bool,
    /// Whether products are computed in int8: the report then also has the metrics of f32.
    in_int8: bool,
    json: bool,
}

impl Evaluation<'_> {
    fn print(self, task: AnyTask) -> Result<()> {
        let session = self.evaluated.session(task, self.weights.as_ref())?;
        let is_test = match self.evaluated {
            Evaluated::Run(run) if run.loaded.test.is_none() => {
                run.directory.manifest()?.check_data(&session.task.data_files())?;
                false
            }
            _ => true,
        };
        if is_test {
            session.task.notes().iter().for_each(|note| log(note));
        }
        if self.answers_only {
            let Some(answers) = session.task.answers(&session.eval_model)? else {
                bail!(
                    "`--examples` is for tasks whose examples are symbols with labels; `--data` scores other data"
                );
            };
            return answers.iter().try_for_each(print_json);
        }
        let mut report = session.task.report(&session.eval_model)?;
        if let (false, Evaluated::Run(run)) = (is_test, self.evaluated) {
            let weights = self.weights.as_ref();
            let weights =
                weights.map_or_else(|| run.weights(), |model| Ok(weights_of(run, model)))?;
            let of_run = (&run.loaded, &run.directory);
            test_data::add_scores(&mut report, of_run, &weights, &run.device)?;
        }
        let differences = if self.in_int8 {
            let in_f32 = || session.task.report(&session.eval_model);
            let exact = with_product_precision(ProductPrecision::F32, in_f32)?.metrics;
            report.values.insert("metrics_in_f32".to_owned(), json!(exact));
            Some(differences(&report.metrics, &exact))
        } else {
            None
        };
        let path = self.evaluated.path();
        if let Some((name, loss)) = diverged(&report.metrics) {
            let path = path.display();
            warn(&format!("`{path}`: {name} = {loss} is not finite, because the weights diverged"));
        }
        if self.json {
            print_indented_json(&report.values)?;
        } else {
            print(&report.to_string())?;
            differences.map_or(Ok(()), |table| print(&format!("\n{table}")))?;
        }
        if is_test {
            log(
                "scored on all examples of `--data`; baselines that are fitted to data of a file are fitted to these examples, \
                 too",
            );
            return Ok(());
        }
        let drawn = save_of(&report, path)?;
        for path in drawn {
            log(&path.display().to_string());
        }
        Ok(())
    }
}

/// Each metric in int8 and in f32, and their difference.
fn differences(rounded: &BTreeMap<String, f64>, exact: &BTreeMap<String, f64>) -> Table {
    let mut table = Table::new(["metric", "int8", "f32", "difference"]);
    for (name, rounded) in rounded {
        let Some(exact) = exact.get(name) else { continue };
        let number = |x: f64| format!("{x:.4}");
        let difference = format!("{:+.4}", rounded - exact);
        table.row([name.clone(), number(*rounded), number(*exact), difference]);
    }
    table
}

/// The weights of another model for the task of a run: on test data as `classify` has them; otherwise as they were trained,
/// since a temperature is fitted to the texts held out.
fn weights_of(run: &Run, model: &TrainedModel) -> NamedTensors {
    if run.loaded.test.is_some() { model.weights.clone() } else { model.weights_as_trained() }
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
