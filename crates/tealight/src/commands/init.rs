//! `tealight init`: writes a configuration to start from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::storage::files::replace;
use tealight_train::task::TaskConfig;

use crate::args::init::Init;
use crate::runs::config::{InitModels, LoadedConfig};
use crate::runs::origin::STDIN;
use crate::shipped;
use crate::starter;
use crate::terminal::escape::shell_path;
use crate::terminal::failure::at_its_place;
use crate::terminal::output::{log, print, print_json, warn};

pub(crate) fn run(args: &Init) -> Result<()> {
    let Some(what) = &args.what else {
        return if args.json { print_json(&list_as_json()) } else { print(&list()) };
    };
    let text = text(what, args)?;
    if args.output.as_deref() == Some(Path::new(STDIN)) {
        return print(&text);
    }
    let last = Path::new(what).file_stem().unwrap_or_default();
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(last).with_extension("toml"));
    if path.exists() && !args.force {
        bail!(
            "`{}` exists: `-o` writes another file, and `--force` overwrites this one",
            path.display()
        );
    }
    replace(&path, text.as_bytes())?;
    log(&format!("wrote {}; its comments explain the settings", path.display()));
    print(&format!("tealight train {}\n", shell_path(&path)))
}

/// The shipped configurations, one on each line.
fn list() -> String {
    let width = shipped::ALL.iter().map(|shipped| shipped.name.len()).max().unwrap_or(0);
    let lines = shipped::ALL
        .iter()
        .map(|shipped| format!("{:<width$}  {}\n", shipped.name, shipped.summary()));
    lines.collect()
}

fn list_as_json() -> Value {
    let shipped = shipped::ALL.iter();
    let object = shipped.map(|one| json!({ "name": one.name, "summary": one.summary() }));
    json!({ "configurations": object.collect::<Vec<_>>() })
}

/// The text of the configuration, which is read and checked.
fn text(what: &str, args: &Init) -> Result<String> {
    let (data, from) = (args.data.as_deref(), args.from.as_deref());
    let is_task = TaskConfig::KINDS.iter().any(|kind| kind.name == what);
    let text = match (shipped::find(Path::new(what)), data) {
        _ if is_task => starter::text(what, data, from, &args.columns)?,
        (Some(shipped), None) => shipped.copy().to_owned(),
        (Some(shipped), Some(_)) => {
            let task = shipped.name.split('/').next().unwrap_or_default();
            bail!(
                "`{}` has data of its own; `tealight init {task} --data …` writes a configuration for yours",
                shipped.name
            );
        }
        (None, _) => return Err(unknown(what)),
    };
    let source = ConfigSource::parse(Path::new("<init>"), &text, &[])?;
    let config: RunConfig = match from {
        None => source.deserialize()?,
        Some(_) => LoadedConfig::from_source(source.clone(), &mut InitModels::new())?.config,
    };
    let checked = config.validate().and_then(|()| config.task.settings().validate());
    checked
        .map_err(|error| at_its_place(error, &source))
        .context("this is a bug of `tealight init`")?;
    // The file is a proposal: the data can be mended, or another column chosen.
    if data.is_some() {
        match config.task.settings().check_data() {
            Ok(remarks) => remarks.iter().for_each(|remark| log(remark)),
            Err(error) => warn(&format!("`tealight train` will refuse the data: {error}")),
        }
    }
    Ok(text)
}

fn unknown(what: &str) -> anyhow::Error {
    let tasks: Vec<_> = TaskConfig::KINDS.iter().map(|kind| kind.name).collect();
    let near: Vec<_> =
        shipped::near(Path::new(what)).iter().map(|name| format!("`{name}`")).collect();
    let near = match near.as_slice() {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(" or ")),
    };
    anyhow::anyhow!(
        "`{what}` is neither a task ({}) nor a shipped configuration{near}; `tealight init --list` lists the latter",
        tasks.join(", ")
    )
}
