//! SIGINT, SIGTERM and SIGUSR1: the first stops a run after its current step, the second ends the process.
//! The end of the process that started the run stops it, too, if the run was told to watch that process.
//!
//! `mpirun` passes SIGUSR1 on to its processes and waits, and `sbatch --signal=USR1@120` sends it before the time is
//! up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
#[cfg(unix)]
use signal_hook::consts::SIGUSR1;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

#[cfg(unix)]
const SIGNALS: [(i32, &str); 3] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM"), (SIGUSR1, "SIGUSR1")];

#[cfg(not(unix))]
const SIGNALS: [(i32, &str); 2] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM")];

/// Signal handlers and the signal that they received.
#[derive(Debug)]
pub(crate) struct SignalHandlers {
    /// Number of the received signal; 0 if none.
    received: Arc<AtomicUsize>,
    /// Whether the next signal ends the process.
    ends_process: Arc<AtomicBool>,
    /// The id of the process that this one does not outlive.
    parent: Option<u32>,
}

/// A received signal, or the end of the process that started the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal {
    pub(crate) name: &'static str,
    /// 128 + the number of the signal, as shells report it; of the end of that process, as of SIGTERM.
    pub(crate) exit_code: u8,
}

impl SignalHandlers {
    /// Installs the signal handlers. With the id of the `parent` process, its end is reported as a signal is.
    pub(crate) fn install(parent: Option<u32>) -> Result<Self> {
        let handlers = Self { received: Arc::default(), ends_process: Arc::default(), parent };
        for (signal, _) in SIGNALS {
            let Self { received, ends_process, .. } = &handlers;
            // Handlers run in this order, so the first signal finds `ends_process` unset.
            let registered =
                flag::register_conditional_shutdown(signal, 128 + signal, ends_process.clone())
                    .and_then(|_| flag::register(signal, ends_process.clone()))
                    .and_then(|_| flag::register_usize(signal, received.clone(), signal as usize));
            registered.context("cannot install signal handlers")?;
        }
        Ok(handlers)
    }

    /// The signal received so far, if any, or the end of the parent process.
    pub(crate) fn received(&self) -> Option<Signal> {
        match self.received.load(Ordering::Relaxed) {
            0 if self.has_lost_parent() => Some(Signal::END_OF_PARENT),
            number => Signal::of_number(number),
        }
    }

    /// Whether the parent process has ended: the system then gives this process another parent.
    #[cfg(unix)]
    fn has_lost_parent(&self) -> bool {
        self.parent.is_some_and(|parent| parent != std::os::unix::process::parent_id())
    }

    /// Other systems give a process no other parent.
    #[cfg(not(unix))]
    fn has_lost_parent(&self) -> bool {
        false
    }
}

impl Signal {
    /// Only `ablate` tells a run to watch its parent process.
    const END_OF_PARENT: Self =
        Self { name: "the end of `ablate`", exit_code: 128 + SIGTERM as u8 };

    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let signals = SIGNALS.into_iter().map(Self::from_number);
        signals.chain([Self::END_OF_PARENT]).find(|signal| signal.name == name)
    }

    /// The signal of this number, if it is one that stops a run.
    fn of_number(number: usize) -> Option<Self> {
        SIGNALS.into_iter().find(|(signal, _)| *signal as usize == number).map(Self::from_number)
    }

    fn from_number((number, name): (i32, &'static str)) -> Self {
        Self { name, exit_code: 128 + number as u8 }
    }
}

impl Drop for SignalHandlers {
    /// From here on a signal ends the process, as without handlers.
    fn drop(&mut self) {
        self.ends_process.store(true, Ordering::Relaxed);
    }
}
