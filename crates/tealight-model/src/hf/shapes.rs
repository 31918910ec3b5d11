//! What the files of a folder tell before they are read.

use std::collections::BTreeMap;

/// The shapes of the tensors in a folder's files, by their names there.
pub type Shapes = BTreeMap<String, Vec<usize>>;
