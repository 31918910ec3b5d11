//! Which pictures are held out: as the source says, or a share of each class; and which share of the others is for a test.

use std::collections::BTreeMap;

use tealight_ops::rng::{Purpose, Stream};

use super::source::{PATH, Shares};
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
    /// The splits that the source gives, with a note if a share for validation is set. If it holds out nothing, that share of
    /// each class is held out. Pictures for a test are in neither.
    pub(super) fn new(store: &PictureStore, shares: Shares, seed: u64) -> Result<Self> {
        let Shares { validation: share, test } = shares;
        let validation = of_source(store, true);
        let others = of_source(store, false);
        let Some(&first) = validation.first() else {
            let [others, _] = without_test(store, others, test, seed)?;
            let part =
                Part { share: share.unwrap_or(SHARE), purpose: "held out", is_rest: test > 0. };
            let [train, validation] = divided(store, others, part, stream(seed))?;
            return Ok(Self { train, validation, unused_share: None });
        };
        let first = store.name_of(first as usize);
        if others.is_empty() {
            let message =
                format!("`{first}` is held out, as all others: there is no picture to train on");
            return Err(Error::config([PATH], message));
        }
        let unused_share = share.map(|share| {
            format!("`{VALIDATION}` = {share} is not used: the data hold out `{first}` and others")
        });
        let [train, _] = without_test(store, others, test, seed)?;
        Ok(Self { train, validation, unused_share })
    }

    /// The pictures to test a trained model on, as `validation`: those of the share for a test, and those that the model was
    /// trained on as `train`; without such a share all pictures as both.
    pub(super) fn to_test(store: &PictureStore, shares: Shares, seed: u64) -> Result<Self> {
        if shares.test == 0. {
            let all: Vec<u32> = (0..store.n()).map(|picture| picture as u32).collect();
            return Ok(Self { train: all.clone(), validation: all, unused_share: None });
        }
        let Self { train, .. } = Self::new(store, shares, seed)?;
        let [_, validation] = without_test(store, of_source(store, false), shares.test, seed)?;
        Ok(Self { train, validation, unused_share: None })
    }
}

/// The pictures that the source holds out, or the others, in ascending order.
fn of_source(store: &PictureStore, is_held_out: bool) -> Vec<u32> {
    let is_there =
        |&picture: &usize| (store.split_of(picture) == Some(Split::Validation)) == is_held_out;
    (0..store.n()).filter(is_there).map(|picture| picture as u32).collect()
}

/// The `pictures` of no test, and those of the share of each class that is for one.
fn without_test(
    store: &PictureStore,
    pictures: Vec<u32>,
    share: f64,
    seed: u64,
) -> Result<[Vec<u32>; 2]> {
    if share == 0. {
        return Ok([pictures, Vec::new()]);
    }
    let part = Part { share, purpose: "tested", is_rest: false };
    divided(store, pictures, part, stream(seed).fork_name("test"))
}

/// By which pictures are held out.
fn stream(seed: u64) -> Stream {
    Stream::new(seed, Purpose::Data).fork_name("images")
}

/// A part of the pictures of each class.
#[derive(Clone, Copy)]
struct Part {
    share: f64,
    /// What its pictures are, for errors.
    purpose: &'static str,
    /// Whether others are for a test.
    is_rest: bool,
}

/// The pictures to train on and those of a part, in ascending order. Of each class, the part has the pictures whose names have
/// the smallest random numbers, so that a picture that is added moves few others.
///
/// # Errors
/// If there is only one picture of a class.
fn divided(
    store: &PictureStore,
    pictures: Vec<u32>,
    Part { share, purpose, is_rest }: Part,
    stream: Stream,
) -> Result<[Vec<u32>; 2]> {
    let mut classes: BTreeMap<usize, Vec<(f64, u32)>> = BTreeMap::new();
    for picture in pictures {
        let place = stream.fork_name(store.name_of(picture as usize)).uniform(0);
        let class = store.class_of(picture as usize);
        classes.entry(class).or_default().push((place, picture));
    }
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    for (class, mut pictures) in classes {
        let n = pictures.len();
        if n < 2 {
            let message = format!(
                "the class `{}` has one picture{}, `{}`, which cannot be both trained on and {purpose}",
                store.classes()[class],
                if is_rest { " that is not for the test" } else { "" },
                store.name_of(pictures[0].1 as usize)
            );
            return Err(Error::config([PATH], message));
        }
        pictures.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let n_held_out = ((n as f64 * share).round() as usize).clamp(1, n - 1);
        let numbers =
            |part: &[(f64, u32)]| part.iter().map(|&(_, picture)| picture).collect::<Vec<_>>();
        held_out.extend(numbers(&pictures[..n_held_out]));
        train.extend(numbers(&pictures[n_held_out..]));
    }
    train.sort_unstable();
    held_out.sort_unstable();
    Ok([train, held_out])
}
