//! What tasks of text share: a corpus that has become tokens, and their sequences.

use std::fmt;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use candle_core::Device;
use tealight_model::Mask;
use tealight_model::block::BlockMaps;
use tealight_ops::device::tensor_of;

use super::{Reading, Split};
use crate::data::DataFile;
use crate::data::text::Holdout;
use crate::data::text::corpus::{CorpusConfig, Progress};
use crate::data::text::sequences::{Rows, Sequence, Sequences, Spec};
use crate::data::text::store::{Stage, TokenStore, folder};
use crate::data::text::tokenizer::{FILE, Tokenizer, TokenizerConfig};
use crate::error::{Error, Result};
use crate::limits::positive;

/// Tokens in one forward pass of an evaluation.
const EVALUATION_TOKENS: usize = 1 << 13;

/// What is there before a corpus is read, and who hears how far that has come.
#[derive(Default)]
pub struct Preparing<'a> {
    /// The directory of a run that has its tokenizer already.
    pub kept: Option<&'a Path>,
    /// Is told how far a corpus has been read or tokenised.
    pub progress: Option<&'a mut dyn FnMut(Stage, Progress)>,
}

impl fmt::Debug for Preparing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Preparing").field("kept", &self.kept).finish_non_exhaustive()
    }
}

/// The settings that tasks of text have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings<'a> {
    pub(super) corpus: &'a CorpusConfig,
    pub(super) tokenizer: &'a TokenizerConfig,
    pub(super) cache: Option<&'a Path>,
    pub(super) spec: Spec,
    pub(super) n_validation: usize,
    pub(super) seed: u64,
}

/// A tokenizer, and the sequences of both splits.
#[derive(Debug)]
pub(super) struct Texts {
    pub(super) tokenizer: Tokenizer,
    /// What the text and its tokens come from.
    data: Vec<DataFile>,
    train: Sequences,
    validation: Sequences,
    seq_len: usize,
    /// How many held-out sequences are looked at.
    n_validation: u64,
    n_tokens: u64,
}

impl Texts {
    /// Reads the corpus, unless its tokens are there already, and trains a tokenizer if there is none.
    pub(super) fn new(settings: &Settings<'_>, preparing: Preparing<'_>) -> Result<Self> {
        let Settings { corpus, tokenizer, cache, spec, n_validation, seed } = *settings;
        let holdout = Holdout::new(seed, corpus.validation_share());
        let corpus = corpus.open(seed)?;
        let texts = || holdout.train_texts(&*corpus);
        let tokenizer = kept_or_trained(preparing.kept, tokenizer, texts)?;
        let silent = &mut |_, _| {};
        let progress = preparing.progress.unwrap_or(silent);
        let store = TokenStore::of(&*corpus, &tokenizer, || folder(cache), progress)?;
        let store = Arc::new(store);
        let special = tokenizer.special();
        let of = |split| Sequences::new(&store, holdout, split, spec, special, seed);
        let (train, validation) = (of(Split::Train)?, of(Split::Validation)?);
        let n_validation = validation.n().min(n_validation as u64);
        let mut data = corpus.files();
        data.push(tokenizer_file(&tokenizer)?);
        Ok(Self {
            data,
            n_tokens: store.n_tokens(),
            tokenizer,
            train,
            validation,
            seq_len: spec.seq_len,
            n_validation,
        })
    }

    /// Checks that the token embedding has a row for each token.
    pub(super) fn check_vocab_size(&self, vocab_size: Option<usize>) -> Result<()> {
        check_vocab_size(&self.tokenizer, vocab_size)
    }

    /// The training sequences, in an order of their own for each epoch.
    pub(super) fn train(&self) -> &Sequences {
        &self.train
    }

    /// All held-out sequences.
    pub(super) fn validation(&self) -> &Sequences {
        &self.validation
    }

    /// Held-out sequence `index` of those that are looked at, spread over all that are held out.
    pub(super) fn held_out(&self, index: u64) -> Sequence {
        self.validation.at(index * self.validation.n() / self.n_validation)
    }

    /// The sequences that are looked at in batch `index` of an evaluation, after the place of the first.
    pub(super) fn held_out_batch(&self, index: u64) -> (u64, Vec<Sequence>) {
        let n = self.evaluation_batch();
        let places = index * n..self.n_validation.min((index + 1) * n);
        (index * n, places.map(|place| self.held_out(place)).collect())
    }

    /// All sequences that are looked at.
    pub(super) fn all_held_out(&self) -> impl Iterator<Item = Sequence> {
        (0..self.n_validation).map(|index| self.held_out(index))
    }

    /// Batches of an evaluation.
    pub(super) fn n_held_out_batches(&self) -> u64 {
        self.n_validation.div_ceil(self.evaluation_batch())
    }

    /// Sequences in one forward pass of an evaluation.
    pub(super) fn evaluation_batch(&self) -> u64 {
        (EVALUATION_TOKENS / self.seq_len.max(1)).clamp(1, 256) as u64
    }

    /// What a run keeps of the text: the tokenizer.
    pub(super) fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        self.tokenizer.files()
    }

    /// The files that the text and its tokens come from.
    pub(super) fn data(&self) -> &[DataFile] {
        &self.data
    }

    /// What the manifest says of the text.
    pub(super) fn sizes(&self) -> [(&'static str, u64); 3] {
        [
            ("n_tokens", self.n_tokens),
            ("n_train", self.train.n()),
            ("n_validation", self.validation.n()),
        ]
    }
}

/// The tokenizer that a run has `kept`, so that it goes on with the same whatever has become of the one that
/// its settings name; or else the one of the settings.
pub(super) fn kept_or_trained<T: IntoIterator<Item = Result<String>>>(
    kept: Option<&Path>,
    config: &TokenizerConfig,
    texts: impl FnOnce() -> Result<T>,
) -> Result<Tokenizer> {
    match kept.map(Tokenizer::in_folder).transpose()?.flatten() {
        Some(tokenizer) => Ok(tokenizer),
        None => Tokenizer::train(config, texts()?),
    }
}

/// The tokenizer as a run keeps it.
pub(super) fn tokenizer_file(tokenizer: &Tokenizer) -> Result<DataFile> {
    Ok(DataFile::new("task.tokenizer", Path::new(FILE), tokenizer.fingerprint()?))
}

/// Makes the paths of a language model's settings absolute, so that they mean the same wherever the run is
/// resumed.
pub(super) fn absolute_paths(
    cache: Option<&mut PathBuf>,
    corpus: &mut CorpusConfig,
    tokenizer: &mut TokenizerConfig,
) -> Result<()> {
    if let Some(cache) = cache {
        *cache = absolute(&*cache).map_err(Error::io("find", cache))?;
    }
    corpus.absolute_paths()?;
    tokenizer.absolute_paths()
}

/// Checks the sizes that language models have in common.
pub(super) fn validate_sizes(seq_len: usize, n_validation: usize) -> Result<()> {
    positive("task.seq_len", seq_len)?;
    positive("task.n_validation", n_validation)
}

/// Checks that a token embedding of `vocab_size` rows has one for each token.
pub(super) fn check_vocab_size(tokenizer: &Tokenizer, vocab_size: Option<usize>) -> Result<()> {
    let n_tokens = tokenizer.vocab_size();
    match vocab_size.filter(|&vocab_size| vocab_size < n_tokens) {
        Some(vocab_size) => {
            let key = "task.vocab_size";
            let message = format!(
                "`{key}` = {vocab_size} is less than the {n_tokens} tokens of the tokenizer"
            );
            Err(Error::config([key], message))
        }
        None => Ok(()),
    }
}

/// What may be read in `rows`: nothing of what was filled up, and of packed pieces only their own.
pub(super) fn mask(rows: &Rows, device: &Device) -> Result<Mask> {
    let shape = (rows.lens.len(), rows.seq_len);
    let mut mask = Mask::none();
    if rows.lens.iter().any(|&len| len < rows.seq_len) {
        let flags = tensor_of(rows.key_padding_mask(), shape, device)?;
        mask = mask.with_key_padding_mask(&flags)?;
    }
    if let Some(segments) = &rows.segments {
        mask = mask.with_segments(&tensor_of(segments.clone(), shape, device)?)?;
    }
    Ok(mask)
}

/// What each layer read, with tokens as the names of the positions.
pub(crate) fn readings(tokenizer: &Tokenizer, ids: &[u32], layers: Vec<BlockMaps>) -> Vec<Reading> {
    let name = |&id: &u32| tokenizer.token(id).unwrap_or_else(|| id.to_string());
    let positions: Vec<String> = ids.iter().map(name).collect();
    let reading = |(layer, maps): (usize, BlockMaps)| Reading {
        name: format!("layer {}", layer + 1),
        queries: positions.clone(),
        keys: positions.clone(),
        maps: maps.attention,
    };
    layers.into_iter().enumerate().map(reading).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// That no position reads one of another segment, and that there are two at least.
    pub(in crate::task) fn assert_kept_apart(readings: &[Reading], segments: &[u32]) {
        assert!(segments.first() < segments.last(), "{segments:?}");
        for Reading { name, maps, .. } in readings {
            let maps: Vec<Vec<Vec<f32>>> = maps.weights.get(0).unwrap().to_vec3().unwrap();
            for (query, row) in maps.iter().flat_map(|map| map.iter().enumerate()) {
                for (key, weight) in row.iter().enumerate() {
                    let is_apart = segments[query] != segments[key];
                    assert!(!(is_apart && *weight != 0.), "{name}: {query} reads {key}");
                }
            }
        }
        assert!(!readings.is_empty());
    }
}
