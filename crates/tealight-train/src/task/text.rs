//! The data of the language models: a corpus as token ids, and its sequences in both splits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use candle_core::Device;
use tealight_model::Mask;
use tealight_ops::device::tensor_of;

use crate::checks::{MAX_SIZE, at_most, check, positive};
use crate::data::cache::folder;
use crate::data::text::Holdout;
use crate::data::text::corpus::CorpusConfig;
use crate::data::text::sequences::{Rows, Sequence, Sequences, Spec};
use crate::data::text::store::TokenStore;
use crate::data::text::tokenizer::{FILE, Tokenizer, TokenizerConfig};
use crate::data::{DataFile, Split};
use crate::error::{Error, Result};
use crate::task::context::TaskContext;
use crate::task::metrics::by_name;

/// Tokens in one forward pass of an evaluation.
const EVALUATION_TOKENS: usize = 1 << 13;

/// The settings that language models have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextSettings<'a> {
    pub(super) corpus: &'a CorpusConfig,
    pub(super) tokenizer: &'a TokenizerConfig,
    pub(super) vocab_size: Option<usize>,
    pub(super) cache: Option<&'a Path>,
    pub(super) spec: Spec,
    pub(super) n_validation: usize,
}

/// A tokenizer, the sequences of both splits, and how they become batches.
#[derive(Debug)]
pub(super) struct Texts {
    pub(super) tokenizer: Tokenizer,
    /// Rows of the token embedding.
    pub(super) vocab_size: usize,
    pub(super) seq_len: usize,
    /// Sequences of a training batch.
    pub(super) batch_size: usize,
    pub(super) device: Device,
    /// The files of the corpus and of the tokenizer.
    pub(super) data_files: Vec<DataFile>,
    /// What a user should know about them, a line each.
    pub(super) notes: Vec<String>,
    /// The training sequences, in a new order in each epoch.
    pub(super) train: Sequences,
    /// All held-out sequences.
    pub(super) validation: Sequences,
    /// Held-out sequences in an evaluation.
    pub(super) n_validation: u64,
    n_tokens: u64,
}

impl Texts {
    /// Tokenises the corpus, or reads its tokens from the cache. Trains the tokenizer if neither the run nor the
    /// settings name one.
    pub(super) fn new(settings: TextSettings<'_>, context: &TaskContext<'_>) -> Result<Self> {
        let TextSettings { corpus, tokenizer, vocab_size, cache, spec, n_validation } = settings;
        let TaskContext { seed, batch_size, device, kept, test, mut progress, .. } = *context;
        let is_test = test.is_some();
        let share = if is_test { 1. } else { corpus.validation_share() };
        let holdout = Holdout::new(seed, share);
        let corpus = corpus.open(seed)?;
        let texts = || holdout.train_texts(&*corpus);
        let tokenizer = kept_or_trained(kept, tokenizer, texts)?;
        let store = TokenStore::from_corpus(&*corpus, &tokenizer, || folder(cache), &mut progress)?;
        let store = Arc::new(store);
        let special = tokenizer.special();
        let of = |split| Sequences::new(&store, holdout, split, spec, special, seed);
        let train = of(if is_test { Split::Validation } else { Split::Train })?;
        let validation = of(Split::Validation)?;
        let most = if is_test { u64::MAX } else { n_validation as u64 };
        let n_validation = validation.n().min(most);
        let mut data_files = corpus.files();
        data_files.push(tokenizer_file(&tokenizer)?);
        Ok(Self {
            vocab_size: embedding_rows(&tokenizer, vocab_size)?,
            seq_len: spec.seq_len,
            batch_size,
            device: device.clone(),
            data_files,
            notes: corpus.notes(),
            n_tokens: store.n_tokens(),
            tokenizer,
            train,
            validation,
            n_validation,
        })
    }

    /// The places of training batch `index` in that order.
    pub(super) fn places(&self, index: u64) -> Range<u64> {
        let first = index * self.batch_size as u64;
        first..first + self.batch_size as u64
    }

    /// Held-out sequence `index` of an evaluation, which takes them at even distances.
    pub(super) fn held_out(&self, index: u64) -> Sequence {
        self.validation.at(index * self.validation.n() / self.n_validation)
    }

    /// The sequences of batch `index` of an evaluation, and the place of the first.
    pub(super) fn held_out_batch(&self, index: u64) -> (u64, Vec<Sequence>) {
        let n = self.evaluation_batch();
        let places = index * n..self.n_validation.min((index + 1) * n);
        (index * n, places.map(|place| self.held_out(place)).collect())
    }

    /// Batches of an evaluation.
    pub(super) fn n_held_out_batches(&self) -> u64 {
        self.n_validation.div_ceil(self.evaluation_batch())
    }

    /// Sequences in one forward pass of an evaluation.
    pub(super) fn evaluation_batch(&self) -> u64 {
        (EVALUATION_TOKENS / self.seq_len.max(1)).clamp(1, 256) as u64
    }

    /// The id of padding.
    pub(super) fn pad(&self) -> u32 {
        self.tokenizer.special().pad.unwrap_or(0)
    }

    /// Hides padding, and keeps packed pieces apart.
    pub(super) fn mask(&self, rows: &Rows) -> Result<Mask> {
        let shape = (rows.lens.len(), rows.seq_len);
        let mut mask = Mask::none();
        if rows.lens.iter().any(|&len| len < rows.seq_len) {
            let flags = tensor_of(rows.key_padding_mask(), shape, &self.device)?;
            mask = mask.with_key_padding_mask(&flags)?;
        }
        if let Some(segments) = &rows.segments {
            mask = mask.with_segments(&tensor_of(segments.clone(), shape, &self.device)?)?;
        }
        Ok(mask)
    }

    /// Sizes for the manifest.
    pub(super) fn sizes(&self) -> BTreeMap<String, u64> {
        by_name([
            ("vocab_size", self.vocab_size as u64),
            ("seq_len", self.seq_len as u64),
            ("n_tokens", self.n_tokens),
            ("n_train", self.train.n()),
            ("n_validation", self.validation.n()),
        ])
    }
}

/// The tokenizer of a task: the file in the run directory `kept` if it has one, so that a resumed run keeps its
/// tokenizer; otherwise the one that `config` names, or a new one trained on `texts`.
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

/// The file that a run keeps the tokenizer in.
pub(super) fn tokenizer_file(tokenizer: &Tokenizer) -> Result<DataFile> {
    Ok(DataFile::new("task.tokenizer", Path::new(FILE), tokenizer.fingerprint()?))
}

/// Makes the paths of a language model's settings absolute.
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
    at_most("task.seq_len", seq_len as u64, MAX_SIZE)?;
    positive("task.n_validation", n_validation)
}

/// Rows of the token embedding: `vocab_size`, which must not be below the tokens of the tokenizer, or as many
/// as these.
pub(super) fn embedding_rows(tokenizer: &Tokenizer, vocab_size: Option<usize>) -> Result<usize> {
    let n_tokens = tokenizer.vocab_size();
    let rows = vocab_size.unwrap_or(n_tokens);
    let rule = format!("is less than the {n_tokens} tokens of the tokenizer");
    check("task.vocab_size", rows, |rows| rows >= n_tokens, &rule)?;
    Ok(rows)
}

#[cfg(test)]
pub(super) mod tests {
    use crate::inference::attention_map::AttentionMap;

    /// Asserts that no position reads one of another segment, and that there are two segments at least.
    pub(in crate::task) fn assert_kept_apart(maps: &[AttentionMap], segments: &[u32]) {
        assert!(segments.first() < segments.last(), "{segments:?}");
        for AttentionMap { name, maps, .. } in maps {
            let maps: Vec<Vec<Vec<f32>>> = maps.weights.get(0).unwrap().to_vec3().unwrap();
            for (query, row) in maps.iter().flat_map(|map| map.iter().enumerate()) {
                for (key, weight) in row.iter().enumerate() {
                    let is_apart = segments[query] != segments[key];
                    assert!(!(is_apart && *weight != 0.), "{name}: {query} reads {key}");
                }
            }
        }
        assert!(!maps.is_empty());
    }
}
