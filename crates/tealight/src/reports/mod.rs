//! The report of each task as a table.

mod classify;
mod language;
mod listops;
pub(crate) mod presented;
mod seq2seq;
mod weather;
