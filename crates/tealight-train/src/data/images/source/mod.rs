//! `[task.data]`: where pictures come from.

pub(in crate::data) mod archive;
pub mod cifar;
pub mod files;
pub(super) mod folders;
pub mod idx;
pub(in crate::data) mod layout;

use std::path::Path;

use tealight_model::choice;

use super::item::Source;
use super::shapes;
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

/// The shares of each class that are held out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    /// For validation, where the settings give it.
    pub(super) validation: Option<f64>,
    /// For a test; 0: none.
    pub(super) test: f64,
}

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

    /// The class folders in `data`, or the archive of them that it is.
    pub(crate) fn of_class_folders(data: &Path) -> Self {
        let config = files::Config { path: data.to_owned(), ..files::Config::default() };
        if data.is_dir() { Self::Folders(config) } else { Self::Archive(config) }
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

    /// The shares that are held out.
    pub(super) fn shares(&self) -> Shares {
        let (validation, test) = match self {
            Self::Folders(config) | Self::Archive(config) => (config.validation, config.test),
            Self::Idx(config) => (config.validation, config.test),
            Self::Cifar(_) | Self::Shapes(_) => return Shares::default(),
        };
        Shares { validation, test }
    }

    /// The share that is held out for a test, and where the pictures are.
    pub(crate) fn test_share(&self) -> Option<(&Path, f64)> {
        let path = match self {
            Self::Folders(config) | Self::Archive(config) => &config.path,
            Self::Idx(config) => &config.images,
            Self::Cifar(_) | Self::Shapes(_) => return None,
        };
        let Shares { test, .. } = self.shares();
        (test > 0.).then_some((path, test))
    }

    /// Whether pictures that cannot be decoded are left out.
    pub(super) fn skips_broken(&self) -> bool {
        match self {
            Self::Folders(config) | Self::Archive(config) => config.skip_broken,
            Self::Idx(_) | Self::Cifar(_) | Self::Shapes(_) => false,
        }
    }
}

/// An error about a file of a setting.
pub(super) fn fault(key: &str, path: &Path, rule: &str) -> Error {
    Error::config([key], format!("`{}` {rule}", path.display()))
}
