//! The pictures of a report, which the command line draws.

use crate::data::images::Picture;

/// A picture of a report.
#[derive(Debug)]
pub enum Illustration {
    /// How often a class was taken for another.
    Confusion {
        /// The classes.
        labels: Vec<String>,
        /// `(n_classes, n_classes)`: examples of the row's class for which the column's was predicted.
        counts: Vec<Vec<u64>>,
    },
    /// Pictures side by side, each with lines of text below it.
    Sheet {
        /// The title of the sheet.
        title: String,
        /// Explains the lines.
        caption: String,
        /// The pictures.
        pictures: Vec<Captioned>,
    },
}

/// A picture with lines of text.
#[derive(Debug)]
pub struct Captioned {
    /// The picture.
    pub picture: Picture,
    /// The lines.
    pub lines: Vec<String>,
}
