//! What a shell completes arguments with beyond the names of options: settings, runs and shipped configurations.
//!
//! The script of `tealight completions` starts the program with [`VARIABLE`] at each completion.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::CompleteEnv;
use tealight_model::describe::{Shape, plain};
use tealight_train::config::reference::{self, Item};

use super::Arguments;
use crate::shipped;

/// The environment variable by which a shell asks for completions.
pub(crate) const VARIABLE: &str = "TEALIGHT_COMPLETE";

/// Answers a shell that asks for completions and ends the process; returns if none does.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Arguments::command).var(VARIABLE).complete();
}

/// `explain`: the keys of all settings.
pub(crate) fn key(current: &OsStr) -> Vec<CompletionCandidate> {
    current.to_str().map_or_else(Vec::new, |current| keys(current, ""))
}

/// `--set`: the keys of all settings, and after `=` the values of one.
pub(crate) fn setting(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    match current.split_once('=') {
        None => keys(current, "="),
        Some((key, value)) => values(key)
            .into_iter()
            .filter(|(known, _)| known.starts_with(value))
            .map(|(known, doc)| candidate(&format!("{key}={known}"), &doc))
            .collect(),
    }
}

/// The keys that begin with `current`, each with `end` behind it.
fn keys(current: &str, end: &str) -> Vec<CompletionCandidate> {
    let keys = reference::keys();
    let keys = keys.iter().filter(|key| key.starts_with(current));
    keys.filter_map(|key| Some((key, reference::find(key).into_iter().next()?)))
        .map(|(key, entry)| candidate(&format!("{key}{end}"), &meaning(&entry.item)))
        .collect()
}

fn meaning(item: &Item) -> String {
    match item {
        Item::Setting(field) => field.meaning(),
        Item::Kind(kind) => plain(kind.doc),
    }
}

/// The values of a setting that has a list of them, with their meanings.
fn values(key: &str) -> Vec<(String, String)> {
    let entries = reference::find(key);
    let shapes = entries.iter().filter_map(|entry| match &entry.item {
        Item::Setting(field) => Some(&field.shape),
        Item::Kind(_) => None,
    });
    shapes.flat_map(values_of).collect()
}

fn values_of(shape: &Shape) -> Vec<(String, String)> {
    match shape {
        Shape::Boolean => ["true", "false"].map(|word| (word.to_owned(), String::new())).into(),
        Shape::Words(words) => {
            words.iter().map(|word| (word.name.to_owned(), plain(word.summary))).collect()
        }
        Shape::Choice(choice) => {
            choice.kinds.iter().map(|kind| (kind.name.to_owned(), plain(kind.doc))).collect()
        }
        _ => Vec::new(),
    }
}

/// A CONFIG argument: a file, a shipped configuration, or the directory of a run.
pub(crate) fn config(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut candidates = PathCompleter::any().complete(current);
    if let Some(current) = current.to_str() {
        let names = shipped::ALL.iter().filter(|shipped| shipped.name.starts_with(current));
        candidates.extend(names.map(|shipped| candidate(shipped.name, &shipped.summary())));
    }
    candidates.extend(runs(current));
    candidates
}

/// A RUN or MODEL argument: a folder, first of all those of runs.
pub(crate) fn run(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut candidates = runs(current);
    candidates.extend(PathCompleter::dir().complete(current));
    candidates
}

/// The runs in `runs/` whose paths begin with `current`, the one that was written to last first.
fn runs(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let entries = fs::read_dir("runs").into_iter().flatten().flatten();
    let mut runs: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.to_str().is_some_and(|path| path.starts_with(current)))
        .filter_map(|path| Some((changed(&path)?, path)))
        .collect();
    runs.sort();
    let paths = runs.iter().rev().filter_map(|(_, path)| path.to_str());
    paths.map(|path| candidate(path, "a run")).collect()
}

/// When the metrics of a run were written to last; `None` if `path` is no run.
fn changed(path: &Path) -> Option<std::time::SystemTime> {
    fs::metadata(path.join("metrics.jsonl")).ok()?.modified().ok()
}

/// A candidate with the first sentence of its description.
fn candidate(value: &str, description: &str) -> CompletionCandidate {
    let sentence = description.split_inclusive(". ").next().unwrap_or_default().trim();
    let help = (!sentence.is_empty()).then(|| sentence.replace('\n', " ").into());
    CompletionCandidate::new(value).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(current: &str) -> Vec<String> {
        let found = setting(OsStr::new(current));
        found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn settings_are_completed_by_key_then_by_value() {
        assert_eq!(settings("model.n_h"), ["model.n_heads="]);
        assert_eq!(
            settings("training.precision="),
            ["training.precision=f32", "training.precision=tf32", "training.precision=bf16",]
        );
        assert!(settings("model.attention=aft").contains(&"model.attention=aft_local".to_owned()));
        assert_eq!(settings("nothing.of.this"), [""; 0]);
        assert_eq!(settings("seed="), [""; 0]);
    }

    #[test]
    fn shipped_configurations_are_completed() {
        let found = config(OsStr::new("weather/dot"));
        let found: Vec<_> = found.iter().map(|one| one.get_value().to_string_lossy()).collect();
        assert_eq!(found, ["weather/dotmod", "weather/dotmod_5000"]);
    }
}
