//! Data: splits, random orders, files with their hashes, tokenised text, pictures, and weather.

pub mod cache;
pub(crate) mod compressed;
mod file;
pub mod fingerprint;
pub mod images;
pub(crate) mod json_line;
mod order;
mod padding;
pub mod panics;
pub(crate) mod paraphrases;
mod permutation;
pub(crate) mod progress;
pub mod shown;
mod split;
pub mod survey;
pub mod table;
pub mod tags;
pub mod text;
pub mod weather;

pub use compressed::text as whole_text;
pub use file::DataFile;
pub(crate) use file::check_unchanged;
pub use order::{BucketedOrder, ShuffledOrder};
pub(crate) use padding::{padded, padded_to};
pub use permutation::Permutation;
pub use progress::{Progress, Stage};
pub use split::Split;
