//! Tokenizers: text ↔ ids. Read from the files of `transformers`, or trained here and saved in the same format.
//!
//! ```text
//! text ─ normalize ─► ─ split into words ─► ─ model: words into tokens ─► ids ─ template ─► [CLS] ids [SEP]
//! ```
//!
//! Built on the `tokenizers` crate, which `transformers` uses. This module adds the roles of the special tokens
//! ([`SpecialTokens`]), folders without a `tokenizer.json` ([`Tokenizer::from_folder`]), deterministic training
//! ([`Tokenizer::train`]), and checks of untrusted files.

mod check;
mod config;
mod folder;
mod placed;
mod prompts;
mod special;
mod stream;
mod train;
mod truncated;
mod unknown;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use tokenizers::{ModelWrapper, PostProcessor as _, TruncationParams, truncate_encodings};

use crate::data::fingerprint::fnv_1a;
use crate::data::panics;
use crate::error::{Error, Result};
use crate::storage::files::{self, replace};

pub use self::config::{
    BpeConfig, CharConfig, FileConfig, TokenizerConfig, UnigramConfig, WordPieceConfig,
};
pub use self::folder::FILE;
pub(crate) use self::placed::{Frame, Placed};
use self::special::SpecialNames;
pub use self::special::{MASK_NAMES, SpecialTokens};
pub use self::stream::TextStream;
pub use self::truncated::{Side, Truncated};
pub use self::unknown::Unknown;

/// The maximal size of a file, in bytes. The largest common ones have 33 MB.
const MAX_FILE: u64 = 1 << 26;
/// The minimal number of texts that a thread encodes at a time.
const TEXTS_PER_TASK: usize = 16;
/// How byte-level models and SentencePiece write the space at the beginning of a word.
const SPACES: [char; 5] = ['Ġ', 'Ċ', 'ĉ', 'č', '▁'];

/// Text ↔ ids. Cheap to clone; shared between threads.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    special: SpecialTokens,
    /// By id: whether the token is special.
    is_special: Arc<[bool]>,
}

/// A tokenised text or pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// `(seq_len)`: the ids, with the special tokens of the template unless they were left out.
    pub ids: Vec<u32>,
    /// `(seq_len)`: 0 for the first text, 1 for the second.
    pub type_ids: Vec<u32>,
    /// `(seq_len)`: the tokens, as written in the vocabulary.
    pub tokens: Vec<String>,
}

/// The treatment of special tokens in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They are written like other tokens.
    Keep,
    /// They are left out.
    Skip,
}

/// The treatment of the template's special tokens in encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Template {
    Added,
    LeftOut,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or the tokenizer of a folder.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() { Self::from_folder(path) } else { Self::from_json(&read(path)?, path) }
    }

    /// Reads the content of a `tokenizer.json`; `origin` is its name in errors. The roles of the special tokens
    /// follow from their names.
    pub fn from_json(bytes: &[u8], origin: &Path) -> Result<Self> {
        Self::with_roles(bytes, origin, &SpecialNames::default())
    }

    /// [`Self::from_json`] with the names of the special tokens.
    fn with_roles(bytes: &[u8], origin: &Path, names: &SpecialNames) -> Result<Self> {
        let refused = |rule| Error::Tokenizer { path: origin.to_owned(), rule };
        let added = check::check(bytes).map_err(refused)?;
        let mut inner =
            catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(refused)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| refused(error.to_string()))?;
        check::check_ids(&added, &inner).map_err(refused)?;
        let tokenizer = Self::new(inner, names);
        tokenizer.check_template().map_err(|error| refused(error.to_string()))?;
        Ok(tokenizer)
    }

    fn new(inner: tokenizers::Tokenizer, names: &SpecialNames) -> Self {
        let special = SpecialTokens::find(&inner, names);
        let largest = inner.get_vocab(true).into_values().max();
        let mut is_special = vec![false; largest.map_or(0, |id| id as usize + 1)];
        let added = inner.get_added_tokens_decoder();
        let added = added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id);
        for id in added.chain(special.named().map(|(_, id)| id)) {
            is_special[id as usize] = true;
        }
        Self { inner: Arc::new(inner), special, is_special: is_special.into() }
    }

    /// Encodes and decodes short texts, to find a template with ids that no token has, or a failing normalizer.
    fn check_template(&self) -> Result<()> {
        let (one, pair) = (self.encode("")?, self.encode_pair("a", "b c\n")?);
        let unknown = one.ids.iter().chain(&pair.ids).find(|&&id| id as usize >= self.vocab_size());
        match unknown {
            Some(id) => {
                Err(Error::Tokenize(format!("its template adds the id {id}, which no token has")))
            }
            None => self.decode(&pair.ids, Specials::Keep).map(|_| ()),
        }
    }

    /// The content of a `tokenizer.json`; the same bytes for the same tokenizer.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(&*self.inner).map_err(failure)
    }

    /// The files that [`Self::in_folder`] reads: `tokenizer.json`, and the roles of its special tokens.
    pub fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let roles = serde_json::to_vec_pretty(&self.roles()).map_err(failure)?;
        Ok(vec![(folder::FILE, self.to_json()?), (folder::ROLES, roles)])
    }

    /// The content of a `special_tokens_map.json`.
    pub fn roles(&self) -> serde_json::Map<String, serde_json::Value> {
        let named = self.special.named();
        named.filter_map(|(key, id)| Some((key.to_owned(), self.token(id)?.into()))).collect()
    }

    /// Writes a `tokenizer.json`.
    pub fn save(&self, path: &Path) -> Result<()> {
        replace(path, &self.to_json()?)
    }

    /// A hash of [`Self::to_json`].
    pub fn fingerprint(&self) -> Result<u64> {
        self.to_json().map(fnv_1a)
    }

    /// The largest id + 1: the size of a table indexed by ids.
    pub fn vocab_size(&self) -> usize {
        self.is_special.len()
    }

    /// The special tokens by their roles.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Whether the token is special.
    pub fn is_special(&self, id: u32) -> bool {
        self.is_special.get(id as usize).copied().unwrap_or(false)
    }

    /// The token of an id, as written in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token, as written in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The ids of a text with the special tokens of the template.
    pub fn encode(&self, text: &str) -> Result<Encoded> {
        self.encoding(text, Template::Added).map(|encoding| self.encoded(&encoding))
    }

    /// The tokens of a text with the special ones of the template, and the bytes of the text that each stands for: an
    /// empty range for a token of the template.
    pub fn spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encode = || self.inner.encode(text, true);
        let encoding = catch_panic(encode).map_err(Error::Tokenize)?;
        let spans = encoding.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoding.get_ids().iter().copied().zip(spans).collect())
    }

    /// The ids of two texts, joined by the template.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Encoded> {
        self.encoding((first, second), Template::Added).map(|encoding| self.encoded(&encoding))
    }

    /// [`Self::encode_pair`], cut off to at most `len` ids: the longer text first, at its end, as
    /// `truncation=True` of `transformers` does.
    ///
    /// # Errors
    /// If `len` leaves no room for an id of each text.
    pub fn encode_pair_within(&self, first: &str, second: &str, len: usize) -> Result<Encoded> {
        let whole = self.encode_pair(first, second)?;
        if whole.ids.len() <= len {
            return Ok(whole);
        }
        let n_added = self.inner.get_post_processor().map_or(0, |added| added.added_tokens(true));
        let max_length = len.checked_sub(n_added).filter(|&rest| rest > 1).ok_or_else(|| {
            let rule = format!(
                "{len} tokens leave no room for two texts: the tokenizer adds {n_added} special tokens"
            );
            Error::Tokenize(rule)
        })?;
        let [first, second] = [first, second].map(|text| self.encoding(text, Template::LeftOut));
        let params = TruncationParams { max_length, ..TruncationParams::default() };
        let (first, second) = (first?, second?);
        let cut = || {
            let (first, second) = truncate_encodings(first, Some(second), &params)?;
            self.inner.post_process(first, second, true)
        };
        catch_panic(cut).map_err(Error::Tokenize).map(|encoding| self.encoded(&encoding))
    }

    /// The ids and tokens of a text without the template.
    pub fn encode_alone(&self, text: &str) -> Result<Encoded> {
        self.encoding(text, Template::LeftOut).map(|encoding| self.encoded(&encoding))
    }

    /// The ids of a text without the template.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.encoding(text, Template::LeftOut).map(|encoding| encoding.get_ids().to_vec())
    }

    /// [`Self::encode_plain`] of each text, in order; runs on all threads.
    pub fn encode_all_plain(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        let texts = texts.par_iter().with_min_len(TEXTS_PER_TASK);
        texts.map(|text| self.encode_plain(text)).collect()
    }

    fn encoding<'s>(
        &self,
        input: impl Into<tokenizers::EncodeInput<'s>>,
        template: Template,
    ) -> Result<tokenizers::Encoding> {
        let input = input.into();
        let encode = || self.inner.encode_fast(input, template == Template::Added);
        catch_panic(encode).map_err(Error::Tokenize)
    }

    fn encoded(&self, encoding: &tokenizers::Encoding) -> Encoded {
        let ids = encoding.get_ids().to_vec();
        let tokens = ids.iter().map(|&id| self.token(id).unwrap_or_default()).collect();
        Encoded { type_ids: encoding.get_type_ids().to_vec(), tokens, ids }
    }

    /// The text of ids.
    pub fn decode(&self, ids: &[u32], specials: Specials) -> Result<String> {
        let skip = specials == Specials::Skip;
        catch_panic(|| self.inner.decode(ids, skip)).map_err(Error::Tokenize)
    }

    /// The text that a token stands for, without the mark of a continued word.
    pub(crate) fn surface(&self, id: u32) -> Result<String> {
        if let (ModelWrapper::WordPiece(model), Some(token)) =
            (self.inner.get_model(), self.token(id))
        {
            let prefix = &*model.continuing_subword_prefix;
            return Ok(token.strip_prefix(prefix).unwrap_or(&token).to_owned());
        }
        self.decode(&[id], Specials::Keep)
    }

    /// Whether a token of the same name stands for the same text at the same place of a word: whether both vocabularies
    /// mark the same tokens, those that begin a word or those that continue it.
    pub(crate) fn writes_like(&self, other: &Self) -> bool {
        let mark = |tokenizer: &Self| match tokenizer.inner.get_model() {
            ModelWrapper::WordPiece(model) => Some(model.continuing_subword_prefix.clone()),
            ModelWrapper::WordLevel(_) => Some(String::new()),
            ModelWrapper::BPE(_) | ModelWrapper::Unigram(_) => None,
        };
        mark(self) == mark(other)
    }

    /// By id: whether the token begins a word. True for special tokens and, in a vocabulary of characters
    /// or bytes, for the space before a word.
    pub fn word_starts(&self) -> Vec<bool> {
        let starts = |token: &str| match self.inner.get_model() {
            ModelWrapper::WordPiece(model) => !token.starts_with(&model.continuing_subword_prefix),
            ModelWrapper::WordLevel(_) => true,
            ModelWrapper::BPE(_) | ModelWrapper::Unigram(_) => {
                token.starts_with(|first: char| first.is_whitespace() || SPACES.contains(&first))
            }
        };
        let ids = (0..).zip(&*self.is_special);
        let by_id = |(id, &is_special)| is_special || self.token(id).is_some_and(|t| starts(&t));
        ids.map(by_id).collect()
    }
}

/// A call of the `tokenizers` crate: it panics on some invalid files, such as a `Precompiled` normalizer with a broken
/// table, which becomes an error.
fn catch_panic<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    panics::caught("tokenizers", work)
}

fn failure(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Tokenize(error.into().to_string())
}

/// Reads a file of at most [`MAX_FILE`] bytes.
fn read(path: &Path) -> Result<Vec<u8>> {
    files::read_up_to(path, MAX_FILE)
}
