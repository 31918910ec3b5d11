//! What happens in runs, as server-sent events. Files are read again and again; the training process is not asked.

pub(super) mod list;
pub(super) mod run;
mod signature;
