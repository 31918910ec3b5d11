//! `tealight attend MODEL PICTURE`: the attention maps of a picture, drawn over it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tealight_train::inference::attention_map::AttentionMap;
use tealight_train::inference::image_classifier::{PictureMaps, Query};
use tealight_train::pipelines::image_classification::{ImageClassification, Request};

use crate::args::inspect::Attend;
use crate::charts::attention::matrices;
use crate::charts::files::save;
use crate::charts::over_picture::{self, mean_of};
use crate::terminal::output::{print, print_json, print_paths, warn};

/// `output` is the folder to draw into without `--output`. A run has one; for a model folder it is `None`.
pub(super) fn run(
    args: &Attend,
    pipeline: &ImageClassification,
    output: Option<PathBuf>,
) -> Result<()> {
    let path = Path::new(&args.sequence);
    if !path.is_file() {
        bail!(
            "`{}` is no file: `{}`, a classifier of pictures, reads PNG and JPEG",
            args.sequence,
            args.model.path.display()
        );
    }
    let maps = pipeline.picture_maps(&Request::File(path.to_owned()), args.patch)?;
    AttentionMap::check_finite(&maps.layers)?;
    if args.json {
        return print_json(&as_json(&args.sequence, &maps)?);
    }
    if args.text {
        return print(&as_text(&maps)?);
    }
    let Some(output) = args.output.clone().or(output) else {
        bail!("`--output DIR` is required for a model folder");
    };
    let rollout = match maps.rollout() {
        Err(error) if args.rollout => return Err(error.into()),
        Err(error) => {
            warn(&format!("not drawn: {error}"));
            None
        }
        Ok(rollout) => Some(rollout),
    };
    let mut drawings = Vec::new();
    if !args.rollout {
        drawings.extend(over_picture::layers(&maps, args.maps)?);
        drawings.extend(over_picture::read_out(&maps));
    }
    drawings.extend(rollout.map(|rollout| over_picture::rollout(&maps, &rollout)));
    print_paths(&save(&output, drawings)?)
}

/// The mean over the maps of each layer, and the rollout up to the last, in percent: a row for each row of patches.
fn as_text(maps: &PictureMaps) -> Result<String> {
    let mut text = String::new();
    for layer in &maps.layers {
        let weights = maps.query_weights(layer)?;
        writeln!(text, "{}, mean of {} maps, in percent", layer.name, weights.len())?;
        write_grid(&mut text, maps, &mean_of(&weights))?;
    }
    if let Some(last) = maps.rollout().ok().and_then(|layers| layers.into_iter().next_back()) {
        writeln!(text, "attention rollout, in percent")?;
        write_grid(&mut text, maps, &last)?;
    }
    Ok(text)
}

fn write_grid(text: &mut String, maps: &PictureMaps, values: &[f32]) -> Result<()> {
    let (prefix, patches) = values.split_at(maps.grid.n_prefix);
    for value in prefix {
        writeln!(text, " [CLS]{:>6.1}", 100. * value)?;
    }
    for row in patches.chunks(maps.grid.columns) {
        row.iter().try_for_each(|value| write!(text, "{:>6.1}", 100. * value))?;
        text.push('\n');
    }
    Ok(())
}

/// All weights, and those of the query by layer.
fn as_json(path: &str, maps: &PictureMaps) -> Result<Value> {
    let layer = |layer: &AttentionMap| -> Result<Value> {
        let AttentionMap { name, queries, maps: of_layer, .. } = layer;
        Ok(json!({
            "name": name,
            "positions": queries,
            "row_sum": of_layer.row_sum,
            "weights": matrices(&of_layer.weights)?,
            "reads": maps.query_weights(layer)?,
        }))
    };
    let layers: Vec<Value> = maps.layers.iter().map(layer).collect::<Result<_>>()?;
    let query = match maps.query {
        Query::ReadOut(read_out) => json!({ "read_out": read_out }),
        Query::Patch(row, column) => json!({ "patch": [row, column] }),
    };
    Ok(json!({
        "picture": path,
        "rows": maps.grid.rows,
        "columns": maps.grid.columns,
        "query": query,
        "query_shares": maps.shares,
        "layers": layers,
        "rollout": maps.rollout().ok(),
    }))
}
