//! Pictures that the final evaluation has drawn into a run's directory.

use std::fmt;
use std::path::Path;

use maud::{Markup, html};
use tealight_train::run::RunDirectory;
use tealight_train::storage::files::read_up_to;

use crate::charts::base64::Base64;

/// The largest file that is put into the page.
const MAX_BYTES: u64 = 400_000;
/// The most examples of a run whose pictures are shown: more than training keeps.
pub(crate) const MAX_PICTURES: usize = 32;
/// The files of a run's evaluation, and what they show.
const OF_RUN: [(&str, &str); 1] = [("mistakes", "The most confident mistakes")];

/// The content of a picture as a `data:` address. As an image, an SVG runs no script and loads nothing.
#[derive(Clone, Debug)]
pub(crate) struct Address(String);

impl Address {
    /// Reads the PNG at `path`. Returns `None` as [`Plot::read`] does.
    pub(crate) fn of_png(path: &Path) -> Option<Self> {
        Self::read(path, "png")
    }

    fn read(path: &Path, kind: &str) -> Option<Self> {
        let bytes = read_up_to(path, MAX_BYTES).ok()?;
        Some(Self(format!("data:image/{kind};base64,{}", Base64(&bytes))))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A drawing.
#[derive(Debug)]
pub(crate) struct Plot {
    title: String,
    address: Address,
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
        Some(Self { title: title.to_owned(), address: Address::read(path, "svg+xml")? })
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
