//! `tealight attend MODEL SEQUENCE`: the attention maps of a text, or of days.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use candle_core::Device;
use serde_json::json;
use tealight_train::pretrained::Pretrained;
use tealight_train::task::{Attends, AttentionMap, RegisteredTask, SequenceMaps, TaskVisitor};

use crate::args::inspect::Attend;
use crate::charts::attention::{as_json, drawings, matrices, mean};
use crate::charts::files::save;
use crate::runs::load::Run;
use crate::terminal::input::is_picture;
use crate::terminal::output::{print, print_json, print_paths};

pub(super) fn of_run(args: &Attend, run: &Run) -> Result<()> {
    refuse_picture(args)?;
    let output = run.directory.path().join("attention");
    write(args, maps_of_run(args, run)?, run.loaded.config.model.n_heads, Some(output))
}

pub(super) fn of_folder(args: &Attend, model: &Pretrained, device: &Device) -> Result<()> {
    refuse_picture(args)?;
    write(args, of_text(model, &args.sequence, device)?, model.model.n_heads, None)
}

/// Refuses what only a classifier of pictures understands.
fn refuse_picture(args: &Attend) -> Result<()> {
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

/// Writes the maps as asked for; `output` is the folder to draw into without `--output`.
fn write(
    args: &Attend,
    SequenceMaps { sequence, maps }: SequenceMaps,
    n_heads: usize,
    output: Option<PathBuf>,
) -> Result<()> {
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

fn maps_of_run(args: &Attend, run: &Run) -> Result<SequenceMaps> {
    match run.loaded.config.task.settings().attends() {
        Attends::Task => run.with_task(Attention { run, sequence: &args.sequence }),
        Attends::Pretrained => {
            let model = Pretrained::open(&args.model.path, args.model.weights.checkpoint)?;
            of_text(&model, &args.sequence, &run.device)
        }
        Attends::Never(reason) => bail!(
            "`tealight attend` does not support the task \"{}\" of `{}`: {reason}",
            run.loaded.config.task.kind(),
            run.directory.path().display()
        ),
    }
}

/// The attention maps of a sequence by the task of a run.
struct Attention<'a> {
    run: &'a Run,
    sequence: &'a str,
}

impl TaskVisitor for Attention<'_> {
    type Output = Result<SequenceMaps>;

    fn visit<T: RegisteredTask>(self, task: T) -> Result<SequenceMaps> {
        let session = self.run.load(task)?;
        Ok(session.task.attend(&session.eval_model, self.sequence)?)
    }
}

/// The attention maps of a text by a model with a tokenizer.
fn of_text(model: &Pretrained, text: &str, device: &Device) -> Result<SequenceMaps> {
    let maps = model.attention_maps(text, device)?;
    Ok(SequenceMaps { sequence: json!({ "text": text }), maps })
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
