//! `tealight devices`: the devices that this build can use on this machine.

use std::thread;

use anyhow::Result;
use tealight_train::task::table::Table;

use crate::system::device::{self, Gpu};
use crate::system::memory;
use crate::terminal::numbers::{counted, format_bytes};
use crate::terminal::output::print;

pub(crate) fn run() -> Result<()> {
    let mut table = Table::new(["device", "description", "memory", "free"]);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let known = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |n| format_bytes(n as f64));
    let [total, free] = [memory::total(), memory::available()].map(known);
    table.row(["cpu".to_owned(), counted(threads, "thread"), total, free]);
    let gpus = device::cuda_gpus();
    for Gpu { device, description, memory } in gpus.iter().flatten() {
        let [total, free] = [memory.total, memory.free].map(|bytes| format_bytes(bytes as f64));
        table.row([device.to_string(), description.clone(), total, free]);
    }
    let note = gpus.err().map_or(String::new(), |error| format!("\n{error}\n"));
    print(&format!("{table}{note}"))
}
