//! IDX, the files of MNIST (LeCun, Cortes & Burges, <http://yann.lecun.com/exdb/mnist/>).
//!
//! ```text
//! 0 0 8 d     unsigned bytes in d dimensions
//! n, …        the size of each dimension, u32, big-endian: (n, height, width) or (n, height, width, channels) of
//!             pictures, (n) of labels
//! …           the bytes
//! ```

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::fault;
use super::files::{TEST, absolute};
use crate::checks::{given, share, share_or_none};
use crate::data::compressed::{self, Compression, ReadProgress};
use crate::data::file::DataFile;
use crate::data::fingerprint::Fnv128;
use crate::data::images::decode::check_size;
use crate::data::images::item::{Content, Item, Reading, Source};
use crate::data::images::picture::{Picture, PictureSize, n_bytes};
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::settings::settings;

const IMAGES: &str = "task.data.images";
const LABELS: &str = "task.data.labels";
const VALIDATION_IMAGES: &str = "task.data.validation_images";
const VALIDATION_LABELS: &str = "task.data.validation_labels";
const VALIDATION: &str = "task.data.validation";

settings! {
    /// `[task.data] kind = "idx"`
    pub struct Config {
        /// The file of the pictures, plain or compressed (`.gz`).
        pub images: PathBuf = PathBuf::new(),
        /// The file of their labels: the number of each picture's class, from 0.
        pub labels: PathBuf = PathBuf::new(),
        /// The pictures that are held out.
        pub validation_images: Option<PathBuf> = None,
        /// Their labels.
        pub validation_labels: Option<PathBuf> = None,
        /// The share of each class that is held out, where no file is; .1 when absent.
        pub validation: Option<f64> = None,
        /// The share of each class that is held out for a test, of the pictures that are not held out otherwise: the report of
        /// the run has the scores on them.
        pub test: f64 = 0.,
    }
}

impl Config {
    pub(super) fn validate(&self) -> Result<()> {
        given(IMAGES, &self.images, "an IDX file of pictures, such as train-images-idx3-ubyte.gz")?;
        given(LABELS, &self.labels, "an IDX file of labels, such as train-labels-idx1-ubyte.gz")?;
        self.validation.map_or(Ok(()), |validation| share(VALIDATION, validation))?;
        share_or_none(TEST, self.test)?;
        let refused = |given: &str, other: &str, rule: &str| {
            let message = format!("`{given}` is set and `{other}` is {rule}");
            Err(Error::config([given, other], message))
        };
        match (&self.validation_images, &self.validation_labels) {
            (Some(_), None) => refused(VALIDATION_IMAGES, VALIDATION_LABELS, "not: set both"),
            (None, Some(_)) => refused(VALIDATION_LABELS, VALIDATION_IMAGES, "not: set both"),
            (Some(_), Some(_)) if self.validation.is_some() => {
                refused(VALIDATION_IMAGES, VALIDATION, "set, too: set one of them")
            }
            _ => Ok(()),
        }
    }

    pub(super) fn absolute_paths(&mut self) -> Result<()> {
        let Self { images, labels, validation_images, validation_labels, .. } = self;
        let paths =
            [Some(images), Some(labels), validation_images.as_mut(), validation_labels.as_mut()];
        paths.into_iter().flatten().try_for_each(absolute)
    }
}

/// One or two pairs of files.
#[derive(Debug)]
pub(in super::super) struct Idx {
    pairs: Vec<Pair>,
    n_classes: usize,
}

/// A file of pictures, and one of labels.
#[derive(Debug)]
struct Pair {
    images: IdxFile,
    labels: IdxFile,
    size: PictureSize,
    classes: Vec<u8>,
    split: Option<Split>,
}

#[derive(Debug)]
struct IdxFile {
    key: &'static str,
    path: PathBuf,
    compression: Compression,
    /// The hash of its bytes, once they have been read.
    hash: OnceLock<u128>,
}

/// An open file after its header.
struct Opened {
    reader: Box<dyn std::io::BufRead + Send>,
    read: Arc<ReadProgress>,
    dims: Vec<usize>,
}

impl IdxFile {
    fn new(key: &'static str, path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let (_, compression) = Compression::from_name(&name);
        Self { key, path: path.to_owned(), compression, hash: OnceLock::new() }
    }

    fn fault(&self, rule: impl AsRef<str>) -> Error {
        fault(self.key, &self.path, rule.as_ref())
    }

    fn broken(&self, error: &std::io::Error) -> Error {
        self.fault(format!("is cut off or damaged: {error}"))
    }

    /// Opens the file and reads its header.
    fn open(&self) -> Result<Opened> {
        let metadata = std::fs::metadata(&self.path);
        let metadata = metadata.map_err(|error| self.fault(format!("cannot be read: {error}")))?;
        if !metadata.is_file() {
            return Err(self.fault("is no file"));
        }
        let (mut reader, read) = compressed::open(&self.path, self.compression)?;
        let mut magic = [0; 4];
        reader.read_exact(&mut magic).map_err(|error| self.broken(&error))?;
        let n_dims = match magic {
            [0, 0, 8, n] => n,
            [0, 0, kind @ 9..=14, _] => {
                let rule =
                    format!("has numbers of type {kind:#04x}; expected 0x08, unsigned bytes");
                return Err(self.fault(rule));
            }
            _ => return Err(self.fault("is no IDX file: it begins with other bytes")),
        };
        let mut dims = Vec::new();
        for _ in 0..n_dims {
            let mut dim = [0; 4];
            reader.read_exact(&mut dim).map_err(|error| self.broken(&error))?;
            dims.push(u32::from_be_bytes(dim) as usize);
        }
        Ok(Opened { reader, read, dims })
    }

    /// Checks that the file ends here, and that it is the one that has been hashed.
    fn end(&self, Opened { mut reader, read, .. }: Opened) -> Result<()> {
        let n_more = reader.fill_buf().map_err(|error| self.broken(&error))?.len();
        if n_more > 0 {
            return Err(self.fault("has more bytes than its header says"));
        }
        match self.hash.get() {
            Some(hash) if *hash != read.hash() => {
                Err(self.fault("changed while it was being read"))
            }
            _ => Ok(()),
        }
    }

    /// Hashes the bytes on the disk.
    fn hash(&self) -> Result<u128> {
        let hash = compressed::hash(&self.path, &mut |_| ())?;
        Ok(*self.hash.get_or_init(|| hash))
    }

    /// All labels of a file of labels.
    fn labels(&self) -> Result<Vec<u8>> {
        let mut opened = self.open()?;
        let [n] = opened.dims[..] else {
            let rule = format!("has {} dimensions, and a file of labels has 1", opened.dims.len());
            return Err(self.fault(rule));
        };
        let mut labels = Vec::new();
        let read = opened.reader.by_ref().take(n as u64).read_to_end(&mut labels);
        read.map_err(|error| self.broken(&error))?;
        if labels.len() != n {
            return Err(self.fault(format!("has {} labels, and its header says {n}", labels.len())));
        }
        self.end(opened)?;
        Ok(labels)
    }

    /// The number of pictures, and their size.
    fn size(&self) -> Result<(usize, PictureSize)> {
        let Opened { dims, .. } = self.open()?;
        let (n, height, width, channels) = match dims[..] {
            [n, height, width] => (n, height, width, 1),
            [n, height, width, channels @ (1 | 3)] => (n, height, width, channels),
            _ => {
                let rule = format!(
                    "has the dimensions {dims:?}; pictures have (n, height, width) or (n, height, width, 3)"
                );
                return Err(self.fault(rule));
            }
        };
        if n == 0 || height == 0 || width == 0 {
            return Err(self.fault(format!("has no pixel: its dimensions are {dims:?}")));
        }
        check_size(height, width).map_err(|rule| self.fault(format!("has pictures of {rule}")))?;
        Ok((n, PictureSize { height, width, channels }))
    }
}

impl Pair {
    fn new(images: IdxFile, labels: IdxFile, split: Option<Split>) -> Result<Self> {
        let (n, size) = images.size()?;
        let classes = labels.labels()?;
        if n != classes.len() {
            let message = format!(
                "`{}` has {n} pictures, and `{}` has {} labels",
                images.path.display(),
                labels.path.display(),
                classes.len()
            );
            return Err(Error::config([images.key, labels.key], message));
        }
        Ok(Self { images, labels, size, classes, split })
    }

    /// The beginning of the names of its pictures.
    fn prefix(&self) -> &'static str {
        if self.split == Some(Split::Validation) { "validation/" } else { "train/" }
    }

    fn read(&self, each: &mut dyn FnMut(Item) -> Reading) -> Reading {
        let mut opened = self.images.open()?;
        for (number, class) in self.classes.iter().enumerate() {
            let mut pixels = vec![0; n_bytes(self.size)];
            opened.reader.read_exact(&mut pixels).map_err(|error| self.images.broken(&error))?;
            let content = Content::Pixels(Picture::new(self.size, pixels));
            let (name, class) = (format!("{}{number}", self.prefix()), class.to_string());
            each(Item { name, class, split: self.split, content })?;
        }
        Ok(self.images.end(opened)?)
    }
}

impl Idx {
    /// Reads the labels; the pictures are not read yet.
    pub(in super::super) fn open(config: &Config) -> Result<Self> {
        let pair = |[images, labels]: [(&'static str, &Path); 2], split| {
            Pair::new(IdxFile::new(images.0, images.1), IdxFile::new(labels.0, labels.1), split)
        };
        let Config { images, labels, validation_images, validation_labels, .. } = config;
        let split = validation_images.as_ref().map(|_| Split::Train);
        let mut pairs = vec![pair([(IMAGES, images), (LABELS, labels)], split)?];
        if let (Some(images), Some(labels)) = (validation_images, validation_labels) {
            let files = [(VALIDATION_IMAGES, &**images), (VALIDATION_LABELS, &**labels)];
            pairs.push(pair(files, Some(Split::Validation))?);
        }
        let largest = pairs.iter().flat_map(|pair| &pair.classes).max();
        let n_classes = largest.map_or(0, |&largest| usize::from(largest) + 1);
        Ok(Self { pairs, n_classes })
    }

    fn idx_files(&self) -> impl Iterator<Item = &IdxFile> {
        self.pairs.iter().flat_map(|pair| [&pair.images, &pair.labels])
    }
}

impl Source for Idx {
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let total = 2 * self.pairs.len() as u64;
        let mut hash = Fnv128::default();
        for (file, done) in self.idx_files().zip(1..) {
            hash.write(&file.hash()?.to_le_bytes());
            progress(Progress { done, total });
        }
        Ok(hash.finish())
    }

    fn read(&self, each: &mut dyn FnMut(Item, Progress) -> Reading) -> Reading {
        let total = self.pairs.iter().map(|pair| pair.classes.len() as u64).sum();
        let mut done = 0;
        for pair in &self.pairs {
            pair.read(&mut |item| {
                done += 1;
                each(item, Progress { done, total })
            })?;
        }
        Ok(())
    }

    fn files(&self) -> Vec<DataFile> {
        let file =
            |file: &IdxFile| Some(DataFile::new(file.key, &file.path, *file.hash.get()? as u64));
        self.idx_files().filter_map(file).collect()
    }

    fn numbered_classes(&self) -> Option<Vec<String>> {
        Some((0..self.n_classes).map(|class| class.to_string()).collect())
    }

    fn fault(&self, name: &str, rule: &str) -> Error {
        let pair = self.pairs.iter().find(|pair| name.starts_with(pair.prefix()));
        let pair = pair.unwrap_or(&self.pairs[0]);
        let number = name.trim_start_matches(pair.prefix());
        pair.images.fault(format!("cannot be used: picture {number} {rule}"))
    }
}
