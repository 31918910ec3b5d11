//! Drawings as files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tealight_train::storage::files::replace;

use super::shapes::Drawing;
use super::{png, svg};

/// Writes each drawing as `<directory>/<name>.svg` and `.png`. Returns all paths.
pub(crate) fn save(
    directory: &Path,
    drawings: impl IntoIterator<Item = (String, Drawing)>,
) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create `{}`", directory.display()))?;
    let mut paths = Vec::new();
    for (name, drawing) in drawings {
        let name = file_name(&name);
        let [vector, pixels] =
            ["svg", "png"].map(|ending| directory.join(format!("{name}.{ending}")));
        replace(&vector, svg::write(&drawing).as_bytes())?;
        replace(&pixels, &png::write(&drawing, PNG_SCALE)?)?;
        paths.extend([vector, pixels]);
    }
    Ok(paths)
}

/// Pixels of a PNG file per pixel of the SVG, for high-resolution screens.
const PNG_SCALE: f32 = 2.;

/// A valid file name on every system.
fn file_name(name: &str) -> String {
    let keep = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    name.chars().map(|c| if keep(c) { c } else { '_' }).collect()
}
