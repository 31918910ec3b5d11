//! `tealight devices`: the devices that this build can use on this machine.

use std::thread;

use anyhow::Result;
use serde::Serialize;
use tealight_train::task::table::Table;

use crate::args::program::Devices;
use crate::system::device::{self, Gpu};
use crate::system::memory;
use crate::terminal::numbers::{counted, format_bytes};
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Devices) -> Result<()> {
    let found = Found::now();
    if args.json { print_json(&found) } else { print(&found.text()) }
}

/// The devices, and why there are no others.
#[derive(Serialize)]
pub(super) struct Found {
    devices: Vec<Row>,
    /// Why no GPU is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Row {
    /// As `--device` takes it.
    device: String,
    description: String,
    /// `null` where the system does not say.
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
}

impl Found {
    pub(super) fn now() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let cpu = Row {
            device: "cpu".to_owned(),
            description: counted(threads, "thread"),
            memory_bytes: memory::total(),
            free_bytes: memory::available(),
        };
        let row = |Gpu { device, description, memory }| Row {
            device: device.to_string(),
            description,
            memory_bytes: Some(memory.total),
            free_bytes: Some(memory.free),
        };
        let (gpus, note) = match device::cuda_gpus() {
            Ok(gpus) => (gpus, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self { devices: [cpu].into_iter().chain(gpus.into_iter().map(row)).collect(), note }
    }

    pub(super) fn text(&self) -> String {
        let mut table = Table::new(["device", "description", "memory", "free"]);
        let known = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |n| format_bytes(n as f64));
        for Row { device, description, memory_bytes, free_bytes } in &self.devices {
            let [memory, free] = [*memory_bytes, *free_bytes].map(known);
            table.row([device.clone(), description.clone(), memory, free]);
        }
        let note = self.note.as_ref().map_or(String::new(), |note| format!("\n{note}\n"));
        format!("{table}{note}")
    }
}
