//! Sequences from a text file: one on each line; blank lines and `#` comments are skipped.

use super::day::parse_line;
use crate::error::{Error, Result};
use crate::storage::files;
use std::path::Path;

/// Reads the sequences of a file. A `#` begins a comment.
///
/// # Errors
/// With its place: a sequence of fewer than `min_days`, a character that does not denote weather, a file
/// without sequences.
pub fn read(path: &Path, min_days: usize) -> Result<Vec<Vec<u8>>> {
    let bytes = files::read_named(path).map_err(|error| {
        let message = format!("`{}` cannot be read: {error}", path.display());
        Error::config(["task.source.path"], message)
    })?;
    let text = files::to_text(path, bytes)?;
    let refused = |fault: String| Error::Weather(format!("`{}`{fault}", path.display()));
    let mut sequences = Vec::new();
    for (at, text) in text.trim_start_matches('\u{FEFF}').lines().enumerate() {
        let text = text.split('#').next().unwrap_or_default();
        if text.trim().is_empty() {
            continue;
        }
        let line = at + 1;
        let days = parse_line(text, line).map_err(|fault| refused(format!(", {fault}")))?;
        if days.len() < min_days {
            let (n_days, rule) = (days.len(), "(the window and the next day)");
            let needed = format!("a sequence needs at least {min_days} {rule}");
            return Err(refused(format!(", line {line}: {n_days} days, but {needed}")));
        }
        sequences.push(days);
    }
    if sequences.is_empty() {
        let needed = format!("a line of at least {min_days} days (the window and the next day)");
        return Err(refused(format!(" has no sequence: {needed} is needed")));
    }
    Ok(sequences)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read_text(text: &str) -> Result<Vec<Vec<u8>>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        read(file.path(), 3).map_err(|error| {
            let path = file.path().display().to_string();
            error.to_string().replace(&path, "days.txt")
        })
    }

    #[test]
    fn blank_lines_and_comments_are_skipped() {
        let text = "\u{FEFF}# three days\n🌧️☁️☀️\n\n  \t\nS S S S # and four\r\n";
        assert_eq!(read_text(text).unwrap(), [vec![0, 1, 2], vec![2; 4]]);
    }

    #[test]
    fn a_message_that_says_it_all_has_no_source_to_say_it_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "RC?").unwrap();
        let error = read(file.path(), 3).unwrap_err();
        assert!(error.to_string().contains("column 3: `?` is neither"), "{error}");
        assert!(std::error::Error::source(&error).is_none());
    }

    #[test]
    fn errors_name_the_file_the_line_and_the_rule() {
        assert_eq!(
            read_text("RRR\n\n☀️☁️\n").unwrap_err(),
            "`days.txt`, line 3: 2 days, but a sequence needs at least 3 (the window and the next day)"
        );
        let error = read_text("# four\nRRR\nRC?").unwrap_err();
        assert!(error.starts_with("`days.txt`, line 3, column 3: `?` is neither"), "{error}");
        for empty in ["", "\n# nothing\n"] {
            let error = read_text(empty).unwrap_err();
            assert!(error.starts_with("`days.txt` has no sequence"), "{error}");
        }
        let missing = read(Path::new("/no/such/days.txt"), 3).unwrap_err().to_string();
        assert!(missing.starts_with("`/no/such/days.txt` cannot be read"), "{missing}");
    }
}
