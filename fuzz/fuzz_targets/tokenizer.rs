#![no_main]

#[path = "../../crates/tealight-train/tests/hostile/targets.rs"]
#[expect(dead_code, reason = "one target of several")]
mod targets;

// The tokenizers library panics on some files, and Tealight catches it: what ends here was not caught.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| ())),
    |bytes: &[u8]| targets::tokenizer(bytes)
);
