//! Texts that a person gives: on the command line, on standard input, in a file.

use std::io::{Read, stdin};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The texts as given, with the lines of standard input in the place of `-`; blank lines are skipped. It
/// is an error if there is no text at all.
pub(crate) fn given(texts: &[String]) -> Result<Vec<String>> {
    given_or_in(texts, None)
}

/// The same, and behind them the lines of a file.
pub(crate) fn given_or_in(texts: &[String], file: Option<&Path>) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for text in texts {
        if text == "-" {
            let mut input = String::new();
            stdin().read_to_string(&mut input).context("cannot read standard input")?;
            all.extend(lines(&input));
        } else {
            all.push(text.clone());
        }
    }
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        all.extend(lines(&text));
    }
    if all.is_empty() {
        bail!("there is no text: none was given, or only blank lines");
    }
    Ok(all)
}

fn lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned)
}
