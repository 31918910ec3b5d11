//! Models agree with recorded results of `transformers`: every folder of `tests/golden/models`, or of
//! `$TEALIGHT_GOLDEN_DIR/models` if that is set. Names, shapes and settings are read from the folders.

#![expect(clippy::unwrap_used, reason = "what is recorded is there, or the test fails")]

mod cases;
mod classifiers;
mod damaged;
mod embeddings;
mod encoders;
mod fill_mask;
mod folders;
mod greedy;
mod model;
mod pickles;
mod rankers;
mod record;
mod rerankers;
mod sentences;
mod taggers;
mod task_loss;
mod trajectories;
