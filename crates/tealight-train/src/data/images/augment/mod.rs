//! `[task.augment]`: changed copies of the pictures to train on.
//!
//! ```text
//! bytes     crop ─► flip ─► rand_augment ─► erasing                 each picture
//! numbers   mixup or cutmix with the next picture of the batch      and their classes
//! ```
//!
//! Everything is a function of seed and place: the number of the example among all that a run sees, which epoch and
//! index decide. So a resumed run sees the same pictures, on any number of threads and processes.

pub mod crop;
pub mod cutmix;
pub mod erasing;
pub mod flip;
pub mod mixup;
pub mod rand_augment;

use tealight_ops::rng::{Purpose, Stream};

use super::picture::{Picture, PictureSize};
use crate::checks::{at_most, check};
use crate::error::Result;
use crate::settings::settings;
use cutmix::Rectangle;

/// The largest padding, as large as any picture is.
const MAX_PADDING: u64 = 1 << 12;

settings! {
    /// `[task.augment]`
    pub struct Config {
        /// Mirror every second picture, left to right.
        pub horizontal_flip: bool = false,
        /// Black pixels added on each side before a part of the former size is cut out at random.
        pub crop_padding: usize = 0,
        /// `{ n = 2, magnitude = 9 }`: random operations on each picture (Cubuk et al. 2020).
        pub rand_augment: Option<rand_augment::Config> = None,
        /// The probability that a rectangle is overwritten by noise (Zhong et al. 2020).
        pub erasing: f64 = 0.,
        /// α of mixup: a picture becomes the weighted mean of two (Zhang et al. 2018). Of mixup and CutMix, each
        /// picture gets one at random.
        pub mixup: f64 = 0.,
        /// α of CutMix: a rectangle comes from another picture (Yun et al. 2019).
        pub cutmix: f64 = 0.,
        /// The probability that a picture is mixed with another, where `mixup` or `cutmix` is set.
        pub mix_probability: f64 = 1.,
    }
}

impl Config {
    /// Checks the ranges.
    pub(crate) fn validate(&self) -> Result<()> {
        at_most("task.augment.crop_padding", self.crop_padding as u64, MAX_PADDING)?;
        self.rand_augment.as_ref().map_or(Ok(()), rand_augment::Config::validate)?;
        let probability = |key, value: f64| {
            check(
                key,
                value,
                |value| (0. ..=1.).contains(&value),
                "must be at least 0 and at most 1",
            )
        };
        probability("task.augment.erasing", self.erasing)?;
        probability("task.augment.mix_probability", self.mix_probability)?;
        for (key, alpha) in
            [("task.augment.mixup", self.mixup), ("task.augment.cutmix", self.cutmix)]
        {
            check(
                key,
                alpha,
                |alpha| (0. ..=1e3).contains(&alpha),
                "must be at least 0 and at most 1000",
            )?;
        }
        Ok(())
    }

    /// Whether pictures are mixed, so that their targets are no single classes.
    pub fn mixes(&self) -> bool {
        (self.mixup > 0. || self.cutmix > 0.) && self.mix_probability > 0.
    }
}

/// The augmentation of a run.
#[derive(Clone, Debug)]
pub struct Augmentation {
    config: Config,
    stream: Stream,
}

/// Forks of the stream of a place.
const FLIP: u64 = 0;
const CROP: u64 = 1;
const OPERATIONS: u64 = 2;
const ERASING: u64 = 3;
const MIX: u64 = 4;

/// How a picture is mixed with another.
#[derive(Clone, Debug, PartialEq)]
pub enum Mix {
    /// `share` times the picture, plus (1 − `share`) times the other picture.
    Mean(f64),
    /// These pixels come from the other picture.
    Rectangle(Rectangle),
}

impl Mix {
    /// The share of the picture itself, and so of its class.
    pub fn share(&self, size: PictureSize) -> f64 {
        match self {
            Self::Mean(share) => *share,
            Self::Rectangle(rectangle) => rectangle.outside(size),
        }
    }
}

impl Augmentation {
    /// The augmentation of a seed.
    pub fn new(config: &Config, seed: u64) -> Self {
        let stream = Stream::new(seed, Purpose::Data).fork_name("augment");
        Self { config: config.clone(), stream }
    }

    /// The picture of the example at `place`, augmented.
    pub fn picture(&self, pixels: &[u8], size: PictureSize, place: u64) -> Picture {
        let Config { horizontal_flip, crop_padding, rand_augment, erasing, .. } = &self.config;
        let stream = self.stream.fork(place);
        let mut picture = Picture::new(size, pixels.to_vec());
        if *crop_padding > 0 {
            picture = crop::random(&picture, *crop_padding, stream.fork(CROP));
        }
        if *horizontal_flip && stream.fork(FLIP).uniform(0) < 0.5 {
            flip::horizontal(&mut picture);
        }
        if let Some(config) = rand_augment {
            picture = rand_augment::apply(config, picture, stream.fork(OPERATIONS));
        }
        if *erasing > 0. {
            erasing::random(&mut picture, *erasing, stream.fork(ERASING));
        }
        picture
    }

    /// How the example at `place` is mixed with another; `None` if it is not.
    pub fn mix(&self, size: PictureSize, place: u64) -> Option<Mix> {
        let Config { mixup, cutmix, mix_probability, .. } = self.config;
        let stream = self.stream.fork(place).fork(MIX);
        if !self.config.mixes() || stream.uniform(0) >= mix_probability {
            return None;
        }
        let takes_mixup = cutmix == 0. || mixup > 0. && stream.uniform(1) < 0.5;
        Some(if takes_mixup {
            Mix::Mean(mixup::beta(mixup, stream.fork(0)))
        } else {
            Mix::Rectangle(cutmix::random(size, cutmix, stream.fork(0)))
        })
    }
}

#[cfg(test)]
mod tests;
