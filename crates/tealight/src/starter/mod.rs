//! Configurations to start from: what a user's data hold and what the machine can do, as a commented TOML file.

mod images;
mod labelled;
mod language;
mod machine;
mod pairs;
mod weather;

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shipped;

/// The text of a configuration of a task. Tasks that generate their own data need none.
pub(crate) fn text(task: &str, data: Option<&Path>) -> Result<String> {
    let Some(data) = data else { return generated(task) };
    // Copied into the file as it was typed.
    let path = data
        .to_str()
        .with_context(|| format!("`{}` is not UTF-8, as a configuration is", data.display()))?;
    if !data.exists() {
        bail!("`{path}` does not exist");
    }
    let path = quoted(path);
    match task {
        "weather" => weather::text(data, &path),
        "seq2seq" => pairs::text(data, &path),
        "masked_lm" => language::text(language::Objective::Masked, data, &path),
        "causal_lm" => language::text(language::Objective::Causal, data, &path),
        "classify" => labelled::text(data, &path),
        "images" => images::text(data, &path),
        _ => bail!("the task `{task}` generates its data: leave out `--data`"),
    }
}

/// A shipped configuration of a task whose data are generated.
fn generated(task: &str) -> Result<String> {
    let name = match task {
        "weather" => "weather/dotmod",
        "seq2seq" => "seq2seq/dates",
        "listops" => "listops/small",
        "masked_lm" => "masked_lm/diary",
        "images" => "images/shapes",
        _ => bail!("the task `{task}` needs data: `tealight init {task} --data FILE`"),
    };
    let shipped = shipped::find(Path::new(name)).expect("invariant: these are shipped");
    Ok(shipped.copy().to_owned())
}

/// A string as TOML writes it; JSON does it in the same way.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
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

/// Steps between evaluations: ten of them.
fn tenth(steps: u64) -> u64 {
    (steps / 10).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_paths_are_quoted() {
        let shown = [1.24e9, 1.24e6, 3.4e5, 17.].map(about);
        assert_eq!(shown, ["1.2 G", "1.2 M", "340 k", "17"]);
        assert_eq!(quoted("a \"b\"\\c"), r#""a \"b\"\\c""#);
    }
}
