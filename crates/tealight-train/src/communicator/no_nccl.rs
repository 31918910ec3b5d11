//! In place of NCCL in a build without the feature `nccl`.

use std::sync::Arc;

use candle_core::Device;

use super::ranks::Ranks;
use super::transport::Transport;
use crate::error::{Error, Result};

/// # Errors
/// Always, on all ranks.
pub(crate) fn connect(ranks: &Ranks, _: &Device) -> Result<Arc<dyn Transport>> {
    let message = "`distributed.transport` = \"nccl\" is not in this build of tealight, which is made with `cargo build \
                   --release --features nccl`; \"host\" works in all";
    Err(ranks.as_shared_failure(Error::config(["distributed.transport"], message)))
}
