//! The session at step 0, and the checks before training.

use anyhow::Result;
use candle_core::Device;
use tealight_model::ConfigFault;
use tealight_train::run::RunDirectory;
use tealight_train::run::manifest::device_name;
use tealight_train::task::Task;
use tealight_train::task::table::thousands;
use tealight_train::{Error, Session};

use super::Training;
use crate::runs::job::agree;
use crate::runs::number_format::NumberFormat;
use crate::runs::resources::{self, explain_out_of_memory};

impl Training<'_> {
    /// A session at step 0 that has passed the checks before training. All ranks call it.
    pub(super) fn session<T: Task>(&self, task: T) -> Result<Session<T>> {
        let ranks = self.ranks;
        let session = agree(ranks, self.initialised(task))?;
        if !self.args.force {
            // Before the first batch, which would run out of memory.
            self.check_resources(&session)?;
        }
        let checked = session.check();
        let explained = |error| explain_out_of_memory(error, &session);
        agree(ranks, checked.map_err(|error| self.at_its_place(explained(error))))?;
        Ok(session)
    }

    /// A session at step 0.
    fn initialised<T: Task>(&self, task: T) -> Result<Session<T>> {
        let mut session = self.loaded.session(task, self.device)?;
        // A resumed run loads all parameters from its checkpoint.
        if let (Some(model), None) = (&self.loaded.init_model, self.resumed) {
            let initialised =
                session.begin_with(model).map_err(|error| self.at_its_place(error))?;
            for note in &model.notes {
                self.log(&format!("{}: {note}", model.origin.display()));
            }
            self.log(&format!("initialised from {}: {initialised}", model.origin.display()));
        }
        if let Some(teacher) = self.loaded.set_teacher(&mut session)? {
            let (path, what) = (teacher.origin.display(), teacher.description());
            self.log(&format!("the teacher is {what}, {path}"));
        }
        let precision = session.config.training.precision.of_products();
        let format = NumberFormat::for_device(precision, self.args.device);
        self.log(&describe(&session, self.device, format));
        Ok(session)
    }

    /// Fails if memory or disk space is short. All ranks call it; rank 0 alone writes.
    fn check_resources<T: Task>(&self, session: &Session<T>) -> Result<()> {
        let ranks = self.ranks;
        let checked = session.check_memory(ranks.size());
        agree(ranks, checked.map_err(|error| self.at_its_place(error)))?;
        let shortage = resources::memory_shortage(session, ranks)?;
        agree(ranks, self.refuse(shortage))?;
        let shortage = if ranks.is_first() { self.disk_shortage(session) } else { Ok(None) };
        agree(ranks, shortage.and_then(|shortage| self.refuse(shortage)))
    }

    fn disk_shortage<T: Task>(&self, session: &Session<T>) -> Result<Option<ConfigFault>> {
        let saved = self.resumed.map(RunDirectory::checkpoints);
        let directory = self.resumed.map_or(self.args.runs.as_path(), RunDirectory::path);
        resources::disk_shortage(session, directory, saved.as_ref())
    }

    fn refuse(&self, shortage: Option<ConfigFault>) -> Result<()> {
        let Some(mut fault) = shortage else { return Ok(()) };
        fault.message += "; `--force` skips this check";
        Err(self.at_its_place(Error::Config(fault)))
    }
}

/// The model, the number of steps, the device and what it computes in on one line.
fn describe<T: Task>(session: &Session<T>, device: &Device, format: NumberFormat) -> String {
    let Session { config, params, optimizer, .. } = session;
    let groups = optimizer.decay_groups();
    let n_trained = groups.decayed.n_parameters + groups.undecayed.n_parameters;
    let frozen = match params.n_parameters() - n_trained {
        0 => String::new(),
        n => format!(", {} frozen", thousands(n as u64)),
    };
    format!(
        "{} · {} layers, d_model {}, {} heads · {} parameters ({} with weight decay, {} without{frozen}) · {} steps on {}{}",
        config.model.attention_kinds(),
        config.model.n_layers,
        config.model.d_model,
        config.model.n_heads,
        thousands(params.n_parameters() as u64),
        thousands(groups.decayed.n_parameters as u64),
        thousands(groups.undecayed.n_parameters as u64),
        thousands(config.training.steps),
        device_name(device),
        format.clause(),
    )
}
