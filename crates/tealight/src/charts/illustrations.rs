//! The illustrations of the report of a task, as drawings and as files.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tealight_train::storage::files::refuse_link;
use tealight_train::task::Illustration;
use tealight_train::task::report::Report;

use super::files::save;
use super::shapes::Drawing;
use super::{confusion, sheet};

/// Draws what a report shows into the folder `plots` of a run. Returns the paths.
pub(crate) fn save_of(report: &Report, run: &Path) -> Result<Vec<PathBuf>> {
    let illustrations = &report.illustrations;
    if illustrations.is_empty() {
        return Ok(Vec::new());
    }
    let drawings = illustrations.iter().map(|(name, shown)| ((*name).to_owned(), draw(shown)));
    let folder = run.join("plots");
    refuse_link(&folder)?;
    save(&folder, drawings)
}

fn draw(illustration: &Illustration) -> Drawing {
    match illustration {
        Illustration::Confusion { labels, counts } => confusion::draw(labels, counts),
        Illustration::Sheet { title, caption, pictures } => sheet::draw(title, caption, pictures),
    }
}
