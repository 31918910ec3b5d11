//! Whether a run has room: memory for its training, and disk for its checkpoints.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use tealight_model::{Activations, ConfigFault};
use tealight_train::config::RunConfig;
use tealight_train::run::Checkpoints;
use tealight_train::task::Task;
use tealight_train::{Error, Session};

use crate::system::device::gpu_memory;
use crate::system::memory;
use crate::terminal::numbers::size;

/// What there is too little of.
pub(crate) struct Shortage {
    /// The setting that asks for so much.
    pub(crate) key: &'static str,
    /// In words: how much is needed, how much there is, what needs less.
    pub(crate) message: String,
}

/// Whether a run needs more than there is, as far as the system says how much that is. `directory` is
/// where it writes; `saved`, what it has written already.
pub(crate) fn shortage<T: Task>(
    session: &Session<T>,
    directory: &Path,
    saved: Option<&Checkpoints>,
) -> Result<Option<Shortage>> {
    let (needed, available) = if session.params.device().is_cpu() {
        // Part of what is needed is held already.
        let needed = session.memory_needed() - memory::resident().unwrap_or(0) as f64;
        (needed, memory::available())
    } else {
        let memory = gpu_memory(session.params.device());
        let needed = session.memory_needed() - session.bytes_held() as f64;
        (needed, memory.map(|memory| memory.free))
    };
    if let Some(shortage) = available.and_then(|available| of_memory(needed, available as f64)) {
        return Ok(Some(shortage));
    }
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
    let Some(free) = free(directory).filter(|free| needed > *free as f64) else { return Ok(None) };
    let message = format!(
        "{n_new} checkpoints of {} need {}, and `{}` has {} left; a smaller `checkpoint.keep_last` \
         needs less",
        size(one),
        size(needed),
        directory.display(),
        size(free as f64)
    );
    Ok(Some(Shortage { key: "checkpoint.keep_last", message }))
}

fn of_memory(needed: f64, available: f64) -> Option<Shortage> {
    let message = format!(
        "training needs about {} of memory more, and {} are available; a smaller \
         `training.batch_size` or `training.activation_checkpointing` needs less",
        size(needed),
        size(available)
    );
    (needed > available).then_some(Shortage { key: "training.batch_size", message })
}

/// An error as it is, unless a GPU's memory ran out: then what would fit is said.
pub(crate) fn explained<T: Task>(error: Error, session: &Session<T>) -> Error {
    let ran_out = |text: &str| text.contains("OUT_OF_MEMORY") || text.contains("ALLOC_FAILED");
    match (&error, gpu_memory(session.params.device())) {
        (Error::Candle(cause), Some(memory)) if ran_out(&cause.to_string()) => {
            // Some of it is never a program's.
            let bytes = 0.9 * memory.total as f64;
            let message = too_large(
                session.config.training.batch_size,
                memory.total as f64,
                [Activations::Kept, Activations::Recomputed]
                    .map(|activations| session.largest_batch(bytes, activations)),
            );
            Error::Config(ConfigFault { keys: vec!["training.batch_size".to_owned()], message })
        }
        _ => error,
    }
}

/// `fitting`: batches that would fit, as they are and with activation checkpointing.
fn too_large(batch_size: usize, total: f64, fitting: [usize; 2]) -> String {
    let [as_it_is, recomputed] = fitting.map(|n| n.min(batch_size.saturating_sub(1)));
    let mut message = format!(
        "the GPU's memory of {} ran out at `training.batch_size` = {batch_size}",
        size(total)
    );
    if as_it_is > 0 {
        let _ = write!(message, "; about {as_it_is} would fit");
    }
    if recomputed > as_it_is {
        let _ =
            write!(message, "; about {recomputed} with `training.activation_checkpointing` = true");
    }
    message += "; `training.micro_batches` makes up for smaller batches";
    message
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_said_with_both_sizes() {
        assert!(of_memory(3e9, 4e9).is_none());
        let message = of_memory(4e9, 3e9).unwrap().message;
        assert!(message.starts_with("training needs about 3.7 GiB of memory more, and 2.8 GiB"));
    }

    #[test]
    fn a_gpu_that_is_full_is_told_with_what_would_fit() {
        let gib = f64::from(1 << 30);
        assert_eq!(
            too_large(64, 8. * gib, [20, 90]),
            "the GPU's memory of 8.0 GiB ran out at `training.batch_size` = 64; about 20 would fit; about 63 \
             with `training.activation_checkpointing` = true; `training.micro_batches` makes up for smaller \
             batches"
        );
        assert!(!too_large(1, 8. * gib, [0, 0]).contains("fit;"));
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_is_not_there_yet_has_the_room_of_the_one_above() {
        assert!(free(Path::new("/")).is_some());
        assert!(free(Path::new("nowhere/at/all")).is_some_and(|free| free > 0));
    }
}
