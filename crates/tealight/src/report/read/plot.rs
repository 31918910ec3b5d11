//! Pictures that the final evaluation has drawn into a run's directory.

use std::path::Path;

use maud::{Markup, html};
use tealight_train::run::RunDirectory;
use tealight_train::storage::files::read_up_to;

use crate::charts::base64::Base64;

/// The largest file that is put into the page.
const MAX_BYTES: u64 = 400_000;
/// The files of a run's evaluation, and what they show.
const OF_RUN: [(&str, &str); 1] = [("mistakes", "The most confident mistakes")];

/// A picture as a `data:` address. As an image, an SVG runs no script and loads nothing.
#[derive(Debug)]
pub(crate) struct Plot {
    title: String,
    address: String,
}

impl Plot {
    /// The pictures of a run.
    pub(super) fn find_all(run: &RunDirectory) -> Vec<Self> {
        let folder = run.path().join("plots");
        OF_RUN
            .iter()
            .filter_map(|(name, title)| Self::read(&folder.join(format!("{name}.svg")), title))
            .collect()
    }

    /// Reads the picture at `path`. Returns `None` if the file does not exist or is larger than [`MAX_BYTES`].
    pub(in crate::report) fn read(path: &Path, title: &str) -> Option<Self> {
        let bytes = read_up_to(path, MAX_BYTES).ok()?;
        let address = format!("data:image/svg+xml;base64,{}", Base64(&bytes));
        Some(Self { title: title.to_owned(), address })
    }

    /// The picture as a figure.
    pub(in crate::report) fn figure(&self) -> Markup {
        html! {
            // The picture has its own title.
            figure.plot-file {
                img src=(self.address) alt=(self.title);
            }
        }
    }
}
