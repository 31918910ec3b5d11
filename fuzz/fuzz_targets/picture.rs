#![no_main]

#[path = "../../crates/tealight-train/tests/hostile/targets.rs"]
#[expect(dead_code, reason = "one target of several")]
mod targets;

// The zune-jpeg crate panics on some files, and Tealight catches these panics. The empty hook keeps
// libFuzzer from aborting on them; a panic that is not caught still ends the target.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| ())),
    |bytes: &[u8]| targets::picture(bytes)
);
