//! The outputs of a run while it trains: checkpoints, and events for observers.
//!
//! Where several ranks train together, rank 0 alone writes. All ranks call the functions here, and an error of rank 0
//! is an error of all.

use crate::error::{BadStepReport, Error, Result};
use crate::observer::{Event, Observers, notify};
use crate::run::{Checkpoint, Checkpoints, Selection};
use crate::task::Task;

use super::session::Session;

/// The checkpoints of a run, if it keeps any, and its observers; none of both on ranks other than 0.
pub(crate) struct Outputs<'a, 'o> {
    pub(crate) checkpoints: Option<&'a Checkpoints>,
    /// Whether rank 0 keeps checkpoints.
    pub(crate) are_kept: bool,
    pub(crate) observers: &'a mut Observers<'o>,
}

impl<'a, 'o> Outputs<'a, 'o> {
    pub(crate) fn new<T: Task>(
        session: &Session<T>,
        checkpoints: Option<&'a Checkpoints>,
        observers: &'a mut Observers<'o>,
    ) -> Result<Self> {
        let are_kept = session.ranks.on_first(|| Ok(checkpoints.is_some()))?;
        Ok(Self { checkpoints, are_kept, observers })
    }

    /// Reports `event` to all observers.
    pub(crate) fn notify(&mut self, event: &Event<'_>) -> Result<()> {
        notify(self.observers, event)
    }

    /// Saves a checkpoint, marks `best`, and removes old checkpoints.
    pub(crate) fn save<T: Task>(&mut self, session: &Session<T>) -> Result<()> {
        if !self.are_kept {
            return Ok(());
        }
        let checkpoint = session.checkpoint()?;
        session.ranks.on_first(|| self.write(session, &checkpoint))
    }

    /// On rank 0.
    fn write<T: Task>(&mut self, session: &Session<T>, checkpoint: &Checkpoint) -> Result<()> {
        let Some(checkpoints) = self.checkpoints else { return Ok(()) };
        let step = session.progress.step;
        self.notify(&Event::CheckpointSaving { step })?;
        let path = checkpoints.save(checkpoint)?;
        self.mark_and_prune(session)?;
        self.notify(&Event::CheckpointSaved { step, path: &path })
    }

    /// Saves, unless the newest checkpoint is of this step, or no step has been made yet.
    pub(crate) fn save_unless_saved<T: Task>(&mut self, session: &Session<T>) -> Result<()> {
        let is_saved = session.ranks.on_first(|| match self.checkpoints {
            Some(saved) => Ok(saved.latest()?.unwrap_or(0) == session.progress.step),
            None => Ok(true),
        })?;
        if is_saved { Ok(()) } else { self.save(session) }
    }

    /// Finishes what follows a saved checkpoint. A resumed run calls it first, since a crash may have come between.
    pub(crate) fn finish_save<T: Task>(&self, session: &Session<T>) -> Result<()> {
        session.ranks.on_first(|| self.mark_and_prune(session))
    }

    /// Marks `best` and removes old checkpoints. On rank 0.
    fn mark_and_prune<T: Task>(&self, session: &Session<T>) -> Result<()> {
        let Some(checkpoints) = self.checkpoints else { return Ok(()) };
        let best = session.progress.best_step(&session.config.checkpoint);
        match best.filter(|&step| checkpoints.contains(step)) {
            Some(step) => checkpoints.mark_best(step)?,
            // A run that goes on with another `checkpoint.metric`: what was best by the one before does not count.
            None => checkpoints.unmark_best()?,
        }
        checkpoints.prune(session.config.checkpoint.keep_last)?;
        Ok(())
    }

    /// Restores the checkpoint that the run rolls back to, and lowers the learning rate from there on.
    ///
    /// # Errors
    /// The bad step itself, if there is no checkpoint to go back to. If that checkpoint cannot be read, the
    /// session is saved as it is.
    pub(crate) fn roll_back<T: Task>(
        &mut self,
        session: &mut Session<T>,
        bad_step: &BadStepReport,
    ) -> Result<()> {
        let roll_back_to = session.progress.bad_step.roll_back_to;
        let Some(to) = roll_back_to.filter(|_| self.are_kept) else {
            return Err(session.ranks.as_shared_failure(Error::BadStep(bad_step.clone())));
        };
        let (before, device) = (session.progress.bad_step.clone(), session.params.device().clone());
        let checkpoints = self.checkpoints;
        let load = || {
            let load = |kept: &Checkpoints| kept.load(Selection::Step(to), &device);
            checkpoints.map(load).transpose()
        };
        let restored = match session.restore_on_all(load) {
            Ok(restored) => restored,
            // Only what one process has is sure to be of one step.
            Err(error) if session.ranks.is_alone() => {
                // Report the original error, not a failure to save.
                let _ = self.save_unless_saved(session);
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let restored = restored.expect("invariant: rank 0 keeps checkpoints");
        let policy = &session.config.training.bad_step;
        let after = before.rolled_back(policy, restored.state.bad_step);
        let (number, lr_factor) = (after.n_roll_backs, after.lr_factor);
        session.progress.bad_step = after;
        self.notify(&Event::RolledBack { bad_step, to, number, lr_factor })
    }
}
