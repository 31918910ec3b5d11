//! Tokens with their places in a text or in words, for models that tell something of each token.

use std::borrow::Cow;

use serde_json::Value;
use tokenizers::{Decoder as _, InputSequence, ModelWrapper};

use super::{Tokenizer, catch_panic, failure};
use crate::error::{Error, Result};

/// A token of a text or of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) id: u32,
    /// The number of its word: of a text, as the tokenizer splits it.
    pub(crate) word: usize,
    /// The characters of the text, or of its word, that it stands for.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// What the template of a tokenizer puts around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) opening: Vec<u32>,
    pub(crate) closing: Vec<u32>,
}

impl Frame {
    /// The number of tokens that it adds.
    pub(crate) fn len(&self) -> usize {
        self.opening.len() + self.closing.len()
    }

    /// `ids` between its tokens.
    pub(crate) fn around(&self, ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let (opening, closing) = (self.opening.iter().copied(), self.closing.iter().copied());
        opening.chain(ids).chain(closing).collect()
    }
}

impl Tokenizer {
    /// What its template puts around a text.
    ///
    /// # Errors
    /// If the template leaves the text out.
    pub(crate) fn frame(&self) -> Result<Frame> {
        let (ids, plain) = (self.encode("a")?.ids, self.encode_plain("a")?);
        let n = plain.len();
        // Found by its own tokens, not as the ordinary ones: "a" may be the unknown token, a special one.
        let found = ids.windows(n.max(1)).position(|window| window == plain);
        let at = match found {
            Some(at) => at,
            None if n == 0 => ids.len().min(1),
            None => {
                let message = "the template of the tokenizer leaves the text out".to_owned();
                return Err(Error::config(["task.tokenizer.path"], message));
            }
        };
        Ok(Frame { opening: ids[..at].to_vec(), closing: ids[at + n..].to_vec() })
    }

    /// The tokens of a text without the template.
    pub(crate) fn placed(&self, text: &str) -> Result<Vec<Placed>> {
        self.placed_in(InputSequence::Raw(Cow::Borrowed(text)))
    }

    /// The tokens of words without the template, each word split by itself. A word may have no token.
    pub(crate) fn placed_words<S: AsRef<str>>(&self, words: &[S]) -> Result<Vec<Placed>> {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        self.placed_in(InputSequence::PreTokenized(Cow::Owned(words)))
    }

    fn placed_in(&self, input: InputSequence<'_>) -> Result<Vec<Placed>> {
        let encode = || self.inner.encode_char_offsets(input, false);
        let encoding = catch_panic(encode).map_err(Error::Tokenize)?;
        let mut word = 0;
        let placed =
            encoding.get_ids().iter().zip(encoding.get_offsets()).zip(encoding.get_word_ids());
        let placed = placed.map(|((&id, &(start, end)), number)| {
            word = number.map_or(word, |number| number as usize);
            Placed { id, word, start, end }
        });
        Ok(placed.collect())
    }

    /// The text that tokens, as written in the vocabulary, stand for together.
    pub(crate) fn joined(&self, tokens: Vec<String>) -> Result<String> {
        match self.inner.get_decoder() {
            Some(decoder) => catch_panic(|| decoder.decode(tokens)).map_err(Error::Tokenize),
            None => Ok(tokens.join(" ")),
        }
    }

    /// Whether tokens that continue a word have a mark, such as `##`.
    pub(crate) fn marks_continued_words(&self) -> bool {
        match self.inner.get_model() {
            ModelWrapper::WordPiece(model) => !model.continuing_subword_prefix.is_empty(),
            ModelWrapper::BPE(model) => {
                model.continuing_subword_prefix.as_ref().is_some_and(|prefix| !prefix.is_empty())
            }
            ModelWrapper::WordLevel(_) | ModelWrapper::Unigram(_) => false,
        }
    }

    /// This tokenizer with a blank before each word, also before the first and before words that are given one by one:
    /// byte-level tokens of a word in a sentence begin with one. Other tokenizers stay as they are.
    pub(crate) fn with_prefix_space(&self) -> Result<Self> {
        let mut json: Value = serde_json::from_slice(&self.to_json()?).map_err(failure)?;
        let before = json.clone();
        for part in ["pre_tokenizer", "post_processor"] {
            add_prefix_space(&mut json[part]);
        }
        if json == before {
            return Ok(self.clone());
        }
        let bytes = serde_json::to_vec(&json).map_err(failure)?;
        let inner = catch_panic(|| tokenizers::Tokenizer::from_bytes(&bytes));
        let inner = inner.map_err(Error::Tokenize)?.into();
        Ok(Self { inner, ..self.clone() })
    }

    /// Whether byte-level tokens have a blank before the first word, if the tokenizer has such.
    pub(crate) fn prefix_space(&self) -> Option<bool> {
        let json: Value = serde_json::from_slice(&self.to_json().ok()?).ok()?;
        stated_prefix_space(&json["pre_tokenizer"])
    }
}

/// Turns on `add_prefix_space` in all parts of a tokenizer that have it.
fn add_prefix_space(part: &mut Value) {
    match part {
        Value::Object(object) => {
            if let Some(stated) = object.get_mut("add_prefix_space") {
                *stated = true.into();
            }
            object.values_mut().for_each(add_prefix_space);
        }
        Value::Array(parts) => parts.iter_mut().for_each(add_prefix_space),
        _ => {}
    }
}

fn stated_prefix_space(part: &Value) -> Option<bool> {
    match part {
        Value::Object(object) => object
            .get("add_prefix_space")
            .and_then(Value::as_bool)
            .or_else(|| object.values().find_map(stated_prefix_space)),
        Value::Array(parts) => parts.iter().find_map(stated_prefix_space),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::text::tokenizer::{BpeConfig, CharConfig, TokenizerConfig, WordPieceConfig};

    fn trained(config: &TokenizerConfig) -> Tokenizer {
        let texts = ["New York is new", "O'Reilly's"].map(|text| Ok(text.to_owned()));
        Tokenizer::train(config, texts).unwrap()
    }

    #[test]
    fn tokens_know_their_word_and_their_characters() {
        let tokenizer = trained(&TokenizerConfig::Char(CharConfig::default()));
        let placed = tokenizer.placed_words(&["é", "", "no"]).unwrap();
        let places: Vec<_> = placed.iter().map(|one| (one.word, one.start, one.end)).collect();
        assert_eq!(places, [(0, 0, 1), (2, 0, 1), (2, 1, 2)]);
        let placed = tokenizer.placed("é o").unwrap();
        assert_eq!((placed[0].start, placed.last().unwrap().end), (0, 3));
        assert_eq!(tokenizer.placed_words::<&str>(&[]).unwrap(), []);
    }

    #[test]
    fn a_frame_is_what_the_template_adds() {
        let config =
            TokenizerConfig::WordPiece(WordPieceConfig { vocab_size: 60, ..Default::default() });
        let tokenizer = trained(&config);
        let frame = tokenizer.frame().unwrap();
        let special = tokenizer.special();
        assert_eq!(
            [&frame.opening[..], &frame.closing].concat(),
            [special.begin, special.end].map(Option::unwrap)
        );
        let plain = tokenizer.encode_plain("new").unwrap();
        assert_eq!(frame.around(plain), tokenizer.encode("new").unwrap().ids);
        assert_eq!(frame.len(), 2);
        assert!(tokenizer.marks_continued_words());
        assert_eq!(
            tokenizer.with_prefix_space().unwrap().to_json().unwrap(),
            tokenizer.to_json().unwrap()
        );
    }

    #[test]
    fn words_that_are_given_one_by_one_begin_with_a_blank() {
        let config = TokenizerConfig::Bpe(BpeConfig { vocab_size: 280, ..Default::default() });
        let tokenizer = trained(&config).with_prefix_space().unwrap();
        let ids = |placed: Vec<Placed>| placed.into_iter().map(|one| one.id).collect::<Vec<_>>();
        let words = ids(tokenizer.placed_words(&["is", "new"]).unwrap());
        assert_eq!(words, ids(tokenizer.placed(" is new").unwrap()));
        assert_eq!(tokenizer.prefix_space(), Some(true));
        assert!(!tokenizer.marks_continued_words());
    }
}
