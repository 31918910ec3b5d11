//! Ids of single texts, cut off to a length.

use rayon::prelude::*;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::{PostProcessor as _, TruncationDirection, TruncationParams, truncate_encodings};

use super::{TEXTS_PER_TASK, Template, Tokenizer, catch_panic, failure};
use crate::error::{Error, Result};

/// A side of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Its beginning.
    Left,
    /// Its end.
    #[default]
    Right,
}

/// The ids of a text that may have been cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// `(seq_len)`: the ids, with the special tokens of the template.
    pub ids: Vec<u32>,
    /// Whether the text had more.
    pub is_truncated: bool,
}

impl Tokenizer {
    /// The ids of each text with the special tokens of the template, in order; runs on all threads. If a text has more
    /// than `len` ids, tokens on `side` are left out, as by `truncation=True` of `transformers`, but no token of the
    /// template.
    ///
    /// # Errors
    /// If `len` is less than [`Self::n_added`].
    pub fn encode_all_truncated(
        &self,
        texts: &[String],
        len: usize,
        side: Side,
    ) -> Result<Vec<Truncated>> {
        let texts = texts.par_iter().with_min_len(TEXTS_PER_TASK);
        texts.map(|text| self.encode_truncated(text, len, side)).collect()
    }

    fn encode_truncated(&self, text: &str, len: usize, side: Side) -> Result<Truncated> {
        let whole = self.encoding(text, Template::Added)?;
        if whole.get_ids().len() <= len {
            return Ok(Truncated { ids: whole.get_ids().to_vec(), is_truncated: false });
        }
        let n_added = self.n_added();
        let max_length = len.checked_sub(n_added).ok_or_else(|| {
            Error::Tokenize(format!("{len} tokens leave no room for the {n_added} special tokens"))
        })?;
        let direction = match side {
            Side::Left => TruncationDirection::Left,
            Side::Right => TruncationDirection::Right,
        };
        let params = TruncationParams { max_length, direction, ..TruncationParams::default() };
        let plain = self.encoding(text, Template::LeftOut)?;
        let cut = || {
            let (plain, _) = truncate_encodings(plain, None, &params)?;
            self.inner.post_process(plain, None, true)
        };
        let cut = catch_panic(cut).map_err(Error::Tokenize)?;
        Ok(Truncated { ids: cut.get_ids().to_vec(), is_truncated: true })
    }

    /// The number of special tokens that the template adds to a text.
    pub fn n_added(&self) -> usize {
        self.inner.get_post_processor().map_or(0, |added| added.added_tokens(false))
    }

    /// The same tokenizer, which converts texts to lower case first, unless one of its normalizers does. Special tokens
    /// in a text keep their case.
    ///
    /// # Errors
    /// If an added token cannot be converted.
    pub fn lowercasing(&self) -> Result<Self> {
        let own = self.inner.get_normalizer().cloned();
        let lowercases = |one: &NormalizerWrapper| matches!(one, NormalizerWrapper::Lowercase(_));
        let mut all = vec![NormalizerWrapper::Lowercase(Lowercase)];
        match own {
            Some(NormalizerWrapper::Sequence(own)) => all.extend(own.as_ref().iter().cloned()),
            other => all.extend(other),
        }
        if all[1..].iter().any(lowercases) {
            return Ok(self.clone());
        }
        let mut inner = (*self.inner).clone();
        let all = NormalizerWrapper::Sequence(Sequence::new(all));
        inner.with_normalizer(Some(all)).map_err(failure)?;
        Ok(Self { inner: inner.into(), ..self.clone() })
    }
}
