//! A folder with a folder for each class, which holds texts: `pos/1.txt`, as aclImdb has them.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Cells, Each, Rows, Source, ending};
use crate::data::compressed::{self, MAX_WHOLE};
use crate::data::text::corpus::Origin;
use crate::error::{Error, Result};
use crate::storage::encoding::{Decoded, Encoding};

struct Folders {
    heading: [String; 2],
    files: Vec<File>,
    /// That files are not in UTF-8.
    note: Option<String>,
}

struct File {
    path: PathBuf,
    class: String,
    /// Or what is wrong with it.
    text: Result<String, String>,
}

/// Reads the `.txt` files of all class folders, by name: at most 2 GiB of text.
pub(super) fn open(key: &str, path: &Path) -> Result<Box<dyn Rows>> {
    within(MAX_WHOLE, key, path)
}

fn within(limit: u64, key: &str, path: &Path) -> Result<Box<dyn Rows>> {
    let mut n_bytes = 0;
    let (mut files, mut inner, mut others) = (Vec::new(), None, Vec::new());
    for folder in entries(path)?.into_iter().filter(|path| path.is_dir()) {
        let class = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for file in entries(&folder)? {
            if file.is_dir() {
                inner.get_or_insert(folder.clone());
            } else if ending(&file) == "txt" {
                let read = read(&file);
                n_bytes += read.as_ref().map_or(0, |(text, _)| text.len() as u64);
                if n_bytes > limit {
                    let message = format!(
                        "`{}` has more than {} MiB of text in its class folders",
                        path.display(),
                        limit >> 20
                    );
                    return Err(Error::config([key], message));
                }
                let encoding = read.as_ref().ok().and_then(|(_, encoding)| encoding.note());
                others.extend(encoding.map(|note| format!("`{}`: {note}", file.display())));
                let text = read.map(|(text, _)| text);
                files.push(File { path: file, class: class.clone(), text });
            }
        }
    }
    let rule = match inner {
        // As `aclImdb`, with `train/pos`: texts beside the class folders are not of a class.
        Some(inner) => {
            format!("has folders in `{}`, which may be the one that is meant", inner.display())
        }
        None if files.is_empty() => "has no class folders of .txt files, as `pos/1.txt`".to_owned(),
        None => String::new(),
    };
    if !rule.is_empty() {
        return Err(Error::config([key], format!("`{}` {rule}", path.display())));
    }
    let note = others.first().map(|first| {
        format!("{} of {} texts are not in UTF-8, such as {first}", others.len(), files.len())
    });
    Ok(Box::new(Folders { heading: ["text", "label"].map(str::to_owned), files, note }))
}

/// The text of a file without white space around it, and its encoding.
fn read(path: &Path) -> Result<(String, Encoding), String> {
    let decoded = Decoded::new(compressed::whole(path)?);
    let decoded = decoded.map_err(|what| format!("this is not text: {what}"))?;
    match decoded.faults.into_values().next() {
        Some(fault) => Err(fault),
        None => Ok((decoded.text.trim().to_owned(), decoded.encoding)),
    }
}

/// What is in a folder and is not hidden, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            entries.push(entry.path());
        }
    }
    entries.sort_unstable();
    Ok(entries)
}

impl Rows for Folders {
    fn heading(&self) -> Option<&[String]> {
        Some(&self.heading)
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn each(&self, _: &Source, each: &mut Each<'_>) -> Result<()> {
        for File { path, class, text } in &self.files {
            let cells = text.as_ref().map(|text| [text, class].map(|cell| Cow::Borrowed(&**cell)));
            let row = match &cells {
                Ok(cells) => Ok(Cells::Written { names: &self.heading, cells }),
                Err(rule) => Err((*rule).clone()),
            };
            each(Origin { path: path.as_path().into(), line: 1 }, row)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Table};
    use super::*;
    use crate::data::compressed::tests::gzip;

    #[test]
    fn the_folder_of_a_text_is_its_class() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join("train").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        write("pos/1.txt", b"good\n");
        write("neg/2.txt.gz", &gzip(b"bad"));
        write("neg/3.txt", b"\x7FELF");
        write("urls.txt", b"not in a class folder");
        let mut rows = Vec::new();
        let table = Table::open("--data", &folder.path().join("train")).unwrap();
        let read = table.each(|origin, row| {
            let name = origin.path.file_name().unwrap().to_string_lossy().into_owned();
            let cell = |cells: Cells<'_>, name| match cells.get(name) {
                Some(Cell::Written(text)) => text.to_owned(),
                other => panic!("{other:?}"),
            };
            rows.push((name, row.map(|cells| [cell(cells, "text"), cell(cells, "label")])));
            Ok(())
        });
        read.unwrap();
        assert_eq!(rows[0], ("2.txt.gz".to_owned(), Ok(["bad", "neg"].map(str::to_owned))));
        assert!(rows[1].1.as_ref().is_err_and(|rule| rule.contains("an ELF program")), "{rows:?}");
        assert_eq!(rows[2], ("1.txt".to_owned(), Ok(["good", "pos"].map(str::to_owned))));
        let train = folder.path().join("train");
        assert!(within(12, "--data", &train).is_ok());
        assert!(
            within(6, "--data", &train)
                .is_err_and(|error| error.to_string().contains("MiB of text"))
        );
        let error = Table::open("--data", folder.path()).err().unwrap().to_string();
        assert!(error.ends_with("train`, which may be the one that is meant"), "{error}");
    }
}
