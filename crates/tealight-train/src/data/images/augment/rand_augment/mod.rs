//! RandAugment (Cubuk et al. 2020, <https://arxiv.org/abs/1909.13719>): `n` operations, each uniform among 14, all of
//! one magnitude M from 0 to 10. The ranges come from AutoAugment (Cubuk et al. 2019,
//! <https://arxiv.org/abs/1805.09501>, table 6), with m = M / 10:
//!
//! ```text
//! identity                            brightness, colour, contrast, sharpness    factor 1 ± .9 m
//! auto_contrast, equalize             solarize                                   threshold 256 (1 − m)
//! rotate            ± 30 m degrees    posterize                                  8 − 4 m bits
//! shear_x, shear_y  ± .3 m            translate_x, translate_y                   ± .45 m of the side
//! ```
//!
//! Signs are drawn. Rotated, sheared and shifted pictures are interpolated linearly, with black around them, and
//! sheared about their middle. At magnitude 0 all but `auto_contrast` and `equalize` change nothing.

mod filters;
mod geometry;
mod tones;

use tealight_ops::rng::Stream;

use crate::checks::{check, positive};
use crate::data::images::picture::Picture;
use crate::error::Result;
use crate::settings::settings;
use geometry::Affine;

settings! {
    /// `task.augment.rand_augment`
    pub struct Config {
        /// Operations on each picture.
        pub n: usize = 2,
        /// Their strength, from 0 to 10.
        pub magnitude: f64 = 9.,
    }
}

impl Config {
    pub(super) fn validate(&self) -> Result<()> {
        let key = "task.augment.rand_augment";
        let n = format!("{key}.n");
        positive(&n, self.n)?;
        check(&n, self.n, |n| n <= 100, "must be at most 100")?;
        let magnitude = format!("{key}.magnitude");
        let rule = "must be at least 0 and at most 10";
        check(&magnitude, self.magnitude, |magnitude| (0. ..=10.).contains(&magnitude), rule)
    }
}

/// The operations, in the order of table 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    AutoContrast,
    Equalize,
    Solarize,
    Posterize,
    Contrast,
    Colour,
    Brightness,
    Sharpness,
}

impl Operation {
    pub(super) const ALL: [Self; 14] = [
        Self::Identity,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
        Self::Rotate,
        Self::AutoContrast,
        Self::Equalize,
        Self::Solarize,
        Self::Posterize,
        Self::Contrast,
        Self::Colour,
        Self::Brightness,
        Self::Sharpness,
    ];

    /// The picture that it makes at strength `m` from 0 to 1, with the `sign` 1 or −1.
    pub(super) fn apply(self, picture: Picture, m: f64, sign: f64) -> Picture {
        let factor = 1. + 0.9 * m * sign;
        let mut picture = picture;
        match self {
            Self::Identity => {}
            Self::ShearX => return Affine::shear_x(0.3 * m * sign).apply(&picture),
            Self::ShearY => return Affine::shear_y(0.3 * m * sign).apply(&picture),
            Self::TranslateX => {
                let by = 0.45 * m * sign * picture.size.width as f64;
                return Affine::shift(by.round(), 0.).apply(&picture);
            }
            Self::TranslateY => {
                let by = 0.45 * m * sign * picture.size.height as f64;
                return Affine::shift(0., by.round()).apply(&picture);
            }
            Self::Rotate => return Affine::rotation(30. * m * sign).apply(&picture),
            Self::AutoContrast => tones::auto_contrast(&mut picture),
            Self::Equalize => tones::equalize(&mut picture),
            Self::Solarize => tones::solarize(&mut picture, (256. * (1. - m)).round() as u16),
            Self::Posterize => tones::posterize(&mut picture, 8 - (4. * m).round() as u32),
            Self::Contrast => filters::contrast(&mut picture, factor),
            Self::Colour => filters::colour(&mut picture, factor),
            Self::Brightness => filters::brightness(&mut picture, factor),
            Self::Sharpness => filters::sharpness(&mut picture, factor),
        }
        picture
    }
}

/// The operations that the stream draws, one after the other.
pub(super) fn apply(config: &Config, picture: Picture, stream: Stream) -> Picture {
    let m = config.magnitude / 10.;
    (0..config.n as u64).fold(picture, |picture, index| {
        let operation =
            Operation::ALL[stream.below(2 * index, Operation::ALL.len() as u64) as usize];
        let sign = if stream.below(2 * index + 1, 2) == 0 { 1. } else { -1. };
        operation.apply(picture, m, sign)
    })
}

#[cfg(test)]
mod tests;
