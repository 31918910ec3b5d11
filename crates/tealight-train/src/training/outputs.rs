//! What a run writes while it trains: checkpoints, and events to observers.

use crate::error::{BadStepReport, Error, Result};
use crate::observer::{Event, Observers, notify};
use crate::run::{Checkpoints, Selection};
use crate::task::Task;

use super::session::Session;

/// The checkpoints of a run, if it keeps any, and its observers.
pub(crate) struct Outputs<'a, 'o> {
    pub(crate) checkpoints: Option<&'a Checkpoints>,
    pub(crate) observers: &'a mut Observers<'o>,
}

impl Outputs<'_, '_> {
    /// Reports `event` to all observers.
    pub(crate) fn notify(&mut self, event: &Event<'_>) -> Result<()> {
        notify(self.observers, event)
    }

    /// Saves a checkpoint, marks `best`, and removes old checkpoints.
    pub(crate) fn save<T: Task>(&mut self, session: &Session<T>) -> Result<()> {
        let Some(checkpoints) = self.checkpoints else { return Ok(()) };
        let step = session.progress.step;
        self.notify(&Event::CheckpointSaving { step })?;
        let path = checkpoints.save(&session.checkpoint())?;
        self.finish_save(session)?;
        self.notify(&Event::CheckpointSaved { step, path: &path })
    }

    /// Saves, unless the newest checkpoint is of this step, or no step has been made yet.
    pub(crate) fn save_unless_saved<T: Task>(&mut self, session: &Session<T>) -> Result<()> {
        match self.checkpoints {
            Some(saved) if saved.latest()?.unwrap_or(0) != session.progress.step => {
                self.save(session)
            }
            _ => Ok(()),
        }
    }

    /// Finishes what follows a saved checkpoint: marks `best` and removes old checkpoints. A resumed run calls
    /// it first, since a crash may have come between.
    pub(crate) fn finish_save<T: Task>(&self, session: &Session<T>) -> Result<()> {
        let Some(checkpoints) = self.checkpoints else { return Ok(()) };
        if let Some(best) = session.progress.early_stopping.state.best
            && checkpoints.contains(best.step)
        {
            checkpoints.mark_best(best.step)?;
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
        let Some((checkpoints, to)) = self.checkpoints.zip(roll_back_to) else {
            return Err(Error::BadStep(bad_step.clone()));
        };
        let checkpoint =
            checkpoints.load(Selection::Step(to), session.params.device()).inspect_err(|_| {
                // Report the original error, not a failure to save.
                let _ = self.save_unless_saved(session);
            })?;
        let policy = &session.config.training.bad_step;
        let restored = checkpoint.state.bad_step.clone();
        let after = session.progress.bad_step.rolled_back(policy, restored);
        session.restore(&checkpoint)?;
        let (number, lr_factor) = (after.n_roll_backs, after.lr_factor);
        session.progress.bad_step = after;
        self.notify(&Event::RolledBack { bad_step, to, number, lr_factor })
    }
}
