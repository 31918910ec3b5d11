//! What tasks share when they cut data into batches.

mod file;
pub mod fingerprint;
pub(crate) mod json_line;
mod order;
mod padding;
mod permutation;

pub use file::DataFile;
pub(crate) use file::unchanged;
pub use order::ShuffledOrder;
pub(crate) use padding::padded;
pub use permutation::Permutation;
