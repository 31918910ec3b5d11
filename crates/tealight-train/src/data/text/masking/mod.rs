//! Masking for masked language models (Devlin et al. 2018, <https://arxiv.org/abs/1810.04805>, §3.1).
//!
//! ```text
//! each token is chosen for prediction with probability mlm_probability = 0.15; of the chosen tokens
//!   0.8            become the mask token                    `mask`
//!   0.1            become a random token                    `random`
//!   the rest       stay unchanged
//! ```
//!
//! Each access to a sequence draws new masks, a function of the seed and the place of the sequence (dynamic
//! masking; Liu et al. 2019, <https://arxiv.org/abs/1907.11692>, §4.1). Validation always masks single
//! tokens with the settings above and a fixed seed, so that results of different runs are comparable.
//! Special tokens are neither chosen nor drawn.

mod choose;

use tealight_model::names;
use tealight_ops::rng::{Purpose, Stream};

use super::sequences::Rows;
use super::tokenizer::Tokenizer;
use crate::checks::{check, share};
use crate::error::{Error, Result};
use crate::settings::settings;

/// The seed of the masks of validation.
const EVALUATION_SEED: u64 = 0;

settings! {
    /// `[task.masking]`
    pub struct Config {
        /// The share of the tokens that are chosen for prediction.
        pub mlm_probability: f64 = 0.15,
        /// The share of the chosen tokens that become the mask token.
        pub mask: f64 = 0.8,
        /// The share of the chosen tokens that become a random token.
        pub random: f64 = 0.1,
        /// The unit that is chosen.
        pub unit: Unit = Unit::Token,
    }
}

names! {
    /// The unit that is masked.
    pub enum Unit {
        /// Single tokens.
        "token" => Token,
        /// Whole words.
        "word" => Word,
        /// Spans of one to ten words, 3.8 on average (SpanBERT; Joshi et al. 2019).
        "span" => Span,
    }
}

impl Config {
    /// Checks the settings, without the data.
    pub fn validate(&self) -> Result<()> {
        let Self { mlm_probability, mask, random, .. } = *self;
        share("task.masking.mlm_probability", mlm_probability)?;
        let keys = ["task.masking.mask", "task.masking.random"];
        for (key, value) in keys.into_iter().zip([mask, random]) {
            check(key, value, |value| (0. ..=1.).contains(&value), "must be from 0 to 1")?;
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

/// A batch with masked tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    /// `(batch · seq_len)`: the masked ids, which the model reads.
    pub ids: Vec<u32>,
    /// `(n)`: the indices in `ids` of the tokens to predict, in order.
    pub positions: Vec<u32>,
    /// `(n)`: the original ids at `positions`.
    pub labels: Vec<u32>,
}

/// Masks batches for training and for validation.
#[derive(Debug)]
pub struct Masking {
    config: Config,
    seed: u64,
    vocabulary: Vocabulary,
}

impl Masking {
    /// Masks sequences of `tokenizer` with random numbers of `seed`.
    ///
    /// # Errors
    /// If the settings are out of range, or the tokenizer has no mask token or only special tokens.
    pub fn new(config: &Config, tokenizer: &Tokenizer, seed: u64) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            config: config.clone(),
            seed,
            vocabulary: Vocabulary::from_tokenizer(tokenizer)?,
        })
    }

    /// Masks sequences for training; `first` is the place of the first one in the endless sequence of epochs.
    pub fn train(&self, rows: &Rows, first: u64) -> Masked {
        self.masked(&self.config, self.seed, rows, first)
    }

    /// Masks sequences of the validation split; `first` is the number of the first one. The masks are the
    /// same in every run.
    pub fn evaluation(&self, rows: &Rows, first: u64) -> Masked {
        self.masked(&Config::default(), EVALUATION_SEED, rows, first)
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

/// The properties of tokens that masking depends on.
#[derive(Debug)]
struct Vocabulary {
    mask: u32,
    /// The ids that are not special.
    ordinary: Vec<u32>,
    /// By id: whether the token is special.
    is_special: Vec<bool>,
    /// By id: whether the token begins a word.
    starts_word: Vec<bool>,
}

impl Vocabulary {
    fn from_tokenizer(tokenizer: &Tokenizer) -> Result<Self> {
        let Some(mask) = tokenizer.special().mask else {
            let message =
                "a masked language model needs a tokenizer with a mask token ([MASK], <mask>)";
            return Err(Error::config(["task.tokenizer"], message));
        };
        let ids = 0..tokenizer.vocab_size() as u32;
        let is_special: Vec<bool> = ids.clone().map(|id| tokenizer.is_special(id)).collect();
        let ordinary: Vec<u32> = ids.filter(|&id| !is_special[id as usize]).collect();
        if ordinary.is_empty() {
            let message = "the tokenizer has only special tokens";
            return Err(Error::config(["task.tokenizer"], message));
        }
        Ok(Self { mask, ordinary, is_special, starts_word: tokenizer.word_starts() })
    }

    /// Masks one sequence. Returns the positions and original ids of the tokens to predict, in order.
    fn mask(&self, config: &Config, stream: Stream, ids: &mut [u32]) -> Vec<(usize, u32)> {
        let [choice, replacement, random] = [0, 1, 2].map(|purpose| stream.fork(purpose));
        let ranges = choose::ranges(self, config, choice, ids);
        let mut chosen: Vec<(usize, u32)> = Vec::new();
        for range in ranges {
            let first = range.start as u64;
            for at in range {
                // All tokens of a span share one draw (Joshi et al. 2019, §3.1).
                let index = if config.unit == Unit::Span { first } else { at as u64 };
                let draw = replacement.uniform(index);
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
