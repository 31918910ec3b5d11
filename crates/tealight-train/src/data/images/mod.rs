//! From files to pictures of one size, with their classes.
//!
//! ```text
//! source ──files──► decode ──► prepare ──► store ──► augment ──► normalise
//!                              (size, colour)  (on the disk)  f(seed, place)
//! ```
//!
//! A [source] is decoded once; its pictures are cached in a memory-mapped file of bytes. The later steps are functions
//! of seed and index: the choice of the pictures that are held out, and the augmentation of the others.

pub mod augment;
mod decode;
mod encode;
mod item;
mod normalise;
mod orientation;
mod picture;
mod prepare;
mod resize;
pub mod shapes;
pub mod source;
mod split;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rayon::prelude::*;

pub use decode::decode;
pub(crate) use encode::encode;
pub use normalise::Normalisation;
pub(crate) use normalise::Table;
use picture::n_bytes;
pub use picture::{Colour, Picture, PictureSize};
pub use prepare::Preparation;
pub use resize::{Filter, Fit, centre, check_proportions, resize, with_shorter_side};

use crate::data::file::DataFile;
use crate::data::progress::{Progress, Stage};
use crate::data::split::Split;
use crate::error::{Error, Result};
use shapes::Shapes;
use source::{PATH, SourceConfig};
use split::Splits;
use store::{Options, PictureStore};

const LABELS: &str = "task.labels";

/// The pictures of both splits with their classes.
#[derive(Debug)]
pub struct Pictures {
    store: PictureStore,
    splits: Splits,
    /// The classes in the order of a model's outputs.
    labels: Vec<String>,
    /// The place in `labels` of each class of the store.
    class_of: Vec<u32>,
    files: Vec<DataFile>,
    /// Where they are drawn.
    shapes: Option<Shapes>,
}

/// A picture of a split.
#[derive(Clone, Copy, Debug)]
pub struct Labelled<'a> {
    /// `(height, width, channels)`
    pub pixels: &'a [u8],
    /// An index into [`Pictures::labels`].
    pub class: u32,
    /// Such as `train/cat/1.jpg`.
    pub name: &'a str,
}

impl Pictures {
    /// Reads the pictures of `source`, from the cache that `cache` names if they are there. `labels` is the order of
    /// the classes; ascending, or as the files number them, when absent.
    pub fn open(
        source: &SourceConfig,
        labels: Option<&[String]>,
        preparation: Preparation,
        seed: u64,
        cache: impl FnOnce() -> Result<PathBuf>,
        progress: &mut dyn FnMut(Stage, Progress),
    ) -> Result<Self> {
        let splits = |store: &_| Splits::new(store, source.shares(), seed);
        let pictures = Self::split(source, labels, preparation, seed, splits, cache, progress)?;
        pictures.check_classes()?;
        Ok(pictures)
    }

    /// [`Self::open`] to test a trained model with these `labels`: the pictures of the share for a test are held out. Without
    /// such a share, all pictures are held out, and all are to train on, because the baselines learn from these.
    pub fn open_test(
        source: &SourceConfig,
        labels: &[String],
        preparation: Preparation,
        seed: u64,
        cache: impl FnOnce() -> Result<PathBuf>,
        progress: &mut dyn FnMut(Stage, Progress),
    ) -> Result<Self> {
        let splits = |store: &_| Splits::to_test(store, source.shares(), seed);
        Self::split(source, Some(labels), preparation, seed, splits, cache, progress)
    }

    fn split(
        source: &SourceConfig,
        labels: Option<&[String]>,
        preparation: Preparation,
        seed: u64,
        splits: impl FnOnce(&PictureStore) -> Result<Splits>,
        cache: impl FnOnce() -> Result<PathBuf>,
        progress: &mut dyn FnMut(Stage, Progress),
    ) -> Result<Self> {
        let opened = source.open(seed)?;
        let options = Options { preparation, skips_broken: source.skips_broken() };
        let store = PictureStore::from_source(&*opened, options, cache, progress)?;
        let splits = splits(&store)?;
        let found = store.classes();
        let (labels, class_of) = match (opened.numbered_classes(), labels) {
            (Some(numbered), labels) => by_number(found, &numbered, labels)?,
            (None, Some(labels)) => (labels.to_vec(), in_list(found, labels)?),
            (None, None) => {
                let sorted: BTreeSet<&String> = found.iter().collect();
                let sorted: Vec<String> = sorted.into_iter().cloned().collect();
                let class_of = in_list(found, &sorted)?;
                (sorted, class_of)
            }
        };
        let shapes = match source {
            SourceConfig::Shapes(config) => Some(Shapes::new(config, seed)?),
            _ => None,
        };
        let files = opened.files();
        Ok(Self { store, splits, labels, class_of, files, shapes })
    }

    /// Refuses a class that nothing is learnt of.
    fn check_classes(&self) -> Result<()> {
        let classes = |split| (0..self.n(split)).map(move |at| self.at(split, at).class);
        let trained: BTreeSet<u32> = classes(Split::Train).collect();
        if let [only] = trained.iter().copied().collect::<Vec<_>>()[..] {
            let class = &self.labels[only as usize];
            let message = format!(
                "all pictures to train on are of the class `{class}`: there is nothing to tell apart"
            );
            return Err(Error::config([PATH], message));
        }
        let unknown = classes(Split::Validation).position(|class| !trained.contains(&class));
        let Some(at) = unknown else { return Ok(()) };
        let Labelled { class, name, .. } = self.at(Split::Validation, at);
        let class = &self.labels[class as usize];
        let message =
            format!("`{name}` is held out, and no picture to train on is of its class `{class}`");
        Err(Error::config([PATH], message))
    }

    /// The number of pictures of a split.
    pub fn n(&self, split: Split) -> usize {
        self.in_split(split).len()
    }

    /// Picture `at` of a split.
    ///
    /// # Panics
    /// If there is none.
    pub fn at(&self, split: Split, at: usize) -> Labelled<'_> {
        let picture = self.in_split(split)[at] as usize;
        let class = self.class_of[self.store.class_of(picture)];
        Labelled { pixels: self.store.pixels(picture), class, name: self.store.name_of(picture) }
    }

    /// The size of all pictures.
    pub fn size(&self) -> PictureSize {
        self.store.size()
    }

    /// The classes in the order of a model's outputs.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The files that the pictures come from, with hashes of their content.
    pub fn files(&self) -> &[DataFile] {
        &self.files
    }

    /// The generator of the pictures, where they are drawn.
    pub fn shapes(&self) -> Option<&Shapes> {
        self.shapes.as_ref()
    }

    /// The number of files that were left out because they are no pictures, and the fault of the first of them.
    pub fn left_out(&self) -> (u64, Option<&str>) {
        self.store.left_out()
    }

    /// A note, if a share to hold out is set and the source holds out pictures itself.
    pub fn unused_share(&self) -> Option<&str> {
        self.splits.unused_share.as_deref()
    }

    /// Mean and deviation of the pictures to train on.
    pub fn normalisation(&self) -> Normalisation {
        let size = self.size();
        let pictures = self.splits.train.par_iter();
        let pixels = pictures.map(|&picture| self.store.pixels(picture as usize));
        Normalisation::from_pictures(pixels, n_bytes(size), size.channels)
    }

    fn in_split(&self, split: Split) -> &[u32] {
        match split {
            Split::Train => &self.splits.train,
            Split::Validation => &self.splits.validation,
        }
    }
}

/// The labels of classes that files number, and the place of each class of `found`.
fn by_number(
    found: &[String],
    numbered: &[String],
    labels: Option<&[String]>,
) -> Result<(Vec<String>, Vec<u32>)> {
    let class_of = in_list(found, numbered)?;
    let Some(labels) = labels else { return Ok((numbered.to_vec(), class_of)) };
    let largest = class_of.iter().max().map_or(0, |&largest| largest as usize);
    if largest >= labels.len() {
        let n = labels.len();
        let message = format!(
            "`{LABELS}` names {n} classes, from 0 to {}, and a picture has the class {largest}",
            n - 1
        );
        return Err(Error::config([LABELS], message));
    }
    Ok((labels.to_vec(), class_of))
}

/// The place of each class in a list.
fn in_list(found: &[String], list: &[String]) -> Result<Vec<u32>> {
    let places: BTreeMap<&String, u32> = list.iter().zip(0..).collect();
    let place = |class: &String| {
        let missing = || {
            let message = format!("the class `{class}` of the pictures is not in `{LABELS}`");
            Error::config([LABELS], message)
        };
        places.get(class).copied().ok_or_else(missing)
    };
    found.iter().map(place).collect()
}

#[cfg(test)]
mod tests;
