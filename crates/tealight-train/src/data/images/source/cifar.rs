//! The binary files of CIFAR-10 and CIFAR-100 (Krizhevsky 2009, <https://www.cs.toronto.edu/~kriz/cifar.html>).
//!
//! ```text
//! CIFAR-10    class, then 32 x 32 pixels: all red, all green, all blue      data_batch_1.bin …, test_batch.bin
//! CIFAR-100   coarse class, fine class, pixels                              train.bin, test.bin
//! ```

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tealight_model::names;

use super::files::absolute;
use super::{PATH, fault};
use crate::checks::given;
use crate::data::compressed::{self, Compression};
use crate::data::file::DataFile;
use crate::data::fingerprint::Fnv128;
use crate::data::images::item::{Content, Item, Reading, Source};
use crate::data::images::picture::{Picture, PictureSize, n_bytes};
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::storage::files;

const SIZE: PictureSize = PictureSize { height: 32, width: 32, channels: 3 };

settings! {
    /// `[task.data] kind = "cifar"`
    pub struct Config {
        /// The folder of the binary files, such as `cifar-10-batches-bin`.
        pub path: PathBuf = PathBuf::new(),
        /// Which classes of CIFAR-100 are learnt. CIFAR-10 has one kind only.
        pub classes: Classes = Classes::Fine,
    }
}

names! {
    /// Which classes of CIFAR-100 are learnt.
    pub enum Classes {
        /// 100 of them.
        "fine" => Fine,
        /// 20 groups of five.
        "coarse" => Coarse,
    }
}

impl Config {
    pub(super) fn validate(&self) -> Result<()> {
        given(PATH, &self.path, "the folder of the binary files of CIFAR-10 or CIFAR-100")
    }

    pub(super) fn absolute_paths(&mut self) -> Result<()> {
        absolute(&mut self.path)
    }
}

/// The files of a folder.
#[derive(Debug)]
pub(in super::super) struct Cifar {
    folder: PathBuf,
    format: Format,
    files: Vec<Binary>,
    classes: Vec<String>,
}

/// The bytes of a record before the pixels, and which of them is the class.
#[derive(Clone, Copy, Debug)]
struct Format {
    n_labels: usize,
    label: usize,
    n_classes: usize,
    /// The file with the names of the classes.
    names: &'static str,
}

#[derive(Debug)]
struct Binary {
    name: String,
    split: Split,
    n_pictures: u64,
    /// The hash of its bytes, once they have been read.
    hash: OnceLock<u128>,
}

impl Format {
    fn record(self) -> usize {
        self.n_labels + n_bytes(SIZE)
    }
}

impl Cifar {
    /// Finds the files; no picture is read yet.
    pub(in super::super) fn open(config: &Config) -> Result<Self> {
        let folder = &config.path;
        let has = |name: &str| folder.join(name).is_file();
        let batches: Vec<String> = (1..=5).map(|n| format!("data_batch_{n}.bin")).collect();
        let of_ten = Format { n_labels: 1, label: 0, n_classes: 10, names: "batches.meta.txt" };
        let of_hundred = Format { n_labels: 2, ..of_ten };
        let (format, train, test) = match config.classes {
            _ if batches.iter().any(|name| has(name)) => (of_ten, batches, "test_batch.bin"),
            classes if has("train.bin") => {
                let format = match classes {
                    Classes::Fine => Format {
                        label: 1,
                        n_classes: 100,
                        names: "fine_label_names.txt",
                        ..of_hundred
                    },
                    Classes::Coarse => Format {
                        label: 0,
                        n_classes: 20,
                        names: "coarse_label_names.txt",
                        ..of_hundred
                    },
                };
                (format, vec!["train.bin".to_owned()], "test.bin")
            }
            _ => {
                let rule = "has neither data_batch_1.bin (CIFAR-10) nor train.bin (CIFAR-100)";
                return Err(fault(PATH, folder, rule));
            }
        };
        let train = train.into_iter().map(|name| (name, Split::Train));
        let files = train.chain([(test.to_owned(), Split::Validation)]);
        let files = files.map(|(name, split)| Binary::new(folder, name, split, format));
        let files = files.collect::<Result<_>>()?;
        let classes = class_names(folder, format)?;
        Ok(Self { folder: folder.clone(), format, files, classes })
    }

    fn n_pictures(&self) -> u64 {
        self.files.iter().map(|file| file.n_pictures).sum()
    }

    fn read_file(&self, file: &Binary, each: &mut dyn FnMut(Item) -> Reading) -> Reading {
        let path = self.folder.join(&file.name);
        let (mut reader, read) = compressed::open(&path, Compression::None)?;
        let mut record = vec![0; self.format.record()];
        for number in 0..file.n_pictures {
            reader.read_exact(&mut record).map_err(Error::io("read", &path))?;
            let (labels, pixels) = record.split_at(self.format.n_labels);
            let class = labels[self.format.label];
            let Some(class) = self.classes.get(usize::from(class)) else {
                let n = self.classes.len();
                let rule = format!("cannot be used: picture {number} has the class {class} of {n}");
                return Err(fault(PATH, &path, &rule).into());
            };
            let name = format!("{}/{number}", file.name);
            let content = Content::Pixels(Picture::new(SIZE, channels_last(pixels)));
            each(Item { name, class: class.clone(), split: Some(file.split), content })?;
        }
        if file.hash.get().is_some_and(|hash| *hash != read.hash()) {
            return Err(fault(PATH, &path, "changed while it was being read").into());
        }
        Ok(())
    }
}

impl Binary {
    fn new(folder: &Path, name: String, split: Split, format: Format) -> Result<Self> {
        let path = folder.join(&name);
        let metadata = std::fs::metadata(&path);
        let metadata =
            metadata.map_err(|error| fault(PATH, &path, &format!("cannot be read: {error}")))?;
        let (n_bytes, record) = (metadata.len(), format.record() as u64);
        if n_bytes == 0 || !n_bytes.is_multiple_of(record) {
            let rule =
                format!("has {n_bytes} bytes, which is no number of pictures of {record} bytes");
            return Err(fault(PATH, &path, &rule));
        }
        Ok(Self { name, split, n_pictures: n_bytes / record, hash: OnceLock::new() })
    }
}

/// The lines of the file of names; numbers if there is none.
fn class_names(folder: &Path, Format { n_classes, names, .. }: Format) -> Result<Vec<String>> {
    let path = folder.join(names);
    if !path.try_exists().map_err(Error::io("read", &path))? {
        return Ok((0..n_classes).map(|class| class.to_string()).collect());
    }
    let text = files::read_text(&path)?;
    let names = text.lines().map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.len() != n_classes {
        let rule = format!("has {} names of classes, and there are {n_classes}", names.len());
        return Err(fault(PATH, &path, &rule));
    }
    Ok(names)
}

/// `(channels, pixels)` → `(pixels, channels)`
fn channels_last(planes: &[u8]) -> Vec<u8> {
    let n_pixels = SIZE.height * SIZE.width;
    let pixel = |at: usize| (0..SIZE.channels).map(move |channel| planes[channel * n_pixels + at]);
    (0..n_pixels).flat_map(pixel).collect()
}

impl Source for Cifar {
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let total = self.files.len() as u64;
        let mut hash = Fnv128::default();
        hash.write(format!("{:?} {:?}", self.format, self.classes).as_bytes());
        for (file, done) in self.files.iter().zip(1..) {
            let path = self.folder.join(&file.name);
            let hash_of_file = compressed::hash(&path, &mut |_| ())?;
            let of_file = *file.hash.get_or_init(|| hash_of_file);
            hash.write(&of_file.to_le_bytes());
            progress(Progress { done, total });
        }
        Ok(hash.finish())
    }

    fn read(&self, each: &mut dyn FnMut(Item, Progress) -> Reading) -> Reading {
        let (mut done, total) = (0, self.n_pictures());
        for file in &self.files {
            self.read_file(file, &mut |item| {
                done += 1;
                each(item, Progress { done, total })
            })?;
        }
        Ok(())
    }

    fn files(&self) -> Vec<DataFile> {
        let file = |file: &Binary| {
            let path = self.folder.join(&file.name);
            Some(DataFile::new(PATH, &path, *file.hash.get()? as u64))
        };
        self.files.iter().filter_map(file).collect()
    }

    fn numbered_classes(&self) -> Option<Vec<String>> {
        Some(self.classes.clone())
    }

    fn fault(&self, name: &str, rule: &str) -> Error {
        let (file, number) = name.split_once('/').unwrap_or((name, ""));
        fault(PATH, &self.folder.join(file), &format!("cannot be used: picture {number} {rule}"))
    }
}
