//! Memory and disk space: what a run needs, beside what this machine has free.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tealight_model::{Activations, ConfigFault};
use tealight_train::communicator::ranks::Ranks;
use tealight_train::config::RunConfig;
use tealight_train::run::Checkpoints;
use tealight_train::run::manifest::device_name;
use tealight_train::task::Task;
use tealight_train::{Error, Session};

use crate::system::device::gpu_memory;
use crate::system::memory;
use crate::terminal::numbers::format_bytes;

/// What a process needs to train, and has, of the memory of one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Need {
    /// Processes of one host that name the same device share its memory.
    device: String,
    /// Bytes beside those that it already holds.
    needed: f64,
    /// Free bytes; `None` where the system does not report them.
    available: Option<u64>,
}

impl Need {
    fn from_session<T: Task>(session: &Session<T>, n_ranks: usize) -> Self {
        let device = session.params.device();
        let (held, available) = if device.is_cpu() {
            // The model and the data are resident already.
            (memory::resident().unwrap_or(0), memory::available())
        } else {
            (session.bytes_held(), gpu_memory(device).map(|memory| memory.free))
        };
        let needed = session.memory_needed(n_ranks) - held as f64;
        Self { device: device_name(device), needed, available }
    }
}

/// Compares what the processes of this host need with the available memory, where the system reports it. The message
/// names required and available bytes, and how to need fewer. All ranks call it.
///
/// # Errors
/// If communication fails.
pub(crate) fn memory_shortage<T: Task>(
    session: &Session<T>,
    ranks: &Ranks,
) -> Result<Option<ConfigFault>> {
    let own = Need::from_session(session, ranks.size());
    let all = ranks.gather(&own)?;
    let here = ranks.on_this_host().into_iter().map(|rank| &all[rank]);
    let sharing: Vec<_> = here.filter(|other| other.device == own.device).collect();
    Ok(shortage(&sharing))
}

/// Compares the needs of processes that share one memory.
fn shortage(sharing: &[&Need]) -> Option<ConfigFault> {
    let needed = sharing.iter().map(|need| need.needed).sum::<f64>();
    let available = sharing.iter().filter_map(|need| need.available).min()? as f64;
    let (whose, fewer) = match sharing.len() {
        1 => (String::new(), ""),
        n => (format!("the {n} processes of this computer together: "), ", start fewer processes"),
    };
    let message = format!(
        "{whose}training needs about {} more memory, but only {} is available; reduce \
         `training.batch_size`{fewer} or set `training.activation_checkpointing` = true",
        format_bytes(needed),
        format_bytes(available)
    );
    (needed > available).then(|| fault("training.batch_size", message))
}

/// Compares the size of a run's checkpoints with the free disk space, where the system reports it. The message names
/// required and available bytes, and how to need fewer. `directory` is the run's or its parent; `saved` are the
/// checkpoints that exist already.
pub(crate) fn disk_shortage<T: Task>(
    session: &Session<T>,
    directory: &Path,
    saved: Option<&Checkpoints>,
) -> Result<Option<ConfigFault>> {
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
        let need = |needed, available| Need { device: "cpu".to_owned(), needed, available };
        assert!(shortage(&[&need(3e9, Some(4_000_000_000))]).is_none());
        assert!(shortage(&[&need(3e9, None)]).is_none());
        let message = shortage(&[&need(4e9, Some(3_000_000_000))]).unwrap().message;
        assert!(message.starts_with("training needs about 3.7 GiB more memory, but only 2.8 GiB"));
    }

    #[test]
    fn processes_of_one_computer_share_its_memory() {
        let each = Need { device: "cpu".to_owned(), needed: 2e9, available: Some(3_000_000_000) };
        assert!(shortage(&[&each]).is_none());
        let message = shortage(&[&each, &each]).unwrap().message;
        assert!(message.starts_with(
            "the 2 processes of this computer together: training needs about 3.7 GiB"
        ));
        assert!(message.contains("start fewer processes"), "{message}");
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
