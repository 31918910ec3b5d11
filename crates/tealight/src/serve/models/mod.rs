//! Models: a table by name, a thread for each that is asked, and what it answers together.

pub(super) mod batch;
pub(super) mod catalogue;
mod examples;
pub(super) mod loaded;
mod search;
pub(super) mod table;
pub(super) mod worker;
