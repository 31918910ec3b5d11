//! Pairs of a source and a target, for sequence to sequence.

use std::collections::BTreeSet;
use std::mem;
use std::path::Path;

use super::{DATA, refused};
use crate::data::compressed;
use crate::data::table::Broken;
use crate::data::text::corpus::Origin;
use crate::error::Result;

/// Pairs from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    /// The number of pairs.
    pub n: usize,
    /// The number of different sources.
    pub n_sources: usize,
    /// The most characters of a source or target.
    pub most_characters: usize,
    /// The most words of a source or target.
    pub most_words: usize,
    /// The number of different words.
    pub n_words: usize,
}

/// Names of the columns of sources and targets.
const HEADINGS: [&str; 12] = [
    "source",
    "target",
    "src",
    "tgt",
    "trg",
    "input",
    "output",
    "text",
    "translation",
    "sentence1",
    "sentence2",
    "label",
];

/// Whether both sides of a first line are names of columns, without regard to case: it is no pair then.
pub(crate) fn is_heading(source: &str, target: &str) -> bool {
    let is_name = |side: &str| HEADINGS.iter().any(|name| side.trim().eq_ignore_ascii_case(name));
    is_name(source) && is_name(target) && source != target
}

/// Looks into a file with a source, a tab and a target on each line.
pub fn pairs(path: &Path) -> Result<Pairs> {
    let text = compressed::decoded(DATA, path)?.text;
    let mut found = Pairs { n: 0, n_sources: 0, most_characters: 0, most_words: 0, n_words: 0 };
    let mut broken = Broken::new(path.into());
    let mut words = BTreeSet::new();
    let (mut sources, mut is_first) = (BTreeSet::new(), true);
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let sides: Vec<&str> = line.split('\t').collect();
        let sides = <[&str; 2]>::try_from(sides);
        let sides = sides.map_err(|_| "a line is a source, a tab and a target".to_owned());
        let origin = Origin { path: path.into(), line: at as u64 + 1 };
        let is_first = mem::take(&mut is_first);
        let Some([source, target]) = broken.row(&origin, sides) else { continue };
        if is_first && is_heading(source, target) {
            continue;
        }
        found.n += 1;
        sources.insert(source.trim());
        for side in [source.trim(), target.trim()] {
            found.most_characters = found.most_characters.max(side.chars().count());
            found.most_words = found.most_words.max(side.split_whitespace().count());
            words.extend(side.split_whitespace());
        }
    }
    broken.check("")?;
    (found.n_words, found.n_sources) = (words.len(), sources.len());
    if found.n_sources < 2 {
        return Err(refused(path, "has fewer than two different sources"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pairs_are_counted_and_other_lines_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tsv");
        fs::write(&path, "one two\t12\n\nthree\t3\n").unwrap();
        let expected = Pairs { n: 2, n_sources: 2, most_characters: 7, most_words: 2, n_words: 5 };
        assert_eq!(pairs(&path).unwrap(), expected);
        fs::write(&path, "Source\tTarget\none two\t12\nthree\t3\n").unwrap();
        assert_eq!(pairs(&path).unwrap(), expected);
        fs::write(&path, "a\tb\nc\n").unwrap();
        assert!(pairs(&path).unwrap_err().to_string().contains("line 2"));
    }
}
