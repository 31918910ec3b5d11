//! Input: texts and paths of pictures from arguments, standard input or a file.

use std::fs::{self, File};
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tealight_train::data::whole_text;

use super::output::log;

/// The most bytes of standard input.
const MAX_INPUT: u64 = 1 << 30;

/// The given texts, with `-` replaced by the non-empty lines of standard input, followed by the non-empty lines
/// of `file`. No text at all is an error.
pub(crate) fn texts(arguments: &[String], file: Option<&Path>) -> Result<Vec<String>> {
    Ok(placed_texts(arguments, file)?.all)
}

/// [`texts`], with the line that each was read from.
pub(crate) fn placed_texts<'a>(arguments: &[String], file: Option<&'a Path>) -> Result<Texts<'a>> {
    let mut texts = Texts { all: Vec::new(), places: Vec::new() };
    for text in arguments {
        if text == "-" {
            texts.add_lines(&read_stdin()?, Place::StandardInput);
        } else {
            texts.add(text.clone(), Place::Argument);
        }
    }
    if let Some(path) = file {
        let (text, encoding) = whole_text(path)?;
        if let Some(note) = encoding.note() {
            log(&format!("`{}`: {note}", path.display()));
        }
        texts.add_lines(&text, |line| Place::File(path, line));
    }
    if texts.all.is_empty() {
        bail!("no text given, or only blank lines");
    }
    Ok(texts)
}

/// Texts, and where they are from.
pub(crate) struct Texts<'a> {
    pub(crate) all: Vec<String>,
    /// That of each.
    places: Vec<Place<'a>>,
}

/// Where a text is from; lines are counted from 1.
#[derive(Clone, Copy)]
enum Place<'a> {
    Argument,
    StandardInput(usize),
    File(&'a Path, usize),
}

impl<'a> Texts<'a> {
    fn add(&mut self, text: String, place: Place<'a>) {
        self.all.push(text);
        self.places.push(place);
    }

    fn add_lines(&mut self, text: &str, place: impl Fn(usize) -> Place<'a>) {
        for (at, line) in text.lines().enumerate() {
            if !line.trim().is_empty() {
                self.add(line.to_owned(), place(at + 1));
            }
        }
    }

    /// Adds to an error about one of the texts the line that the text was read from.
    pub(crate) fn at_its_place(&self, error: tealight_train::Error) -> anyhow::Error {
        let place = match &error {
            tealight_train::Error::Text { text, .. } => {
                let at = self.all.iter().position(|one| one == text);
                at.and_then(|at| self.places[at].line())
            }
            _ => None,
        };
        let error = anyhow::Error::from(error);
        match place {
            Some(place) => error.context(place),
            None => error,
        }
    }
}

impl Place<'_> {
    /// The line, for errors; `None` for an argument.
    fn line(self) -> Option<String> {
        match self {
            Self::Argument => None,
            Self::StandardInput(line) => Some(format!("standard input, line {line}")),
            Self::File(path, line) => Some(format!("`{}`, line {line}", path.display())),
        }
    }
}

/// Paths of pictures.
pub(crate) struct Pictures {
    pub(crate) paths: Vec<PathBuf>,
    /// Whether the only argument is the path of a picture: the output is of this one, not a list.
    pub(crate) is_one: bool,
}

/// The given files, the pictures in given folders, and those that the lines of standard input (`-`) and of `file` name.
/// `reader` is who reads them, for errors.
pub(crate) fn pictures(
    arguments: &[String],
    file: Option<&Path>,
    reader: &str,
) -> Result<Pictures> {
    let mut paths = Vec::new();
    for given in texts(arguments, file)? {
        let path = PathBuf::from(&given);
        if path.is_dir() {
            let first = paths.len();
            pictures_below(&path, &mut paths)?;
            if paths.len() == first {
                bail!("`{given}` has no file that ends in .png, .jpg or .jpeg");
            }
        } else if path.is_file() {
            paths.push(path);
        } else {
            bail!("`{given}` is no file: {reader}, reads PNG and JPEG");
        }
    }
    let is_one = match arguments {
        [only] => file.is_none() && only != "-" && !Path::new(only).is_dir(),
        _ => false,
    };
    Ok(Pictures { paths, is_one })
}

/// Adds the pictures in a folder and the folders in it, by name.
fn pictures_below(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let context = || format!("cannot read the folder `{}`", folder.display());
    let entries = fs::read_dir(folder).with_context(context)?;
    let found = entries.map(|entry| Ok(entry.with_context(context)?.path()));
    let mut found = found.collect::<Result<Vec<_>>>()?;
    found.sort();
    for path in found {
        if path.is_dir() {
            pictures_below(&path, paths)?;
        } else if path.extension().is_some_and(|ending| {
            ["png", "jpg", "jpeg"].iter().any(|known| ending.eq_ignore_ascii_case(known))
        }) {
            paths.push(path);
        }
    }
    Ok(())
}

/// Whether this is the path of a file that begins as a PNG or a JPEG does.
pub(crate) fn is_picture(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && (start == *b"\x89PNG" || start.starts_with(&[0xFF, 0xD8]))
}

/// All of standard input, at most 1 GiB.
pub(crate) fn read_stdin() -> Result<String> {
    read_up_to(MAX_INPUT, stdin().lock())
}

fn read_up_to(limit: u64, input: impl Read) -> Result<String> {
    let mut text = String::new();
    let n =
        input.take(limit + 1).read_to_string(&mut text).context("cannot read standard input")?;
    if n as u64 > limit {
        bail!("standard input has more than {limit} bytes");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_an_end_is_refused() {
        assert_eq!(read_up_to(5, &b"12345"[..]).unwrap(), "12345");
        let endless = read_up_to(5, std::io::repeat(b'y')).unwrap_err().to_string();
        assert_eq!(endless, "standard input has more than 5 bytes");
    }
}
