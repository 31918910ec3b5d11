//! `tealight bench attention`: each kind of attention over the sequence length.

mod kind;
pub(super) mod layer;
mod measurement;
mod tables;

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use tealight_ops::threads;

use self::kind::Kind;
use self::measurement::{Cell, Measurement};
use crate::args::bench::{AttentionOnce, BenchAttention, Layer, Pass};
use crate::charts::files::save;
use crate::runs::number_format::NumberFormat;
use crate::system::device::DeviceName;
use crate::system::subprocess::{self, THREADS, this_program};
use crate::terminal::output::{log, print, print_indented_json};

pub(super) fn run(args: &BenchAttention) -> Result<()> {
    let kinds = kind::parse_list(args.kinds.as_deref())?;
    let Layer { d_model, n_heads, .. } = args.layer;
    if !d_model.is_multiple_of(n_heads) {
        bail!("`--n-heads {n_heads}` does not divide `--d-model {d_model}`");
    }
    // Fails early if the device is not available.
    args.layer.device.open()?;
    NumberFormat::for_device(args.layer.precision.of_products(), args.layer.device)
        .warn_if_replaced();
    let is_asked_for = |pass: &Pass| match pass {
        Pass::Forward => true,
        Pass::ForwardAndBackward => args.backward,
        Pass::Decoding => args.decoding,
    };
    let mut cells = Vec::new();
    for pass in Pass::ALL.into_iter().filter(is_asked_for) {
        for kind in &kinds {
            for &length in &args.lengths {
                let measured = measure(args, kind, length, pass)?;
                let cell = Cell { kind: kind.to_string(), length, pass, measured };
                log(&tables::line(&cell));
                cells.push(cell);
            }
        }
    }
    if cells.iter().all(|cell| cell.measured.is_err()) {
        bail!("all measurements failed");
    }
    if let Some(directory) = &args.plot {
        for path in save(directory, tables::drawings(args, &cells))? {
            log(&path.display().to_string());
        }
    }
    let threads = args.options.threads.unwrap_or_else(threads::count);
    if args.options.json {
        return print_indented_json(&tables::json(args, threads, &cells));
    }
    print(&tables::markdown(args, threads, &cells))
}

/// Measures memory and time, each in its own process. The inner error is that of a process.
fn measure(
    args: &BenchAttention,
    kind: &Kind,
    length: usize,
    pass: Pass,
) -> Result<Result<Measurement, String>> {
    let command = |memory| -> Result<Command> {
        let (kind, layer) = (kind.to_string(), args.layer.clone());
        let settings = AttentionOnce { kind, length, pass, memory, layer };
        let mut command = this_program()?;
        command.args(["bench", "attention-once", &serde_json::to_string(&settings)?]);
        if let Some(threads) = args.options.threads {
            command.env(THREADS, threads.to_string());
        }
        Ok(command)
    };
    let mut peak_memory_bytes = None;
    if args.layer.device == DeviceName::Cpu && pass != Pass::Decoding {
        // Larger buffers are returned to the system when they are freed (`mallopt(3)`).
        match output(command(true)?.env("MALLOC_MMAP_THRESHOLD_", "65536"))? {
            Ok(growth) => peak_memory_bytes = growth,
            Err(reason) => return Ok(Err(reason)),
        }
    }
    let timing = output(&mut command(false)?)?;
    Ok(timing.map(|timing| Measurement { peak_memory_bytes, ..timing }))
}

/// The JSON that a measurement prints, or its error message.
fn output<T: DeserializeOwned>(command: &mut Command) -> Result<Result<T, String>> {
    match subprocess::run(command)? {
        Ok(stdout) => Ok(Ok(serde_json::from_slice(&stdout).context("cannot read a measurement")?)),
        Err(message) => Ok(Err(message)),
    }
}
