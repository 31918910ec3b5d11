//! Which pictures are held out: as the source says, or a share of each class.

use tealight_ops::rng::{Purpose, Stream};

use super::source::PATH;
use super::store::PictureStore;
use crate::data::split::Split;
use crate::error::{Error, Result};

const VALIDATION: &str = "task.data.validation";
/// The share that is held out where no setting gives one.
const SHARE: f64 = 0.1;

/// The pictures of both splits, by their number in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Splits {
    pub(super) train: Vec<u32>,
    pub(super) validation: Vec<u32>,
    /// A note, if a share is set and not used.
    pub(super) unused_share: Option<String>,
}

impl Splits {
    /// The splits that the source gives, with a note if `share` is set. If it holds out nothing, `share` of each class
    /// is held out: the pictures whose names have the smallest random numbers, so that a picture that is added moves
    /// few others.
    pub(super) fn new(store: &PictureStore, share: Option<f64>, seed: u64) -> Result<Self> {
        let of =
            |split| (0..store.n()).filter(move |&picture| store.split_of(picture) == Some(split));
        let numbers = |split| of(split).map(|picture| picture as u32).collect::<Vec<u32>>();
        let (train, validation) = (numbers(Split::Train), numbers(Split::Validation));
        if validation.is_empty() {
            return Self::drawn(store, share.unwrap_or(SHARE), seed);
        }
        let first = validation[0] as usize;
        if train.is_empty() {
            let message = format!(
                "`{}` is held out, as all others: there is no picture to train on",
                store.name_of(first)
            );
            return Err(Error::config([PATH], message));
        }
        let unused_share = share.map(|share| {
            format!(
                "`{VALIDATION}` = {share} is not used: the data hold out `{}` and others",
                store.name_of(first)
            )
        });
        Ok(Self { train, validation, unused_share })
    }

    /// All pictures, in both splits.
    pub(super) fn all(store: &PictureStore) -> Self {
        let all: Vec<u32> = (0..store.n()).map(|picture| picture as u32).collect();
        Self { train: all.clone(), validation: all, unused_share: None }
    }

    fn drawn(store: &PictureStore, share: f64, seed: u64) -> Result<Self> {
        let stream = Stream::new(seed, Purpose::Data).fork_name("images");
        let mut classes = vec![Vec::new(); store.classes().len()];
        for picture in 0..store.n() {
            let place = stream.fork_name(store.name_of(picture)).uniform(0);
            classes[store.class_of(picture)].push((place, picture as u32));
        }
        let mut splits = Self::default();
        for (class, mut pictures) in classes.into_iter().enumerate() {
            let n = pictures.len();
            if n < 2 {
                let message = format!(
                    "the class `{}` has one picture, `{}`, which cannot be both trained on and held out",
                    store.classes()[class],
                    store.name_of(pictures[0].1 as usize)
                );
                return Err(Error::config([PATH], message));
            }
            pictures.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let n_held_out = ((n as f64 * share).round() as usize).clamp(1, n - 1);
            let numbers =
                |part: &[(f64, u32)]| part.iter().map(|&(_, picture)| picture).collect::<Vec<_>>();
            splits.validation.extend(numbers(&pictures[..n_held_out]));
            splits.train.extend(numbers(&pictures[n_held_out..]));
        }
        splits.train.sort_unstable();
        splits.validation.sort_unstable();
        Ok(splits)
    }
}
