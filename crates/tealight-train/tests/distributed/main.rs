//! Several ranks train one model. The ranks are threads here; `scripts/cluster_check.sh` repeats the checks with
//! processes of MPI.

#[path = "../common/any_task.rs"]
mod any_task;
mod bits;
#[path = "../common/mod.rs"]
mod common;
mod failing;
#[path = "../common/images.rs"]
mod images;
mod job;
#[path = "../common/outcome.rs"]
mod outcome;
#[path = "../common/tiny.rs"]
mod tiny;

use common::Result;
use tealight_train::RunConfig;
use tiny::tiny;

/// A run of 4 micro-batches whose checkpoints are saved after steps 5 and 10.
fn four(overrides: &[&str]) -> Result<RunConfig> {
    tiny(&[&["training.micro_batches=4"], overrides].concat())
}
