//! Batches of pictures with their classes.
//!
//! ```text
//! −Σ_c q_c log softmax(x)_c        q = [c = class], or λ [c = class] + (1 − λ) [c = other] of mixed pictures
//! ```
//!
//! Label smoothing ε replaces q by (1 − ε) q + ε / classes.

use candle_core::Tensor;
use tealight_ops::cross_entropy::{cross_entropy, cross_entropy_soft, hits};
use tealight_ops::device::tensor_of;
use tealight_ops::threads;

use crate::data::images::augment::{Augmentation, Mix};
use crate::data::images::{Labelled, Picture};
use crate::error::Result;
use crate::inference::image_classifier::Pixels;
use crate::task::{Inputs, Loss};

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// `(batch, height, width, channels)`, normalised.
    pub(super) pictures: Tensor,
    /// `(batch)`: the class; of mixed pictures that of the larger share.
    labels: Tensor,
    /// `(batch, n_classes)`: the shares of the classes, where pictures are mixed.
    targets: Option<Tensor>,
}

/// What the pictures of all batches have in common.
#[derive(Debug)]
pub(super) struct Batches {
    pub(super) pixels: Pixels,
    pub(super) n_classes: usize,
}

impl Batches {
    /// Pictures as they are.
    pub(super) fn plain(&self, pictures: &[Labelled<'_>]) -> Result<Batch> {
        let pixels: Vec<&[u8]> = pictures.iter().map(|picture| picture.pixels).collect();
        let labels: Vec<u32> = pictures.iter().map(|picture| picture.class).collect();
        let n = labels.len();
        let labels = tensor_of(labels, n, &self.pixels.device)?;
        Ok(Batch { pictures: self.pixels.tensor(&pixels)?, labels, targets: None })
    }

    /// Pictures as the examples at `places` see them. Each is mixed with the next one, the last with the first.
    pub(super) fn augmented(
        &self,
        pictures: &[Labelled<'_>],
        places: std::ops::Range<u64>,
        augmentation: &Augmentation,
        mixes: bool,
    ) -> Result<Batch> {
        let examples: Vec<(u64, &Labelled<'_>)> = places.zip(pictures).collect();
        let augmented: Vec<Picture> = threads::map(examples.clone(), &|(place, picture)| {
            augmentation.picture(picture.pixels, self.pixels.size, place)
        });
        let n = augmented.len();
        let mix = |&(place, _): &(u64, _)| augmentation.mix(self.pixels.size, place);
        let mixed: Vec<Option<Mix>> = examples.iter().map(mix).collect();
        let pixels = |at: usize| &augmented[at % n].pixels[..];
        let tensor = self.pixels.written(n, &|at, numbers| {
            self.write_mixed(mixed[at].as_ref(), [pixels(at), pixels(at + 1)], numbers);
        })?;
        let class = |at: usize| pictures[at % n].class;
        let shares = mixed.iter().enumerate().map(|(at, mix)| {
            let share = mix.as_ref().map_or(1., |mix| mix.share(self.pixels.size));
            Shares { class: class(at), other: class(at + 1), share: share as f32 }
        });
        let shares: Vec<Shares> = shares.collect();
        let labels: Vec<u32> = shares.iter().map(Shares::larger).collect();
        let labels = tensor_of(labels, n, &self.pixels.device)?;
        let targets = mixes.then(|| {
            let targets = shares.iter().flat_map(|shares| shares.targets(self.n_classes)).collect();
            tensor_of(targets, (n, self.n_classes), &self.pixels.device)
        });
        Ok(Batch { pictures: tensor, labels, targets: targets.transpose()? })
    }

    /// The numbers of a picture that is mixed with another.
    fn write_mixed(&self, mix: Option<&Mix>, [own, other]: [&[u8]; 2], numbers: &mut [f32]) {
        self.pixels.table.write(own, numbers);
        match mix {
            None => {}
            Some(&Mix::Mean(share)) => {
                let share = share as f32;
                let mut others = vec![0.; numbers.len()];
                self.pixels.table.write(other, &mut others);
                for (number, other) in numbers.iter_mut().zip(others) {
                    *number = share * *number + (1. - share) * other;
                }
            }
            Some(Mix::Rectangle(rectangle)) => {
                for row in rectangle.rows_of(self.pixels.size) {
                    self.pixels.table.write(&other[row.clone()], &mut numbers[row]);
                }
            }
        }
    }
}

/// The classes of a picture with their shares.
struct Shares {
    class: u32,
    other: u32,
    share: f32,
}

impl Shares {
    /// The class with the larger share.
    fn larger(&self) -> u32 {
        if self.share >= 0.5 { self.class } else { self.other }
    }

    /// The share of each class.
    fn targets(&self, n_classes: usize) -> Vec<f32> {
        let mut targets = vec![0.; n_classes];
        targets[self.class as usize] += self.share;
        targets[self.other as usize] += 1. - self.share;
        targets
    }
}

impl Batch {
    pub(super) fn inputs(&self) -> Inputs<'_> {
        let tensors = [&self.pictures, &self.labels].into_iter().chain(&self.targets);
        Inputs { tensors: tensors.collect(), count: self.labels.elem_count() as f64 }
    }

    /// Cross-entropy and accuracy of `logits (batch, n_classes)`.
    pub(super) fn loss(&self, logits: &Tensor, label_smoothing: f64) -> Result<Loss> {
        let (_batch, n_classes) = logits.dims2()?;
        let sum = match &self.targets {
            None => cross_entropy(logits, &self.labels, label_smoothing)?,
            Some(targets) => {
                let spread = label_smoothing / n_classes as f64;
                let targets = targets.affine(1. - label_smoothing, spread)?;
                cross_entropy_soft(logits, &targets.to_dtype(logits.dtype())?)?
            }
        };
        let hits = hits(logits, &self.labels)?;
        Ok(Loss::with_hits(sum, self.labels.elem_count(), "accuracy", &hits))
    }
}
