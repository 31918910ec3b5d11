//! The settings of a run that a task is built with.

use std::fmt;
use std::path::Path;

use candle_core::Device;
use tealight_model::ModelConfig;

use crate::data::progress::{Progress, Stage};

/// The settings of a run that a task is built with.
#[derive(Clone, Copy)]
pub struct TaskContext<'a> {
    /// Seed of all random draws.
    pub seed: u64,
    /// Examples in each training batch.
    pub batch_size: usize,
    /// Batches of a step.
    pub micro_batches: u64,
    /// The model that is trained.
    pub model: &'a ModelConfig,
    /// Where batches are created.
    pub device: &'a Device,
    /// Pad training batches to few shapes, so that captured CUDA graphs can be replayed.
    pub fixed_shapes: bool,
    /// The directory of a run whose files are used, such as its tokenizer.
    pub kept: Option<&'a Path>,
    /// The data that a trained model is tested on: both splits are all their examples, and nothing is trained.
    pub test: Option<&'a Path>,
    /// Is called while a corpus is read and tokenised.
    pub progress: &'a dyn Fn(Stage, Progress),
}

impl<'a> TaskContext<'a> {
    /// A context of a new run, without progress.
    pub fn new(seed: u64, batch_size: usize, model: &'a ModelConfig, device: &'a Device) -> Self {
        Self {
            seed,
            batch_size,
            micro_batches: 1,
            model,
            device,
            fixed_shapes: false,
            kept: None,
            test: None,
            progress: &|_, _| {},
        }
    }
}

impl fmt::Debug for TaskContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, batch_size, kept, .. } = self;
        let mut context = f.debug_struct("TaskContext");
        context.field("seed", seed).field("batch_size", batch_size).field("kept", kept);
        context.finish_non_exhaustive()
    }
}
