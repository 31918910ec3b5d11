//! From bytes to the numbers that a model reads.
//!
//! ```text
//! x = (b / 255 − mean) / deviation                                                          per channel
//! ```

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Mean and standard deviation of each channel, of pixels in [0, 1].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// The means.
    pub mean: Vec<f32>,
    /// The standard deviations.
    pub deviation: Vec<f32>,
}

/// Sums over the values of a channel, exact for 2⁴⁸ of them.
#[derive(Clone, Copy, Default)]
struct Sums {
    sum: u64,
    squares: u64,
}

impl Normalisation {
    /// That of these pictures, each of `channels` numbers per pixel. A channel that is constant has the deviation 1.
    pub(super) fn from_pictures<'a>(
        pictures: impl IndexedParallelIterator<Item = &'a [u8]>,
        n_bytes: usize,
        channels: usize,
    ) -> Self {
        let n = (pictures.len() * n_bytes / channels) as f64;
        let of_picture = |pixels: &[u8]| {
            let mut sums = vec![Sums::default(); channels];
            for pixel in pixels.chunks_exact(channels) {
                for (sums, &byte) in sums.iter_mut().zip(pixel) {
                    sums.sum += u64::from(byte);
                    sums.squares += u64::from(byte) * u64::from(byte);
                }
            }
            sums
        };
        let add = |mut a: Vec<Sums>, b: Vec<Sums>| {
            for (a, b) in a.iter_mut().zip(b) {
                a.sum += b.sum;
                a.squares += b.squares;
            }
            a
        };
        // Integers: the sums do not depend on the order in which threads add them.
        let sums = pictures.map(of_picture).reduce(|| vec![Sums::default(); channels], add);
        let mean = sums.iter().map(|sums| sums.sum as f64 / n / 255.);
        let mean: Vec<f64> = mean.collect();
        let deviation = sums.iter().zip(&mean).map(|(sums, mean)| {
            let variance = sums.squares as f64 / n / (255. * 255.) - mean * mean;
            if variance > 1e-12 { variance.sqrt() as f32 } else { 1. }
        });
        let deviation = deviation.collect();
        Self { mean: mean.into_iter().map(|mean| mean as f32).collect(), deviation }
    }

    /// The numbers of each byte in each channel.
    pub(crate) fn table(&self) -> Table {
        let channel = |(&mean, &deviation): (&f32, &f32)| {
            std::array::from_fn(|byte| (byte as f32 / 255. - mean) / deviation)
        };
        Table(self.mean.iter().zip(&self.deviation).map(channel).collect())
    }
}

/// The number of each byte, by channel.
#[derive(Clone, Debug)]
pub(crate) struct Table(Vec<[f32; 256]>);

impl Table {
    /// `pixels (height, width, channels)` as numbers.
    pub(crate) fn write(&self, pixels: &[u8], numbers: &mut [f32]) {
        match &self.0[..] {
            [grey] => {
                for (number, &byte) in numbers.iter_mut().zip(pixels) {
                    *number = grey[usize::from(byte)];
                }
            }
            tables => {
                let n = tables.len();
                for (numbers, bytes) in numbers.chunks_exact_mut(n).zip(pixels.chunks_exact(n)) {
                    for ((number, &byte), table) in numbers.iter_mut().zip(bytes).zip(tables) {
                        *number = table[usize::from(byte)];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_their_own_mean_and_deviation() {
        let pictures: [&[u8]; 2] = [&[0, 255, 7, 51, 255, 7], &[102, 255, 7, 51, 0, 7]];
        let found = Normalisation::from_pictures(pictures.into_par_iter(), 6, 3);
        let expected = [0.2, 0.75, 7. / 255.];
        assert!(found.mean.iter().zip(expected).all(|(a, b)| (a - b as f32).abs() < 1e-6));
        // (0, .2, .4, .2) and (1, 1, 1, 0); the third channel is constant.
        let expected = [0.02_f32.sqrt(), 0.1875_f32.sqrt(), 1.];
        assert!(found.deviation.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
        let mut numbers = [0.; 6];
        found.table().write(pictures[0], &mut numbers);
        assert!((numbers[0] + 0.2 / expected[0]).abs() < 1e-5 && numbers[5] == 0.);
        assert!((numbers[1] - 0.25 / expected[1]).abs() < 1e-5);
    }
}
