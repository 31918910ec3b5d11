//! `[task.data]`: where pictures come from.

pub(super) mod archive;
pub mod cifar;
pub mod files;
pub(super) mod folders;
pub mod idx;
mod layout;

use std::fmt;
use std::path::Path;

use tealight_model::choice;

use super::picture::Picture;
use super::shapes;
use crate::data::file::DataFile;
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::error::{Error, Result};

choice! {
    /// `[task.data]`: where the pictures come from.
    pub enum SourceConfig {
        /// Class folders of PNG and JPEG: train/cat/1.jpg, test/cat/1.jpg, or cat/1.jpg.
        "folders" => Folders(files::Config),
        /// An archive of class folders: .tar, .tar.gz, .tar.zst.
        "archive" => Archive(files::Config),
        /// Files of the form of MNIST, plain or .gz.
        "idx" => Idx(idx::Config),
        /// The binary files of CIFAR-10 and CIFAR-100.
        "cifar" => Cifar(cifar::Config),
        /// Noisy shapes drawn by the program, with a known best possible accuracy.
        "shapes" => Shapes(shapes::Config),
    }
}

/// The key of most paths.
pub(super) const PATH: &str = "task.data.path";

impl SourceConfig {
    /// Checks the settings and finds the files; no picture is read yet. Only drawn pictures depend on the seed.
    pub(super) fn open(&self, seed: u64) -> Result<Box<dyn Source>> {
        Ok(match self {
            Self::Folders(config) => Box::new(folders::Folders::open(config)?),
            Self::Archive(config) => Box::new(archive::Archives::open(config)?),
            Self::Idx(config) => Box::new(idx::Idx::open(config)?),
            Self::Cifar(config) => Box::new(cifar::Cifar::open(config)?),
            Self::Shapes(config) => Box::new(shapes::Shapes::new(config, seed)?),
        })
    }

    /// Checks what does not depend on files.
    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Self::Folders(config) => config.validate("a folder of class folders"),
            Self::Archive(config) => {
                config.validate("a .tar, .tar.gz or .tar.zst of class folders")
            }
            Self::Idx(config) => config.validate(),
            Self::Cifar(config) => config.validate(),
            Self::Shapes(config) => config.validate(),
        }
    }

    /// Makes the paths absolute, so that a run can be resumed from another directory.
    pub(crate) fn absolute_paths(&mut self) -> Result<()> {
        match self {
            Self::Folders(config) | Self::Archive(config) => config.absolute_paths(),
            Self::Idx(config) => config.absolute_paths(),
            Self::Cifar(config) => config.absolute_paths(),
            Self::Shapes(_) => Ok(()),
        }
    }

    /// The share that is held out, where it is drawn and the settings give one.
    pub(super) fn validation(&self) -> Option<f64> {
        match self {
            Self::Folders(config) | Self::Archive(config) => config.validation,
            Self::Idx(config) => config.validation,
            Self::Cifar(_) | Self::Shapes(_) => None,
        }
    }

    /// Whether pictures that cannot be decoded are left out.
    pub(super) fn skips_broken(&self) -> bool {
        match self {
            Self::Folders(config) | Self::Archive(config) => config.skip_broken,
            Self::Idx(_) | Self::Cifar(_) | Self::Shapes(_) => false,
        }
    }
}

/// Pictures in a fixed order.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// A hash of all that decides the pictures, their names, classes and splits. Files are read completely.
    fn fingerprint(&self, progress: &mut dyn FnMut(Progress)) -> Result<u128>;

    /// Calls `each` for every picture in order, until it fails.
    fn read(&self, each: &mut dyn FnMut(Item, Progress) -> Result<()>) -> Result<()>;

    /// The files with the hashes that [`Self::fingerprint`] has computed; none of drawn pictures.
    fn files(&self) -> Vec<DataFile>;

    /// The classes in their order, where the files number them; `None` where each is the name of a folder.
    fn numbered_classes(&self) -> Option<Vec<String>> {
        None
    }

    /// Whether the pictures are drawn, which is as fast as reading them from a cache.
    fn is_drawn(&self) -> bool {
        false
    }

    /// An error about the picture of this name.
    fn fault(&self, name: &str, rule: &str) -> Error;
}

/// A picture of a source.
#[derive(Debug)]
pub(super) struct Item {
    /// Unique, such as `train/cat/1.jpg`.
    pub(super) name: String,
    pub(super) class: String,
    /// `None` if the split is drawn.
    pub(super) split: Option<Split>,
    pub(super) content: Content,
}

/// What a source has of a picture.
#[derive(Debug)]
pub(super) enum Content {
    /// A file that is still to be read.
    File(std::path::PathBuf),
    /// The bytes of a PNG or JPEG.
    Encoded(Vec<u8>),
    /// The pixels.
    Pixels(Picture),
    /// It is not a picture, for this reason.
    Broken(String),
}

/// An error about a file of a setting.
pub(super) fn fault(key: &str, path: &Path, rule: &str) -> Error {
    Error::config([key], format!("`{}` {rule}", path.display()))
}

impl Content {
    /// The bytes that it takes in memory.
    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Self::File(_) | Self::Broken(_) => 0,
            Self::Encoded(bytes) => bytes.len(),
            Self::Pixels(picture) => picture.pixels.len(),
        }
    }
}
