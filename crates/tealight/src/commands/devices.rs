//! `tealight devices`: where this build can compute on this machine.

use std::thread;

use anyhow::Result;
use tealight_train::task::table::Table;

use crate::system::{device, memory};
use crate::terminal::numbers::size;
use crate::terminal::output::print;

pub(crate) fn run() -> Result<()> {
    let mut table = Table::new(["device", "is", "memory", "free"]);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let free = memory::available().map_or("?".to_owned(), |bytes| size(bytes as f64));
    let all = memory::total().map_or("?".to_owned(), |bytes| size(bytes as f64));
    table.row(["cpu".to_owned(), format!("{threads} threads"), all, free]);
    let found = device::cuda();
    for gpu in found.iter().flatten() {
        let [all, free] = [gpu.memory, gpu.free].map(|bytes| size(bytes as f64));
        table.row([gpu.device.to_string(), gpu.description.clone(), all, free]);
    }
    let rest = found.err().map_or(String::new(), |error| format!("\n{error}\n"));
    print(&format!("{table}{rest}"))
}
