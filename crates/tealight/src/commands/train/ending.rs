//! What follows the last step: the evaluation, and what is printed.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use tealight_ops::with_product_precision;
use tealight_train::config::{RunConfig, Select};
use tealight_train::inference::decision;
use tealight_train::monitor::bad_step::BadStep;
use tealight_train::run::{RunDirectory, load_weights};
use tealight_train::storage::files::{replace, to_json};
use tealight_train::task::RegisteredTask;
use tealight_train::task::report::Report;
use tealight_train::training::session::Progress;
use tealight_train::{Error, Session};

use super::Training;
use crate::charts::illustrations::save_of;
use crate::runs::ended::{ABOVE_LIMIT, DIVERGED, Ended};
use crate::runs::notes::notes;
use crate::runs::summary::Summary;
use crate::runs::teacher::TeacherScores;
use crate::runs::test_data;
use crate::system::signals::Signal;
use crate::terminal::escape::shell_path;
use crate::terminal::output::{print, print_indented_json, warn};

impl Training<'_> {
    /// Evaluates a run that has ended by itself; says how another can be continued. On rank 0.
    pub(super) fn conclude<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: &RunDirectory,
        first_step: u64,
        signal: Option<(Signal, String)>,
    ) -> Result<()> {
        let Progress { step, early_stopping, .. } = &session.progress;
        let resume_hint = format!("`tealight train {}` resumes", shell_path(directory.path()));
        if let Some((Signal { name, .. }, whose)) = signal {
            warn(&format!("stopped by {name}{whose} after step {step}; {resume_hint}"));
            Ended::new(name, *step, None).write(directory.path())?;
            self.print_end(session, Some(directory), name, None)
        } else if *step >= session.config.training.steps || early_stopping.has_stopped() {
            let ended = if early_stopping.has_stopped() { "early_stopping" } else { "finished" };
            if first_step == *step {
                let path = shell_path(directory.path());
                self.log(&format!(
                    "nothing is left to train: `tealight train {path} --steps N` starts a new run from its parameters"
                ));
            }
            self.evaluate(session, directory, first_step, ended)
        } else if self.args.stop_after.is_some_and(|last| *step >= last) {
            self.log(&format!("stopped after step {step}; continue with --resume"));
            Ended::new("--stop-after", *step, None).write(directory.path())?;
            self.print_end(session, Some(directory), "stop_after", None)
        } else {
            warn(&format!("time limit reached after step {step}; {resume_hint}"));
            Ended::new("time limit", *step, None).write(directory.path())?;
            self.print_end(session, Some(directory), "time_limit", None)
        }
    }

    /// Why the checkpoint that is evaluated is chosen. Where none is the best, the latest `is_in_its_place`.
    fn chosen_by(&self, is_in_its_place: bool) -> String {
        let RunConfig { checkpoint, training, .. } = &self.loaded.config;
        if is_in_its_place || checkpoint.select == Select::Latest {
            return "the latest checkpoint".to_owned();
        }
        let of_stopping = training.early_stopping.as_ref().map(|one| &one.metric);
        let metric = checkpoint.metric.as_ref().or(of_stopping).map_or("loss", String::as_str);
        format!("the best by `{metric}` on the validation data")
    }

    /// With `--json`: how training has ended, on rank 0.
    pub(super) fn print_end<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: Option<&RunDirectory>,
        ended: &str,
        report: Option<&Report>,
    ) -> Result<()> {
        let values = json!(report.map(|report| &report.values));
        self.print_object(session, directory, ended, ("evaluation", values))
    }

    /// Returns `error`, which has ended training or its evaluation. On rank 0 it is written to `ended.json` and, with
    /// `--json`, printed.
    pub(super) fn failed<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: Option<&RunDirectory>,
        error: anyhow::Error,
    ) -> anyhow::Error {
        let message = format!("{error:#}");
        // The caller reports the original error, not a failure to write it down.
        if let Some(directory) = directory {
            let reason = match error.downcast_ref::<Error>() {
                Some(Error::BadStep(_)) => DIVERGED,
                Some(Error::AboveLimit(_)) => ABOVE_LIMIT,
                _ => "error",
            };
            let ended = Ended::new(reason, session.progress.step, Some(&message));
            let _ = ended.write(directory.path());
        }
        let _ = self.print_object(session, directory, "failed", ("error", json!(message)));
        error
    }

    fn print_object<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: Option<&RunDirectory>,
        ended: &str,
        (key, value): (&str, Value),
    ) -> Result<()> {
        if !self.args.json || !self.ranks.is_first() {
            return Ok(());
        }
        print_indented_json(&json!({
            "run": directory.map(RunDirectory::path),
            "ended": ended,
            "step": session.progress.step,
            "notes": notes(session),
            key: value,
        }))
    }

    /// After an error: logs the checkpoint from which the run can be resumed, and what else to change.
    pub(super) fn log_last_checkpoint(&self, directory: Option<&RunDirectory>, error: &Error) {
        if let Some(directory) = directory
            && let Ok(Some(step)) = directory.checkpoints().latest()
        {
            let path = shell_path(directory.path());
            let again = match error {
                Error::BadStep(_) if self.loaded.config.training.bad_step == BadStep::Stop => {
                    ", and reads the same batches: add `--set training.bad_step=skip` if they are at fault, or start a \
                     new run with a lower `optimizer.lr` if the weights have diverged"
                }
                Error::BadStep(_) => ", and reads the same batches",
                _ => "",
            };
            self.log(&format!(
                "the last checkpoint is that of step {step}; `tealight train {path}` resumes{again}"
            ));
        }
    }

    /// Evaluates the selected checkpoint: writes `report.json` and `summary.json`, prints the table.
    fn evaluate<T: RegisteredTask>(
        &self,
        session: &Session<T>,
        directory: &RunDirectory,
        first_step: u64,
        ended: &str,
    ) -> Result<()> {
        let RunConfig { checkpoint, task, .. } = &self.loaded.config;
        let (checkpoint, note) = directory.checkpoints().select(None, checkpoint.select)?;
        if let Some(note) = &note {
            warn(note);
        }
        let weights = load_weights(&checkpoint, self.device)?;
        session.load_weights(&weights)?;
        let step = checkpoint.file_name().unwrap_or_default().to_string_lossy();
        self.log(&format!("evaluating {step}, {}\n", self.chosen_by(note.is_some())));
        let products = session.config.training.precision.of_products();
        let report = with_product_precision(products, || -> Result<Report> {
            let mut report = session.task.report(&session.eval_model)?;
            TeacherScores::add_to(&mut report, session, directory.path())?;
            let run = (self.loaded, directory);
            // The results of the run are kept whatever is wrong with other data.
            if let Err(error) = test_data::add_scores(&mut report, run, &weights, self.device) {
                warn(&format!("the test data are not scored: {error:#}"));
            }
            Ok(report)
        })?;
        let path = directory.path();
        let file = path.join("report.json");
        replace(&file, &to_json(&file, &report.values)?)?;
        if let Some(decision) = &report.decision {
            replace(&path.join(decision::FILE), &decision.file(&checkpoint)?)?;
        }
        Summary::write(session, directory, &report, first_step)?;
        if !self.args.json {
            print(&report.to_string())?;
        }
        let drawn = save_of(&report, path)?;
        self.print_end(session, Some(directory), ended, Some(&report))?;
        for drawn in drawn {
            self.log(&drawn.display().to_string());
        }
        let quoted = shell_path(path);
        let next = task.settings().next_command(Path::new(&quoted));
        self.log(&format!(
            "\ntealight report {quoted}      writes a page: results, samples, mistakes, charts\n\
             tealight evaluate {quoted}    prints this table again; `--data FILE` scores other data\n{next}"
        ));
        Ok(())
    }
}
