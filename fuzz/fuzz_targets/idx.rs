#![no_main]

#[path = "../../crates/tealight-train/tests/hostile/targets.rs"]
#[expect(dead_code, reason = "one target of several")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::idx(bytes));
