//! Signals: the first asks a run to stop after its step, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What a person or a queue sends to end a process, with what they are called.
const SIGNALS: [(i32, &str); 2] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM")];

/// Whether somebody has asked this process to stop.
#[derive(Debug)]
pub(crate) struct Interrupts {
    /// The signal that has come; 0 before.
    received: Arc<AtomicUsize>,
    /// Whether the next one ends the process.
    is_last_warning: Arc<AtomicBool>,
}

/// A signal that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupt {
    pub(crate) name: &'static str,
    /// What shells report of a process that the signal has ended: 128 and its number.
    pub(crate) exit_code: u8,
}

impl Interrupts {
    /// From now on signals are heard.
    pub(crate) fn listen() -> Result<Self> {
        let interrupts = Self { received: Arc::default(), is_last_warning: Arc::default() };
        for (signal, _) in SIGNALS {
            let Self { received, is_last_warning } = &interrupts;
            // In this order: the first signal finds the flag down.
            let listens =
                flag::register_conditional_shutdown(signal, 128 + signal, is_last_warning.clone())
                    .and_then(|_| flag::register(signal, is_last_warning.clone()))
                    .and_then(|_| flag::register_usize(signal, received.clone(), signal as usize));
            listens.context("cannot listen to signals")?;
        }
        Ok(interrupts)
    }

    /// The signal that has come, if one has.
    pub(crate) fn received(&self) -> Option<Interrupt> {
        let received = self.received.load(Ordering::Relaxed);
        let (signal, name) =
            SIGNALS.into_iter().find(|(signal, _)| *signal as usize == received)?;
        Some(Interrupt { name, exit_code: 128 + signal as u8 })
    }
}

impl Drop for Interrupts {
    /// Nobody looks any more: a signal ends the process, as if nobody ever had.
    fn drop(&mut self) {
        self.is_last_warning.store(true, Ordering::Relaxed);
    }
}
