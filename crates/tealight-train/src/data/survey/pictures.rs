//! Pictures with classes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::refused;
use crate::data::compressed::{self, Compression};
use crate::data::images::source::archive::compression;
use crate::data::images::source::layout::is_picture;
use crate::data::images::{Picture, decode};
use crate::error::{Error, Result};
use crate::storage::files;

/// About how many bytes a small picture has in an archive.
const BYTES_OF_PICTURE: f64 = 4000.;
/// The greatest depth of folders.
const MAX_DEPTH: usize = 8;
/// Pictures that are decoded, about.
const LOOKED_AT: usize = 16;
/// Entries of an archive among which these are.
const MAX_ENTRIES: usize = 1000;
/// Bytes of such a picture.
const MAX_BYTES: u64 = 16 << 20;

/// Pictures with classes.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureFiles {
    /// How they are stored.
    pub format: PictureFormat,
    /// About how many there are.
    pub n: f64,
    /// The rows of a picture, where one was seen.
    pub height: Option<usize>,
    /// Whether all pictures that were looked at are grey, whatever the number of their channels.
    pub is_grey: bool,
}

/// How pictures are stored.
#[derive(Clone, Debug, PartialEq)]
pub enum PictureFormat {
    /// Class folders.
    Folders {
        /// The number of classes.
        n_classes: usize,
        /// Whether a folder is held out.
        has_held_out: bool,
    },
    /// An archive of class folders.
    Archive,
    /// Files of the form of MNIST.
    Idx {
        /// The pictures and their labels.
        train: [PathBuf; 2],
        /// The pictures that are held out, and their labels.
        validation: Option<[PathBuf; 2]>,
    },
    /// The binary files of CIFAR.
    Cifar,
}

/// Looks into a folder or an archive of pictures.
pub fn pictures(path: &Path) -> Result<PictureFiles> {
    let metadata = fs::metadata(path).map_err(Error::io("read", path))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    if metadata.is_file() {
        if [".tar", ".tar.gz", ".tgz", ".tar.zst"].iter().any(|ending| name.ends_with(ending)) {
            let n = (metadata.len() as f64 / BYTES_OF_PICTURE).max(1.);
            let seen = in_archive(path, &name).unwrap_or_default();
            return Ok(PictureFiles {
                format: PictureFormat::Archive,
                n,
                height: seen.first().map(|(height, _)| *height),
                is_grey: !seen.is_empty() && seen.iter().all(|(_, is_grey)| *is_grey),
            });
        }
        let rule = "is a file, but no archive of pictures (.tar, .tar.gz, .tar.zst): give a folder";
        return Err(refused(path, rule));
    }
    if ["data_batch_1.bin", "train.bin"].iter().any(|name| path.join(name).is_file()) {
        return Ok(PictureFiles {
            format: PictureFormat::Cifar,
            n: 5e4,
            height: Some(32),
            is_grey: false,
        });
    }
    match idx(path)? {
        Some(found) => Ok(found),
        None => folders(path),
    }
}

/// The heights of the first pictures of an archive, and whether they are grey. A fault of it is told when it is read as a
/// whole.
fn in_archive(path: &Path, name: &str) -> Result<Vec<(usize, bool)>> {
    let (reader, _) = compressed::open(path, compression(name).1)?;
    let mut archive = tar::Archive::new(reader);
    let mut seen = Vec::new();
    for entry in archive.entries().map_err(Error::io("read", path))?.take(MAX_ENTRIES) {
        let entry = entry.map_err(Error::io("read", path))?;
        if !entry.header().entry_type().is_file()
            || !entry.path().is_ok_and(|path| is_picture(&path.to_string_lossy()))
        {
            continue;
        }
        let mut bytes = Vec::new();
        entry.take(MAX_BYTES).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
        seen.extend(decode(&bytes).ok().map(|one| (one.size.height, is_grey(&one))));
        if seen.len() == LOOKED_AT {
            break;
        }
    }
    Ok(seen)
}

/// Files with the names of MNIST's: `train-images-idx3-ubyte`, perhaps with `.gz`.
fn idx(folder: &Path) -> Result<Option<PictureFiles>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    let pair = |begins: &[&str]| {
        let find = |what: &str| {
            let is_it = |name: &&String| {
                begins.iter().any(|begin| name.starts_with(begin)) && name.contains(what)
            };
            names.iter().find(is_it).map(|name| folder.join(name))
        };
        Some([find("images-idx")?, find("labels-idx")?])
    };
    let Some(train) = pair(&["train"]) else { return Ok(None) };
    let lower = train[0].to_string_lossy().to_lowercase();
    let (reader, _) = compressed::open(&train[0], Compression::from_name(&lower).1)?;
    let mut header = Vec::new();
    reader.take(12).read_to_end(&mut header).map_err(Error::io("read", &train[0]))?;
    let number = |at: usize| {
        let bytes = header.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(bytes))
    };
    let (Some(n), Some(height)) = (number(4), number(8)) else {
        return Err(refused(&train[0], "is too short for an IDX file of pictures"));
    };
    let validation = pair(&["t10k", "test", "val"]);
    let format = PictureFormat::Idx { train, validation };
    let height = Some(height as usize);
    Ok(Some(PictureFiles { format, n: f64::from(n), height, is_grey: true }))
}

fn folders(path: &Path) -> Result<PictureFiles> {
    let mut files = Vec::new();
    list(path, MAX_DEPTH, &mut files)?;
    files.sort_unstable();
    let Some(first) = files.first() else {
        let rule =
            "has no class folder with a picture: expected train/<class>/1.jpg or <class>/1.jpg";
        return Err(refused(path, rule));
    };
    let folder_above = |file: &PathBuf, n: usize| {
        let above =
            file.ancestors().nth(n).filter(|above| above.starts_with(path) && *above != path);
        above.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned())
    };
    let classes: BTreeSet<_> = files.iter().filter_map(|file| folder_above(file, 1)).collect();
    let splits: BTreeSet<_> = files.iter().filter_map(|file| folder_above(file, 2)).collect();
    let bytes = files::read(first)?;
    let height = decode(&bytes).ok().map(|picture| picture.size.height);
    let seen = files.iter().step_by(files.len().div_ceil(LOOKED_AT));
    let mut seen = seen.filter_map(|file| decode(&files::read(file).ok()?).ok()).peekable();
    let is_grey = seen.peek().is_some() && seen.all(|picture| is_grey(&picture));
    let has_held_out = ["test", "val", "validation"].iter().any(|name| splits.contains(*name));
    let format = PictureFormat::Folders { n_classes: classes.len(), has_held_out };
    Ok(PictureFiles { format, n: files.len() as f64, height, is_grey })
}

/// Whether all channels of each pixel are equal.
fn is_grey(Picture { size, pixels }: &Picture) -> bool {
    pixels.chunks(size.channels).all(|pixel| pixel.iter().all(|value| *value == pixel[0]))
}

fn list(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::io("read", &path))?;
        if kind.is_dir() && depth > 0 {
            list(&path, depth - 1, files)?;
        } else if kind.is_file() && is_picture(&entry.file_name().to_string_lossy()) {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::images::{PictureSize, encode};

    #[test]
    fn the_form_of_the_files_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(pictures(path).is_err());
        for name in ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png"] {
            let file = path.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "no picture").unwrap();
        }
        let format = PictureFormat::Folders { n_classes: 2, has_held_out: true };
        assert_eq!(
            pictures(path).unwrap(),
            PictureFiles { format, n: 3., height: None, is_grey: false }
        );
        let header = [0, 0, 8, 3, 0, 0, 0, 7, 0, 0, 0, 28];
        fs::write(path.join("train-images-idx3-ubyte"), header).unwrap();
        fs::write(path.join("train-labels-idx1-ubyte"), header).unwrap();
        let found = pictures(path).unwrap();
        assert_eq!((found.n, found.height), (7., Some(28)));
        assert!(matches!(found.format, PictureFormat::Idx { validation: None, .. }));
        fs::write(path.join("train.bin"), "").unwrap();
        assert_eq!(pictures(path).unwrap().format, PictureFormat::Cifar);
        fs::write(path.join("a.tar.gz"), "").unwrap();
        assert_eq!(pictures(&path.join("a.tar.gz")).unwrap().format, PictureFormat::Archive);
        assert!(pictures(&path.join("train.bin")).is_err());
    }

    /// Grey digits of 28 pixels in an archive were taken for photos of 64.
    #[test]
    fn pictures_in_an_archive_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("digits.tar");
        for (pixels, is_grey) in
            [([[7; 3], [9; 3]].concat(), true), (vec![7, 8, 9, 7, 8, 9], false)]
        {
            let size = PictureSize { height: 1, width: 2, channels: 3 };
            let bytes = encode(&Picture { size, pixels });
            let mut archive = tar::Builder::new(fs::File::create(&path).unwrap());
            for name in ["LICENSE", "digits/7/a.png", "digits/8/b.png"] {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, name, &bytes[..]).unwrap();
            }
            archive.finish().unwrap();
            let found = pictures(&path).unwrap();
            assert_eq!((found.height, found.is_grey), (Some(1), is_grey));
        }
    }
}
