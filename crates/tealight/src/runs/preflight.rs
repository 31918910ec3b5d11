//! Checks before training: memory for the model, disk space for its checkpoints.

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
use crate::terminal::numbers::format_bytes;

/// Compares the needs of a run with the available memory and disk space, where the system reports
/// them. The message names required and available bytes, and how to need fewer. `directory` is the run's or its
/// parent; `saved` are the checkpoints that exist already.
pub(crate) fn shortage<T: Task>(
    session: &Session<T>,
    directory: &Path,
    saved: Option<&Checkpoints>,
) -> Result<Option<ConfigFault>> {
    let (needed, available) = if session.params.device().is_cpu() {
        // The model and the data are resident already.
        let needed = session.memory_needed() - memory::resident().unwrap_or(0) as f64;
        (needed, memory::available())
    } else {
        let memory = gpu_memory(session.params.device());
        let needed = session.memory_needed() - session.bytes_held() as f64;
        (needed, memory.map(|memory| memory.free))
    };
    if let Some(shortage) =
        available.and_then(|available| memory_shortage(needed, available as f64))
    {
        return Ok(Some(shortage));
    }
    let n_saved = saved.map(Checkpoints::steps).transpose()?.map_or(0, |steps| steps.len()) as u64;
    let RunConfig { training, checkpoint, .. } = &session.config;
    // Periodic checkpoints, one after each best evaluation, and the last.
    let n_written = (training.steps / checkpoint.every)
        .saturating_add(training.steps / training.evaluate_every)
        .saturating_add(1);
    // The latest, the best, and the one being written before an old one is removed.
    let n_kept = (checkpoint.keep_last as u64).saturating_add(2).min(n_written);
    let n_new = n_kept.saturating_sub(n_saved).max(1);
    let one = session.checkpoint_bytes() as f64;
    let needed = n_new as f64 * one;
    let Some(free) = free(directory).filter(|free| needed > *free as f64) else { return Ok(None) };
    let message = format!(
        "{n_new} checkpoints of {} need {}, but `{}` has only {} free; reduce `checkpoint.keep_last`",
        format_bytes(one),
        format_bytes(needed),
        directory.display(),
        format_bytes(free as f64)
    );
    Ok(Some(fault("checkpoint.keep_last", message)))
}

fn fault(key: &str, message: String) -> ConfigFault {
    ConfigFault { keys: vec![key.to_owned()], message }
}

fn memory_shortage(needed: f64, available: f64) -> Option<ConfigFault> {
    let message = format!(
        "training needs about {} more memory, but only {} is available; reduce \
         `training.batch_size` or set `training.activation_checkpointing` = true",
        format_bytes(needed),
        format_bytes(available)
    );
    (needed > available).then(|| fault("training.batch_size", message))
}

/// Explains an out-of-memory error of a GPU: suggests batch sizes that fit. Other errors are returned
/// unchanged.
///
/// The error is recognised by the name of the driver's code in its text: Candle boxes the driver's error, and only a
/// build with CUDA knows its type.
pub(crate) fn explain_out_of_memory<T: Task>(error: Error, session: &Session<T>) -> Error {
    let ran_out = |text: &str| text.contains("OUT_OF_MEMORY") || text.contains("ALLOC_FAILED");
    match (&error, gpu_memory(session.params.device())) {
        (Error::Candle(cause), Some(memory)) if ran_out(&cause.to_string()) => {
            // The driver and fragmentation take some of it.
            let bytes = 0.9 * memory.total as f64;
            let message = batch_too_large(
                session.config.training.batch_size,
                memory.total as f64,
                [Activations::Kept, Activations::Recomputed]
                    .map(|activations| session.largest_batch(bytes, activations)),
            );
            Error::Config(fault("training.batch_size", message))
        }
        _ => error,
    }
}

/// `fitting`: the largest batch sizes without and with activation checkpointing.
fn batch_too_large(batch_size: usize, total: f64, fitting: [usize; 2]) -> String {
    let [without, recomputed] = fitting.map(|n| n.min(batch_size.saturating_sub(1)));
    let mut message = format!(
        "the GPU ran out of memory ({}) at `training.batch_size` = {batch_size}",
        format_bytes(total)
    );
    if without > 0 {
        let _ = write!(message, "; about {without} would fit");
    }
    if recomputed > without {
        let _ =
            write!(message, "; about {recomputed} with `training.activation_checkpointing` = true");
    }
    message += "; `training.micro_batches` accumulates gradients over several smaller batches";
    message
}

/// Free bytes on the file system of `path`, which need not exist yet.
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
    fn too_little_memory_is_reported_with_both_sizes() {
        assert!(memory_shortage(3e9, 4e9).is_none());
        let message = memory_shortage(4e9, 3e9).unwrap().message;
        assert!(message.starts_with("training needs about 3.7 GiB more memory, but only 2.8 GiB"));
    }

    #[test]
    fn an_out_of_memory_error_suggests_batch_sizes_that_fit() {
        let gib = f64::from(1 << 30);
        assert_eq!(
            batch_too_large(64, 8. * gib, [20, 90]),
            "the GPU ran out of memory (8.0 GiB) at `training.batch_size` = 64; about 20 would fit; about 63 \
             with `training.activation_checkpointing` = true; `training.micro_batches` accumulates gradients \
             over several smaller batches"
        );
        assert!(!batch_too_large(1, 8. * gib, [0, 0]).contains("fit;"));
    }

    #[cfg(unix)]
    #[test]
    fn a_missing_directory_has_the_free_space_of_its_parent() {
        assert!(free(Path::new("/")).is_some());
        assert!(free(Path::new("nowhere/at/all")).is_some_and(|free| free > 0));
    }
}
