//! What tasks share when they cut data into batches.

mod order;

pub use order::ShuffledOrder;
