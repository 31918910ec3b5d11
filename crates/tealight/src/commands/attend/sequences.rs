//! `tealight attend MODEL SEQUENCE`: the attention maps of a text, or of days.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use tealight_train::inference::attention_map::{AttentionMap, SequenceMaps};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::attention_maps::AttentionMaps;

use crate::args::inspect::Attend;
use crate::charts::attention::{as_json, drawings, matrices, mean};
use crate::charts::files::save;
use crate::terminal::input::is_picture;
use crate::terminal::output::{print, print_json, print_paths};

/// `output` is the folder to draw into without `--output`. A run has one; for a model folder it is `None`.
pub(super) fn run(
    args: &Attend,
    pipeline: &AttentionMaps,
    n_heads: usize,
    output: Option<PathBuf>,
) -> Result<()> {
    let SequenceMaps { sequence, maps } = pipeline.answer(&args.sequence)?;
    AttentionMap::check_finite(&maps)?;
    if args.json {
        return print_json(&as_json(sequence, &maps)?);
    }
    if args.text {
        return print(&as_text(&maps)?);
    }
    let Some(output) = args.output.clone().or(output) else {
        bail!("`--output DIR` is required for a model folder");
    };
    print_paths(&save(&output, drawings(&maps, args.maps, n_heads)?)?)
}

/// Refuses what only a classifier of pictures understands.
pub(super) fn refuse_picture(args: &Attend) -> Result<()> {
    let name = args.model.path.display();
    let option = [("--patch", args.patch.is_some()), ("--rollout", args.rollout)];
    if let Some((option, _)) = option.into_iter().find(|(_, is_given)| *is_given) {
        bail!("`{option}` is for pictures, and `{name}` is no classifier of pictures");
    }
    if is_picture(Path::new(&args.sequence)) {
        let picture = &args.sequence;
        bail!("`{picture}` is a picture, and `{name}` is no classifier of pictures");
    }
    Ok(())
}

/// The mean map of each layer in percent.
fn as_text(maps: &[AttentionMap]) -> Result<String> {
    let mut text = String::new();
    for AttentionMap { name, queries, keys, maps } in maps {
        let mean = mean(&matrices(&maps.weights)?);
        writeln!(text, "{name}, mean of {} maps, in percent", maps.weights.dim(1)?)?;
        let heading = keys.iter().map(|key| cell(key)).collect::<String>();
        writeln!(text, "{}{heading}", cell(""))?;
        for (query, row) in queries.iter().zip(mean) {
            write!(text, "{}", cell(query))?;
            row.iter().try_for_each(|value| write!(text, "{:>6.1}", 100. * value))?;
            text.push('\n');
        }
    }
    Ok(text)
}

/// A label padded to six terminal columns; an emoji takes two.
fn cell(name: &str) -> String {
    let columns = if name.is_ascii() { name.len() } else { 2 };
    format!("{}{name}", " ".repeat(6_usize.saturating_sub(columns)))
}
