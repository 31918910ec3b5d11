//! The format of a file, by its name.

use std::path::Path;

use crate::data::compressed::Compression;

/// Format and compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileKind {
    pub(crate) format: Format,
    pub(crate) compression: Compression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `.txt`
    Text,
    /// `.jsonl`: a JSON object on each line.
    JsonLines,
}

impl FileKind {
    /// `None` for a file that a corpus cannot read.
    pub(crate) fn from_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let (name, compression) = Compression::from_name(&name);
        let (_, ending) = name.rsplit_once('.')?;
        let format = match ending {
            "txt" => Format::Text,
            "jsonl" => Format::JsonLines,
            _ => return None,
        };
        Some(Self { format, compression })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_say_what_is_in_a_file() {
        let kind = |name| {
            FileKind::from_path(Path::new(name))
                .map(|FileKind { format, compression }| (format, compression))
        };
        assert_eq!(kind("a/b.txt"), Some((Format::Text, Compression::None)));
        assert_eq!(kind("B.TXT.GZ"), Some((Format::Text, Compression::Gzip)));
        assert_eq!(kind("b.jsonl.zst"), Some((Format::JsonLines, Compression::Zstandard)));
        for name in ["b.gz", "txt", "b.json", "b.txt.bz2", ".."] {
            assert_eq!(kind(name), None, "{name}");
        }
    }
}
