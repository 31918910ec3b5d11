//! A survey of a user's data: it looks into them and finds enough to write a configuration that reads them.
//!
//! One function per use, because the same file can be read in several ways. The answers are proposals: reading the
//! data with the configuration is the check.

mod columns;
mod corpus;
mod labelled;
mod pairs;
mod pictures;
mod sentences;
mod tags;

use std::path::Path;

pub use corpus::{Corpus, corpus};
pub use labelled::{Columns, Labelled, Target, column_names, labelled, texts};
pub(crate) use pairs::is_heading;
pub use pairs::{Pairs, pairs};
pub use pictures::{PictureFiles, PictureFormat, pictures};
pub use sentences::{Alike, Compared, compared};
pub use tags::{Tagged, tags};

use crate::error::Error;

/// The argument with the data, for errors.
const DATA: &str = "--data";

fn refused(path: &Path, rule: &str) -> Error {
    Error::config([DATA], format!("`{}` {rule}", path.display()))
}
