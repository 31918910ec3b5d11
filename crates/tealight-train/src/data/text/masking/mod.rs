//! Which tokens a masked language model has to guess (Devlin et al. 2018,
//! <https://arxiv.org/abs/1810.04805>, §3.1).
//!
//! ```text
//! each token is chosen with probability mlm_probability = 0.15; of those that are chosen
//!   0.8            become the mask token                    `mask`
//!   0.1            become a random token                    `random`
//!   the rest       stay as they are                         and have to be guessed all the same
//! ```
//!
//! Masks are drawn anew whenever a sequence is read, as a function of the seed and the place of the
//! sequence (dynamic masking; Liu et al. 2019, <https://arxiv.org/abs/1907.11692>, §4.1). Validation has
//! masks of its own, token by token and with the settings above, whatever training uses: figures of
//! different runs mean the same. Special tokens are never chosen, and never put in place of others.

mod choose;

use serde::{Deserialize, Serialize};
use tealight_model::names;
use tealight_ops::rng::{Purpose, Stream};

use super::sequences::Rows;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};

/// The seed of the masks of validation.
const EVALUATION_SEED: u64 = 0;

/// `[task.masking]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The share of the tokens that have to be guessed.
    pub mlm_probability: f64,
    /// Of those, the share in whose place the mask token stands.
    pub mask: f64,
    /// Of those, the share in whose place a random token stands.
    pub random: f64,
    /// What is chosen at a time.
    pub unit: Unit,
}

impl Default for Config {
    fn default() -> Self {
        Self { mlm_probability: 0.15, mask: 0.8, random: 0.1, unit: Unit::Token }
    }
}

names! {
    /// What is masked at a time.
    pub enum Unit {
        /// Each token by itself.
        "token" => Token,
        /// All tokens of a word.
        "word" => Word,
        /// One to ten words in a row, 3.8 on average (SpanBERT; Joshi et al. 2019).
        "span" => Span,
    }
}

impl Config {
    /// Checks what does not depend on the data.
    pub fn validate(&self) -> Result<()> {
        let Self { mlm_probability, mask, random, .. } = *self;
        if !(mlm_probability > 0. && mlm_probability < 1.) {
            let key = "task.masking.mlm_probability";
            let message = format!("`{key}` = {mlm_probability} must be between 0 and 1");
            return Err(Error::config([key], message));
        }
        let keys = ["task.masking.mask", "task.masking.random"];
        for (key, share) in keys.into_iter().zip([mask, random]) {
            if !(0. ..=1.).contains(&share) {
                let message = format!("`{key}` = {share} must be from 0 to 1");
                return Err(Error::config([key], message));
            }
        }
        if mask + random > 1. + 1e-9 {
            let message = format!(
                "`task.masking.mask` = {mask} and `task.masking.random` = {random} must not exceed 1 \
                 together"
            );
            return Err(Error::config(keys, message));
        }
        Ok(())
    }
}

/// A batch of which some tokens have to be guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    /// `(batch · seq_len)`: what the model reads.
    pub ids: Vec<u32>,
    /// `(n)`: the places in `ids` of what it has to guess, in order.
    pub positions: Vec<u32>,
    /// `(n)`: what stood there.
    pub labels: Vec<u32>,
}

/// Masks batches for training and for validation.
#[derive(Debug)]
pub struct Masking {
    train: Config,
    evaluation: Config,
    seed: u64,
    vocabulary: Vocabulary,
}

impl Masking {
    /// The masks of a seed, for sequences of this tokenizer.
    ///
    /// # Errors
    /// If the settings are out of range, or there is no mask token, or no other.
    pub fn new(config: &Config, tokenizer: &Tokenizer, seed: u64) -> Result<Self> {
        config.validate()?;
        let vocabulary = Vocabulary::of(tokenizer)?;
        Ok(Self { train: config.clone(), evaluation: Config::default(), seed, vocabulary })
    }

    /// Masks sequences for training; the first of them stands at place `first` of all that are read.
    pub fn train(&self, rows: &Rows, first: u64) -> Masked {
        self.masked(&self.train, self.seed, rows, first)
    }

    /// Masks sequences of the validation split, the first of which has the number `first`. The same
    /// in every run.
    pub fn evaluation(&self, rows: &Rows, first: u64) -> Masked {
        self.masked(&self.evaluation, EVALUATION_SEED, rows, first)
    }

    fn masked(&self, config: &Config, seed: u64, rows: &Rows, first: u64) -> Masked {
        let stream = Stream::new(seed, Purpose::Data).fork_name("masking");
        let mut masked = Masked { ids: rows.ids.clone(), positions: vec![], labels: vec![] };
        for ((place, &len), row) in (first..).zip(&rows.lens).zip(0..) {
            let start = row * rows.seq_len;
            let ids = &mut masked.ids[start..start + len];
            for (at, label) in self.vocabulary.mask(config, stream.fork(place), ids) {
                masked.positions.push((start + at) as u32);
                masked.labels.push(label);
            }
        }
        masked
    }
}

/// What masking has to know of tokens.
#[derive(Debug)]
struct Vocabulary {
    mask: u32,
    /// All ids that are not special.
    ordinary: Vec<u32>,
    /// By id.
    is_special: Vec<bool>,
    /// By id: whether a word begins with it.
    starts_word: Vec<bool>,
}

impl Vocabulary {
    fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let Some(mask) = tokenizer.special().mask else {
            let message =
                "a masked language model needs a tokenizer with a mask token ([MASK], <mask>)";
            return Err(Error::config(["task.tokenizer"], message));
        };
        let ids = 0..tokenizer.vocab_size() as u32;
        let is_special: Vec<bool> = ids.clone().map(|id| tokenizer.is_special(id)).collect();
        let ordinary: Vec<u32> = ids.filter(|&id| !is_special[id as usize]).collect();
        if ordinary.is_empty() {
            let message = "the tokenizer has no token but special ones";
            return Err(Error::config(["task.tokenizer"], message));
        }
        Ok(Self { mask, ordinary, is_special, starts_word: tokenizer.word_starts() })
    }

    /// Masks one sequence; places and former ids of what has to be guessed, in order.
    fn mask(&self, config: &Config, stream: Stream, ids: &mut [u32]) -> Vec<(usize, u32)> {
        let [choice, fate, random] = [0, 1, 2].map(|purpose| stream.fork(purpose));
        let groups = choose::groups(self, config, choice, ids);
        let mut chosen: Vec<(usize, u32)> = Vec::new();
        for group in groups {
            let first = group.start as u64;
            for at in group {
                // A span is replaced as a whole (Joshi et al. 2019, §3.1), else each token for itself.
                let of = if config.unit == Unit::Span { first } else { at as u64 };
                let draw = fate.uniform(of);
                chosen.push((at, ids[at]));
                if draw < config.mask {
                    ids[at] = self.mask;
                } else if draw < config.mask + config.random {
                    let which = random.below(at as u64, self.ordinary.len() as u64);
                    ids[at] = self.ordinary[which as usize];
                }
            }
        }
        chosen.sort_unstable();
        chosen
    }
}

#[cfg(test)]
mod tests;
