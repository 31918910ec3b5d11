//! `[task.data] kind = "shapes"`: noisy shapes whose best possible classification is known.
//!
//! A picture is a white shape k on black, of a random size s at a random position r within the picture. Then every
//! pixel is flipped with probability p:
//!
//! ```text
//! k, s, r ~ uniform                    m = the pixels of shape k of size s at r
//! P(x | k, s, r) = Π_i (1 − p) [x_i = m_i] + p [x_i ≠ m_i]
//! ```
//!
//! [`posterior`](Shapes::posterior) sums over all sizes and positions, so that P(k | x) is exact, and no model can
//! be better than it.

mod masks;

use tealight_ops::rng::{Purpose, Stream};

pub use masks::NAMES;

use super::item::{Content, Item, Reading, Source};
use super::picture::{Picture, PictureSize};
use crate::checks::{at_most, check};
use crate::data::file::DataFile;
use crate::data::fingerprint::Fnv128;
use crate::data::progress::Progress;
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::settings::settings;
use masks::Mask;

/// The largest side of a picture: a row is a word of 64 bits.
const MAX_SIDE: usize = 64;
/// The most pictures of a split.
const MAX_PICTURES: u64 = 10_000_000;

settings! {
    /// `[task.data] kind = "shapes"`
    pub struct Config {
        /// How many shapes there are, in the order: disc, saltire, square, cross, diamond, frame, ring, triangle.
        pub n_classes: usize = 8,
        /// Rows and columns of a picture.
        pub side: usize = 16,
        /// Rows and columns of the smallest shape.
        pub smallest: usize = 7,
        /// Rows and columns of the largest shape.
        pub largest: usize = 11,
        /// The probability that a pixel is flipped.
        pub noise: f64 = 0.2,
        /// Pictures to train on.
        pub n_train: usize = 20_000,
        /// Pictures that are held out.
        pub n_validation: usize = 2000,
    }
}

impl Config {
    pub(super) fn validate(&self) -> Result<()> {
        let Self { n_classes, side, smallest, largest, noise, n_train, n_validation } = *self;
        let between = |key: &str, value: usize, least: usize, most: usize| {
            let rule = format!("must be at least {least} and at most {most}");
            check(key, value, |value| (least..=most).contains(&value), &rule)
        };
        between("task.data.n_classes", n_classes, 2, NAMES.len())?;
        between("task.data.side", side, 5, MAX_SIDE)?;
        between("task.data.smallest", smallest, 5, side)?;
        between("task.data.largest", largest, smallest, side)?;
        let rule = "must be above 0 and below .5";
        check("task.data.noise", noise, |noise| noise > 0. && noise < 0.5, rule)?;
        for (key, n) in [("task.data.n_train", n_train), ("task.data.n_validation", n_validation)] {
            check(key, n, |n| n > 0, "must be positive")?;
            at_most(key, n as u64, MAX_PICTURES)?;
        }
        Ok(())
    }
}

/// The generator.
#[derive(Clone, Debug)]
pub struct Shapes {
    config: Config,
    stream: Stream,
    /// The shapes of each class, by size.
    masks: Vec<Vec<Mask>>,
}

/// Forks of the stream of a picture.
const PLACE: u64 = 0;
const NOISE: u64 = 1;

impl Shapes {
    /// The pictures of a seed.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(config: &Config, seed: u64) -> Result<Self> {
        config.validate()?;
        let sizes = config.smallest..=config.largest;
        let masks = (0..config.n_classes)
            .map(|class| sizes.clone().map(|size| Mask::new(class, size)).collect())
            .collect();
        let stream = Stream::new(seed, Purpose::Data).fork_name("shapes");
        Ok(Self { config: config.clone(), stream, masks })
    }

    /// The rows of picture `index` of a split, a bit for each pixel, and its class.
    pub fn draw(&self, split: Split, index: u64) -> (Vec<u64>, usize) {
        let Config { side, noise, .. } = self.config;
        let stream = self.stream.fork(split as u64).fork(index);
        let place = stream.fork(PLACE);
        let class = place.below(0, self.masks.len() as u64) as usize;
        let masks = &self.masks[class];
        let mask = &masks[place.below(1, masks.len() as u64) as usize];
        let n_places = (side - mask.size + 1) as u64;
        let (top, left) = (place.below(2, n_places) as usize, place.below(3, n_places));
        let mut rows = vec![0; side];
        for (row, bits) in rows[top..].iter_mut().zip(&mask.rows) {
            *row = bits << left;
        }
        let noise_stream = stream.fork(NOISE);
        for (index, row) in rows.iter_mut().enumerate() {
            let flipped =
                |column: &usize| noise_stream.uniform((index * side + column) as u64) < noise;
            *row ^= (0..side).filter(flipped).fold(0, |bits, column| bits | 1 << column);
        }
        (rows, class)
    }

    /// P(class | picture) for the rows of a picture.
    ///
    /// ```text
    /// P(k | x) ∝ Σ_s Σ_r 1 / n_r exp(λ (2 #{i : m_i = x_i = 1} − #{i : m_i = 1})),     λ = ln((1 − p) / p)
    /// ```
    ///
    /// n_r is the number of positions of size s. Cost: O(classes · sizes · side²) words of a shape.
    pub fn posterior(&self, rows: &[u64]) -> Vec<f64> {
        let Config { side, noise, .. } = self.config;
        let lambda = ((1. - noise) / noise).ln();
        // The exponents of a class with their weights, one for each size.
        let of_mask = |mask: &Mask| {
            let n_places = side - mask.size + 1;
            let mut counts = vec![0_u32; mask.area as usize + 1];
            for top in 0..n_places {
                for left in 0..n_places {
                    counts[mask.overlap(&rows[top..], left) as usize] += 1;
                }
            }
            (mask.area, (n_places * n_places) as f64, counts)
        };
        let all: Vec<Vec<_>> =
            self.masks.iter().map(|masks| masks.iter().map(of_mask).collect()).collect();
        let exponent = |overlap: usize, area: u32| lambda * (2. * overlap as f64 - f64::from(area));
        let largest = all.iter().flatten().filter_map(|(area, _, counts)| {
            let last = counts.iter().rposition(|&n| n > 0);
            last.map(|overlap| exponent(overlap, *area))
        });
        let largest = largest.fold(f64::MIN, f64::max);
        let of_size = |(area, n_places, counts): &(u32, f64, Vec<u32>)| {
            let term = |(overlap, &n): (usize, &u32)| {
                f64::from(n) * (exponent(overlap, *area) - largest).exp()
            };
            counts.iter().enumerate().map(term).sum::<f64>() / n_places
        };
        let evidence = all.iter().map(|sizes| sizes.iter().map(of_size).sum::<f64>());
        let evidence: Vec<f64> = evidence.collect();
        let total: f64 = evidence.iter().sum();
        evidence.into_iter().map(|one| one / total).collect()
    }

    /// The names of the classes, in the order of [`Self::posterior`].
    pub fn classes(&self) -> &'static [&'static str] {
        &NAMES[..self.masks.len()]
    }

    /// Picture `index` of a split, and its class.
    pub fn picture(&self, split: Split, index: u64) -> (Picture, usize) {
        let side = self.config.side;
        let (rows, class) = self.draw(split, index);
        let pixel = |row: u64| (0..side).map(move |column| 255 * (row >> column & 1) as u8);
        let pixels = rows.into_iter().flat_map(pixel).collect();
        (Picture::new(PictureSize { height: side, width: side, channels: 1 }, pixels), class)
    }
}

impl Source for Shapes {
    fn fingerprint(&self, _progress: &mut dyn FnMut(Progress)) -> Result<u128> {
        let mut hash = Fnv128::default();
        hash.write(format!("{:?} {:?}", self.config, self.stream).as_bytes());
        Ok(hash.finish())
    }

    fn read(&self, each: &mut dyn FnMut(Item, Progress) -> Reading) -> Reading {
        let Config { n_train, n_validation, .. } = self.config;
        let (mut done, total) = (0, (n_train + n_validation) as u64);
        let splits =
            [(Split::Train, "train", n_train), (Split::Validation, "validation", n_validation)];
        for (split, folder, n) in splits {
            for index in 0..n as u64 {
                let (picture, class) = self.picture(split, index);
                let (name, class) = (format!("{folder}/{index}"), NAMES[class].to_owned());
                let content = Content::Pixels(picture);
                done += 1;
                each(Item { name, class, split: Some(split), content }, Progress { done, total })?;
            }
        }
        Ok(())
    }

    fn files(&self) -> Vec<DataFile> {
        Vec::new()
    }

    fn numbered_classes(&self) -> Option<Vec<String>> {
        Some(self.classes().iter().map(|&name| name.to_owned()).collect())
    }

    fn is_drawn(&self) -> bool {
        true
    }

    fn fault(&self, name: &str, rule: &str) -> Error {
        Error::config(["task.data.kind"], format!("the drawn picture `{name}` {rule}"))
    }
}

#[cfg(test)]
mod tests;
