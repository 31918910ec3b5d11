//! This build: its version, commit and features, how it was installed, and the instruction sets that it uses on this
//! processor.

use std::sync::LazyLock;

use tealight_ops::{bf16_instructions, instructions};
use tealight_train::run::manifest::{CANDLE_VERSION, COMMIT};

use super::installation::installed;

/// The release.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The features that it was built with.
pub(crate) fn features() -> Vec<&'static str> {
    let all = [
        ("cuda", cfg!(feature = "cuda")),
        ("cudnn", cfg!(feature = "cudnn")),
        ("nccl", cfg!(feature = "nccl")),
        ("metal", cfg!(feature = "metal")),
        ("mkl", cfg!(feature = "mkl")),
        ("accelerate", cfg!(feature = "accelerate")),
    ];
    all.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect()
}

/// What `-V` prints below the release.
pub(crate) fn details() -> &'static str {
    static DETAILS: LazyLock<String> = LazyLock::new(|| {
        let features = features();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        format!(
            "{VERSION}\n\
             installed     {}\n\
             commit        {}\n\
             Candle        {CANDLE_VERSION}\n\
             features      {features}\n\
             instructions  {}",
            installed(),
            COMMIT.unwrap_or("not recorded"),
            instruction_sets()
        )
    });
    &DETAILS
}

/// `avx512, avx512_bf16 for bf16`, or one instruction set for both.
pub(crate) fn instruction_sets() -> String {
    match (instructions(), bf16_instructions()) {
        (f32, Some(bf16)) if f32 != bf16 => format!("{f32}, {bf16} for bf16"),
        (f32, _) => f32.to_owned(),
    }
}
