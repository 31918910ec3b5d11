//! The program `tealight`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tealight_ops::allocator::Allocator = tealight_ops::allocator::Allocator;

fn main() -> ExitCode {
    tealight::main()
}
