//! Whether a run has room: memory for its training, and disk for its checkpoints.

use std::path::Path;

use anyhow::Result;
use tealight_train::Session;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::run::Checkpoints;
use tealight_train::task::Task;

use crate::memory;

/// Refuses a run that needs more than there is, where the system says how much that is.
pub(crate) fn check<T: Task>(
    session: &Session<T>,
    source: &ConfigSource,
    directory: &Path,
    saved: Option<&Checkpoints>,
) -> Result<()> {
    check_memory(session, source)?;
    check_disk(session, source, directory, saved)
}

fn check_memory<T: Task>(session: &Session<T>, source: &ConfigSource) -> Result<()> {
    let (Some(available), true) = (memory::available(), session.params.device().is_cpu()) else {
        return Ok(());
    };
    // Part of what is needed is held already.
    let needed = session.memory_needed() - memory::resident().unwrap_or(0) as f64;
    if needed <= available as f64 {
        return Ok(());
    }
    let message = format!(
        "training needs about {} of memory more, and {} are available; a smaller \
         `training.batch_size` or `training.activation_checkpointing` needs less, and `--force` tries \
         all the same",
        size(needed),
        size(available as f64)
    );
    Err(source.conflict_error(&["training.batch_size"], &message).into())
}

fn check_disk<T: Task>(
    session: &Session<T>,
    source: &ConfigSource,
    directory: &Path,
    saved: Option<&Checkpoints>,
) -> Result<()> {
    let Some(free) = free(directory) else { return Ok(()) };
    let n_saved = saved.map(Checkpoints::steps).transpose()?.map_or(0, |steps| steps.len()) as u64;
    let RunConfig { training, checkpoint, .. } = &session.config;
    // Every so often, after an evaluation that is the best, and at the end.
    let n_made = (training.steps / checkpoint.every)
        .saturating_add(training.steps / training.evaluate_every)
        .saturating_add(1);
    // The last ones, the best, and the one that is being written while all of them are there.
    let n_kept = (checkpoint.keep_last as u64).saturating_add(2).min(n_made);
    let n_new = n_kept.saturating_sub(n_saved).max(1);
    let one = session.checkpoint_bytes() as f64;
    let needed = n_new as f64 * one;
    if needed <= free as f64 {
        return Ok(());
    }
    let message = format!(
        "{n_new} checkpoints of {} need {}, and `{}` has {} left; a smaller `checkpoint.keep_last` \
         needs less, and `--force` tries all the same",
        size(one),
        size(needed),
        directory.display(),
        size(free as f64)
    );
    Err(source.conflict_error(&["checkpoint.keep_last"], &message).into())
}

/// Bytes that may still be written at `path`, or where it would be made.
fn free(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    free_at(existing)
}

#[cfg(unix)]
fn free_at(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(not(unix))]
fn free_at(_: &Path) -> Option<u64> {
    None
}

/// `1.5 GiB`
pub(crate) fn size(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (bytes.max(0.), 0);
    while number >= 1024. && unit + 1 < UNITS.len() {
        (number, unit) = (number / 1024., unit + 1);
    }
    if unit == 0 { format!("{number:.0} bytes") } else { format!("{number:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_in_units_of_1024() {
        let sizes = [0., 1023., 1024., 1536. * 1024., 3e9, 1e18].map(size);
        let expected = ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "2.8 GiB", "909494.7 TiB"];
        assert_eq!(sizes, expected);
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_is_not_there_yet_has_the_room_of_the_one_above() {
        assert!(free(Path::new("/")).is_some());
        assert!(free(Path::new("nowhere/at/all")).is_some_and(|free| free > 0));
    }
}
