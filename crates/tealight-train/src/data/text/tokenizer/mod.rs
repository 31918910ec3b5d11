//! Tokenizers: text ↔ ids. Read from what `transformers` saves, or trained here and saved so that it reads them.
//!
//! ```text
//! text ─ normalize ─► ─ split into words ─► ─ model: words into tokens ─► ids ─ template ─► [CLS] ids [SEP]
//! ```
//!
//! The work is done by the `tokenizers` crate, the one that `transformers` calls. Here is what it lacks: the
//! roles of the special tokens ([`SpecialTokens`]), folders without a `tokenizer.json` ([`Tokenizer::from_folder`]),
//! training that gives the same bytes each time ([`Tokenizer::train`]), and files that nobody vouches for.

mod check;
mod config;
mod folder;
mod special;
mod stream;
mod train;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;
use tokenizers::ModelWrapper;

use crate::data::fingerprint::fnv_1a;
use crate::error::{Error, Result};
use crate::storage::files::replace;

pub use self::config::{
    BpeConfig, CharConfig, FileConfig, TokenizerConfig, UnigramConfig, WordPieceConfig,
};
pub use self::folder::FILE;
pub use self::special::{MASK_NAMES, SpecialTokens};
pub use self::stream::TextStream;

/// The largest file of a tokenizer that is read, in bytes. The largest in use have 33 MB.
const MAX_FILE: u64 = 1 << 27;
/// Texts that a thread encodes before it looks for others.
const TEXTS_PER_TASK: usize = 16;
/// What a token begins with that begins a word: a space, as byte-level models and SentencePiece write it.
const SPACES: [char; 5] = ['Ġ', 'Ċ', 'ĉ', 'č', '▁'];

/// Text ↔ ids. Cheap to clone; shared between threads.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    special: SpecialTokens,
    /// By id: whether the token is a special one.
    is_special: Arc<[bool]>,
}

/// What a text, or a pair of texts, has become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// `(seq_len)`: the ids, with the special tokens that the template adds.
    pub ids: Vec<u32>,
    /// `(seq_len)`: 0 for the first text, 1 for the second.
    pub type_ids: Vec<u32>,
    /// `(seq_len)`: the tokens as the vocabulary writes them.
    pub tokens: Vec<String>,
}

/// What becomes of special tokens when ids become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They are written like any other.
    Keep,
    /// They are left out.
    Skip,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or the tokenizer of a folder.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() { Self::from_folder(path) } else { Self::from_file(path) }
    }

    /// Reads a `tokenizer.json`. The roles of the special tokens follow from their names.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_json(&read(path)?, path)
    }

    /// The same from its content; `origin` is what errors name.
    pub fn from_json(bytes: &[u8], origin: &Path) -> Result<Self> {
        Self::with_roles(bytes, origin, &special::Names::default())
    }

    /// The same with special tokens whose roles are known.
    fn with_roles(bytes: &[u8], origin: &Path, names: &special::Names) -> Result<Self> {
        let refused = |rule| Error::Tokenizer { path: origin.to_owned(), rule };
        let added = check::check(bytes).map_err(refused)?;
        let load = || tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string());
        let mut inner = guarded(load).map_err(refused)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| refused(error.to_string()))?;
        added.check_ids(&inner).map_err(refused)?;
        let tokenizer = Self::new(inner, names);
        tokenizer.probe().map_err(|error| refused(error.to_string()))?;
        Ok(tokenizer)
    }

    fn new(inner: tokenizers::Tokenizer, names: &special::Names) -> Self {
        let special = SpecialTokens::find(&inner, names);
        let largest = inner.get_vocab(true).into_values().max();
        let mut is_special = vec![false; largest.map_or(0, |id| id as usize + 1)];
        let added = inner.get_added_tokens_decoder();
        let added = added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id);
        for id in added.chain(special.ids()) {
            is_special[id as usize] = true;
        }
        Self { inner: Arc::new(inner), special, is_special: is_special.into() }
    }

    /// A template may add ids that no token has, and a normalizer may fail: better now than in a run.
    fn probe(&self) -> Result<()> {
        let (one, pair) = (self.encode("")?, self.encode_pair("a", "b c\n")?);
        let strangers =
            one.ids.iter().chain(&pair.ids).find(|&&id| id as usize >= self.vocab_size());
        match strangers {
            Some(id) => {
                Err(Error::Tokenize(format!("its template adds the id {id}, which no token has")))
            }
            None => self.decode(&pair.ids, Specials::Keep).map(|_| ()),
        }
    }

    /// The content of a `tokenizer.json`; the same bytes for the same tokenizer.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(&*self.inner).map_err(|error| Error::Tokenize(error.to_string()))
    }

    /// What [`Self::in_folder`] reads back: a `tokenizer.json`, and what its special tokens are for.
    pub fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let roles = serde_json::to_vec_pretty(&self.roles())
            .map_err(|error| Error::Tokenize(error.to_string()))?;
        Ok(vec![(folder::FILE, self.to_json()?), (folder::ROLES, roles)])
    }

    /// The content of a `special_tokens_map.json`.
    pub fn roles(&self) -> serde_json::Map<String, serde_json::Value> {
        let named = self.special.named().into_iter();
        named.filter_map(|(key, id)| Some((key.to_owned(), self.token(id?)?.into()))).collect()
    }

    /// Writes a `tokenizer.json`.
    pub fn save(&self, path: &Path) -> Result<()> {
        replace(path, &self.to_json()?)
    }

    /// A hash of [`Self::to_json`].
    pub fn fingerprint(&self) -> Result<u64> {
        self.to_json().map(fnv_1a)
    }

    /// The largest id + 1, so that ids index a table of this size.
    pub fn vocab_size(&self) -> usize {
        self.is_special.len()
    }

    /// The special tokens by what they are for.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Whether the token stands for something other than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.is_special.get(id as usize).copied().unwrap_or(false)
    }

    /// The token of an id, as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token, as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The ids of a text, with the special tokens that the template adds.
    pub fn encode(&self, text: &str) -> Result<Encoded> {
        self.encoding(text, true).map(|encoding| self.encoded(&encoding))
    }

    /// The ids of two texts in one sequence, as the template joins them.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Encoded> {
        self.encoding((first, second), true).map(|encoding| self.encoded(&encoding))
    }

    /// The ids and tokens of a text alone.
    pub fn encode_alone(&self, text: &str) -> Result<Encoded> {
        self.encoding(text, false).map(|encoding| self.encoded(&encoding))
    }

    /// The ids of a text alone.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.encoding(text, false).map(|encoding| encoding.get_ids().to_vec())
    }

    /// [`Self::encode_plain`] of each text, on all threads; in order.
    pub fn encode_all_plain(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        let texts = texts.par_iter().with_min_len(TEXTS_PER_TASK);
        texts.map(|text| self.encode_plain(text)).collect()
    }

    fn encoding<'s>(
        &self,
        input: impl Into<tokenizers::EncodeInput<'s>>,
        add_special_tokens: bool,
    ) -> Result<tokenizers::Encoding> {
        let input = input.into();
        let encode = || self.inner.encode_fast(input, add_special_tokens);
        guarded(|| encode().map_err(|error| error.to_string())).map_err(Error::Tokenize)
    }

    fn encoded(&self, encoding: &tokenizers::Encoding) -> Encoded {
        let ids = encoding.get_ids().to_vec();
        let tokens = ids.iter().map(|&id| self.token(id).unwrap_or_default()).collect();
        Encoded { type_ids: encoding.get_type_ids().to_vec(), tokens, ids }
    }

    /// The text of ids.
    pub fn decode(&self, ids: &[u32], specials: Specials) -> Result<String> {
        let skip = specials == Specials::Skip;
        let decode = || self.inner.decode(ids, skip).map_err(|error| error.to_string());
        guarded(decode).map_err(Error::Tokenize)
    }

    /// By id: whether the token begins a word. Special tokens do; so does, in a vocabulary without words
    /// (characters, bytes), the space before one.
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

/// The crate panics on some files (a `Precompiled` normalizer whose table is broken, for one): the file is to
/// blame, and an error says so.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let broken = |_| Err("it makes the tokenizers library fail".to_owned());
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(broken)
}

/// The content of a file of a tokenizer.
fn read(path: &Path) -> Result<Vec<u8>> {
    let size = fs::metadata(path).map_err(Error::io("read", path))?.len();
    if size > MAX_FILE {
        let rule = format!("it has {size} bytes, and the limit is {MAX_FILE}");
        return Err(Error::Tokenizer { path: path.to_owned(), rule });
    }
    fs::read(path).map_err(Error::io("read", path))
}
