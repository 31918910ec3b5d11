//! Input: texts from arguments, standard input or a file.

use std::io::{Read, stdin};
use std::path::Path;

use anyhow::{Context, Result, bail};
use tealight_train::storage::files::read_text;

/// The given texts, with `-` replaced by the non-empty lines of standard input, followed by the non-empty lines
/// of `file`. No text at all is an error.
pub(crate) fn texts(arguments: &[String], file: Option<&Path>) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for text in arguments {
        if text == "-" {
            texts.extend(lines(&read_stdin()?));
        } else {
            texts.push(text.clone());
        }
    }
    if let Some(path) = file {
        texts.extend(lines(&read_text(path)?));
    }
    if texts.is_empty() {
        bail!("no text given, or only blank lines");
    }
    Ok(texts)
}

/// All of standard input.
pub(crate) fn read_stdin() -> Result<String> {
    let mut input = String::new();
    stdin().read_to_string(&mut input).context("cannot read standard input")?;
    Ok(input)
}

fn lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned)
}
