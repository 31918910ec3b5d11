//! Configurations to start from: what a user's data hold and what the machine can do, as a commented TOML file.

mod base;
mod blocks;
mod ending;
mod images;
mod labelled;
mod language;
mod machine;
mod pairs;
mod ranking;
mod sentences;
mod tags;
mod weather;

use std::path::Path;

use anyhow::{Context, Result, bail};
use tealight_train::data::survey::Columns;

use crate::args::shared::TextColumns;
use crate::shipped;
use crate::terminal::escape::quoted;
use base::Base;

/// Data that a user names.
struct UserData<'a> {
    file: &'a Path,
    /// The path as the configuration has it, in quotes.
    path: String,
    /// The columns that the user names, of texts with labels.
    columns: Columns,
    /// Whether rows that are no text with its label are left out.
    skips_broken: bool,
}

/// Writes the configuration of a new model for a user's data.
type New = fn(&UserData<'_>) -> Result<String>;
/// The same for a trained model that learns further.
type FromBase = fn(&UserData<'_>, &Base) -> Result<String>;

/// The configurations of a task.
struct Starter {
    new: New,
    /// `None` if no model of this task learns further.
    from_base: Option<FromBase>,
}

/// The text of a configuration of a task, of a new model or of one that starts `from` a trained one. Tasks that generate
/// their own data need none.
pub(crate) fn text(
    task: &str,
    data: Option<&Path>,
    from: Option<&Path>,
    reading: &TextColumns,
) -> Result<String> {
    let Some(file) = data else { return generated(task) };
    // Copied into the file as it was typed.
    let path = file
        .to_str()
        .with_context(|| format!("`{}` is not UTF-8, as a configuration is", file.display()))?;
    if !file.exists() {
        bail!("`{path}` does not exist");
    }
    let (columns, skips_broken) = (reading.columns(), reading.skip_broken);
    if (columns != Columns::default() || skips_broken)
        && !["classify", "embed", "rerank"].contains(&task)
    {
        bail!(
            "`--text`, `--text-pair`, `--label` and `--skip-broken` are for tables of texts: for `init classify`, \
             `init embed` and `init rerank`"
        );
    }
    let data = UserData { file, path: quoted(path), columns, skips_broken };
    let Some(starter) = starter(task) else {
        bail!("the task `{task}` generates its data: leave out `--data`");
    };
    let text = match (from, starter.from_base) {
        (None, _) => (starter.new)(&data)?,
        (Some(from), Some(write)) => write(&data, &Base::open(from)?)?,
        (Some(_), None) => {
            bail!("the task `{task}` starts from no trained model: leave out `--from`")
        }
    };
    Ok(text.lines().map(aligned).collect())
}

/// `None` for a task that generates its data.
fn starter(task: &str) -> Option<Starter> {
    let starter = match task {
        "weather" => Starter { new: weather::text, from_base: None },
        "seq2seq" => Starter { new: pairs::text, from_base: None },
        "masked_lm" => Starter { new: language::masked, from_base: Some(language::masked_from) },
        "causal_lm" => Starter { new: language::causal, from_base: Some(language::causal_from) },
        "classify" => Starter { new: labelled::text, from_base: Some(labelled::from_base) },
        "embed" => Starter { new: sentences::text, from_base: Some(sentences::from_base) },
        "rerank" => Starter { new: ranking::text, from_base: Some(ranking::from_base) },
        "tag" => Starter { new: tags::text, from_base: Some(tags::from_base) },
        "images" => Starter { new: images::text, from_base: Some(images::from_base) },
        _ => return None,
    };
    Some(starter)
}

/// What every configuration begins with: a line on `what` it is for, and the seed.
fn beginning(what: &str) -> String {
    format!(
        "\
# {what}
# `tealight explain KEY` explains each setting; `tealight doctor FILE` checks this file.

seed = 17                       # every random number is a function of this seed
"
    )
}

/// A value and the comment behind it, if there is one.
fn commented(value: &str, comment: &str) -> String {
    if comment.is_empty() { value.to_owned() } else { format!("{value} # {comment}") }
}

/// A line of the file with its comment, if it follows a value, in a column of its own.
fn aligned(line: &str) -> String {
    const COLUMN: usize = 31;
    match comment(line).map(|at| line.split_at(at)) {
        Some((value, comment)) if !value.trim().is_empty() => {
            format!("{:<COLUMN$} {comment}\n", value.trim_end())
        }
        _ => format!("{line}\n"),
    }
}

/// Where the comment of a line begins: at a `#` outside of strings, which have escapes as in JSON.
fn comment(line: &str) -> Option<usize> {
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if in_string => is_escaped = true,
            '"' => in_string = !in_string,
            '#' if !in_string => return Some(at),
            _ => {}
        }
    }
    None
}

/// A shipped configuration of a task whose data are generated.
fn generated(task: &str) -> Result<String> {
    let Some(name) = example(task) else {
        bail!("the task `{task}` needs data: `tealight init {task} --data FILE`");
    };
    let shipped = shipped::find(Path::new(name)).expect("invariant: these are shipped");
    Ok(shipped.copy().to_owned())
}

/// The name of a shipped configuration whose data are generated; `None` for a task that needs data.
fn example(task: &str) -> Option<&'static str> {
    match task {
        "weather" => Some("weather/dotmod"),
        "seq2seq" => Some("seq2seq/dates"),
        "listops" => Some("listops/small"),
        "masked_lm" => Some("masked_lm/diary"),
        "embed" => Some("embed/paraphrases"),
        "rerank" => Some("rerank/paraphrases"),
        "tag" => Some("tag/visits"),
        "images" => Some("images/shapes"),
        "recall" => Some("atlas/recall"),
        "markov_icl" => Some("atlas/markov_1"),
        "state_tracking" => Some("atlas/parity"),
        "copying" => Some("atlas/copy"),
        _ => None,
    }
}

/// `1.2 M`, `340 k`, `17`
fn about(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.1} G", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e3 => format!("{:.0} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// A tenth of the steps: those between evaluations, or those of a warm-up.
fn tenth(steps: u64) -> u64 {
    (steps / 10).max(1)
}

#[cfg(test)]
mod tests {
    use tealight_train::task::TaskConfig;

    use super::*;

    /// A new task is added to [`starter`] and to [`example`], or here.
    #[test]
    fn each_task_is_started_or_known_to_be_left_out() {
        const NEED_NO_DATA: [&str; 5] =
            ["listops", "recall", "markov_icl", "state_tracking", "copying"];
        const NEED_DATA: [&str; 2] = ["causal_lm", "classify"];
        for kind in TaskConfig::KINDS {
            let name = kind.name;
            assert_ne!(starter(name).is_some(), NEED_NO_DATA.contains(&name), "{name}");
            assert_ne!(example(name).is_some(), NEED_DATA.contains(&name), "{name}");
        }
    }

    #[test]
    fn comments_behind_values_stand_in_one_column() {
        assert_eq!(aligned("a = 1 # b"), format!("a = 1{}# b\n", " ".repeat(27)));
        let long = format!("path = \"{}\"", "p".repeat(40));
        assert_eq!(aligned(&format!("{long}     # b")), format!("{long} # b\n"));
        for whole in ["# of the next table", "a = \"#1\\\"  # 2\"", "[model]", ""] {
            assert_eq!(aligned(whole), format!("{whole}\n"));
        }
    }

    #[test]
    fn numbers_are_short() {
        let shown = [1.24e9, 1.24e6, 3.4e5, 17.].map(about);
        assert_eq!(shown, ["1.2 G", "1.2 M", "340 k", "17"]);
    }
}
