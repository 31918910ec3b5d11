//! A run goes on from its latest intact checkpoint.

use anyhow::{Context, Result, bail};
use tealight_train::Session;
use tealight_train::config::to_resolved_toml;
use tealight_train::observer::jsonl::cut_after;
use tealight_train::observer::samples;
use tealight_train::run::manifest::{Instructions, changed_instructions};
use tealight_train::run::{DamagedCheckpoint, NewestCheckpoint, RunDirectory};
use tealight_train::task::RegisteredTask;
use tealight_train::training::session::Progress;

use crate::runs::ended::Ended;
use crate::runs::job::agree;
use crate::runs::load::weights_mismatch;
use crate::terminal::output::warn;

/// Restores the latest intact checkpoint, which rank 0 reads; a run without one starts at step 0.
///
/// # Errors
/// If the checkpoint lies after the step `stop_after`, among others.
pub(super) fn resume<T: RegisteredTask>(
    session: &mut Session<T>,
    directory: &RunDirectory,
    stop_after: Option<u64>,
) -> Result<()> {
    let (ranks, device) = (session.ranks.clone(), session.params.device().clone());
    let checkpoints = directory.checkpoints();
    let now = Instructions::for_precision(session.config.training.precision, &device);
    let data = session.files();
    let mut newest = None;
    let restored = session.restore_on_all(|| {
        let manifest = directory.manifest()?;
        manifest.check_data(&data)?;
        if let Some(change) = changed_instructions(manifest.instructions.as_ref(), now.as_ref()) {
            warn(&change);
        }
        let NewestCheckpoint { checkpoint, damaged } = checkpoints.load_newest(&device)?;
        for DamagedCheckpoint { step, damage, moved_to } in damaged {
            let kept = moved_to.display();
            warn(&format!(
                "skipped the damaged checkpoint of step {step}, kept as `{kept}`: {damage}"
            ));
        }
        newest = checkpoint.as_ref().map(|checkpoint| checkpoints.path(checkpoint.state.step));
        Ok(checkpoint)
    });
    match newest {
        Some(path) => drop(restored.with_context(|| weights_mismatch(&path, directory))?),
        None => drop(restored?),
    }
    let Progress { step, bad_step, .. } = &session.progress;
    if let Some(stop) = stop_after.filter(|stop| stop < step) {
        bail!(
            "`--stop-after {stop}` lies before step {step}, which `{}` has reached; choose a later step, or leave it \
             out",
            directory.path().display()
        );
    }
    // The resolved configuration of this command replaces the earlier one: some settings may change on resuming.
    let resolved = to_resolved_toml(&session.config)?;
    ranks.on_first(|| {
        directory.keep_resolved(&resolved)?;
        cut_after(&directory.path().join(samples::FILE), *step, bad_step.n_roll_backs)?;
        cut_after(&directory.metrics_path(), *step, bad_step.n_roll_backs)
    })?;
    let removed = if ranks.is_first() { Ended::remove(directory.path()) } else { Ok(()) };
    agree(&ranks, removed)
}
