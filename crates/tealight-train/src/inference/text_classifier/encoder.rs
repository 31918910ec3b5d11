//! Texts and pairs of texts → token ids, truncated to the length that the model reads.

use super::Text;
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};

/// The tokens of a text or of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tokens {
    pub(crate) ids: Vec<u32>,
    /// As many, or none where the model has no use for them.
    pub(crate) type_ids: Vec<u32>,
}

/// A tokenizer that truncates texts.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) seq_len: usize,
    /// Special tokens at the end of the template, which truncation keeps.
    n_closing: usize,
    n_token_types: usize,
}

impl Encoder {
    /// Refuses a `seq_len` without room for a text beside the special tokens.
    pub(crate) fn new(tokenizer: Tokenizer, seq_len: usize, n_token_types: usize) -> Result<Self> {
        let frame = tokenizer.frame()?;
        let (n_special, n_closing) = (frame.len(), frame.closing.len());
        if seq_len <= n_special {
            let message = format!(
                "`task.seq_len` = {seq_len} leaves no room for a text: the tokenizer adds {n_special} \
                 special tokens to each"
            );
            return Err(Error::config(["task.seq_len"], message));
        }
        Ok(Self { tokenizer, seq_len, n_closing, n_token_types })
    }

    /// Refuses a `seq_len` without room for two texts, and token types that the model lacks.
    pub(crate) fn check_pairs(&self) -> Result<()> {
        let pair = self.tokenizer.encode_pair("a", "a")?;
        let n_special = pair.ids.len().saturating_sub(2 * self.tokenizer.encode_plain("a")?.len());
        let Self { seq_len, n_token_types, .. } = *self;
        if seq_len < n_special + 2 {
            let message = format!(
                "`task.seq_len` = {seq_len} leaves no room for two texts: the tokenizer adds {n_special} \
                 special tokens to each pair"
            );
            return Err(Error::config(["task.seq_len", "task.data.text_pair"], message));
        }
        let n_types = pair.type_ids.iter().max().map_or(0, |largest| *largest as usize + 1);
        if n_token_types > 1 && n_types > n_token_types {
            let message = format!(
                "`task.n_token_types` = {n_token_types}, and the tokenizer gives a pair {n_types} types"
            );
            return Err(Error::config(["task.n_token_types", "task.data.text_pair"], message));
        }
        Ok(())
    }

    /// The tokens of a text or a pair, truncated to `seq_len`: of a pair the longer text first.
    pub(crate) fn encode(&self, Text { text, text_pair }: &Text) -> Result<Tokens> {
        let Some(pair) = text_pair else {
            return Ok(Tokens { ids: self.encode_one(text)?, type_ids: Vec::new() });
        };
        let pair = self.tokenizer.encode_pair_within(text, pair, self.seq_len)?;
        // With one type or none, the model cannot tell them apart.
        let has_types = self.n_token_types > 1;
        let type_ids = if has_types { pair.type_ids } else { Vec::new() };
        Ok(Tokens { ids: pair.ids, type_ids })
    }

    /// Whether [`Self::encode`] leaves out tokens of a text or a pair.
    pub(crate) fn truncates(&self, Text { text, text_pair }: &Text) -> Result<bool> {
        let whole = match text_pair {
            Some(pair) => self.tokenizer.encode_pair(text, pair)?,
            None => self.tokenizer.encode(text)?,
        };
        Ok(whole.ids.len() > self.seq_len)
    }

    /// The id of padding; 0 if the tokenizer has none.
    pub(crate) fn pad(&self) -> u32 {
        self.tokenizer.special().pad.unwrap_or(0)
    }

    fn encode_one(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer.encode(text)?.ids;
        if ids.len() > self.seq_len {
            ids.drain(self.seq_len - self.n_closing..ids.len() - self.n_closing);
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::text::tokenizer::{CharConfig, TokenizerConfig};

    fn encoder(seq_len: usize, n_token_types: usize) -> Encoder {
        let texts = ["text 123", "abc", "defghijk"].map(|text| Ok(text.to_owned()));
        let tokenizer = Tokenizer::train(&TokenizerConfig::Char(CharConfig::default()), texts);
        Encoder::new(tokenizer.unwrap(), seq_len, n_token_types).unwrap()
    }

    fn tokens(encoder: &Encoder, ids: &[u32]) -> String {
        let tokens: Vec<_> = ids.iter().filter_map(|&id| encoder.tokenizer.token(id)).collect();
        tokens.join(" ")
    }

    #[test]
    fn what_is_too_long_is_cut_off_and_still_closed() {
        let encoder = encoder(6, 0);
        let ids = encoder.encode_one("text 123").unwrap();
        assert_eq!(tokens(&encoder, &ids), "[CLS] t e x t [SEP]");
        assert_eq!(encoder.encode_one("te").unwrap().len(), 4);
        let truncates = |text: &str| {
            let text = Text { text: text.to_owned(), text_pair: None };
            encoder.truncates(&text).unwrap()
        };
        assert_eq!(["text 123", "text", "t"].map(truncates), [true, false, false]);
    }

    #[test]
    fn the_second_text_of_a_pair_has_its_own_type_and_the_longer_is_cut_off() {
        let text = Text { text: "abc".to_owned(), text_pair: Some("defghijk".to_owned()) };
        let with_types = encoder(12, 2);
        let Tokens { ids, type_ids } = with_types.encode(&text).unwrap();
        assert_eq!(tokens(&with_types, &ids), "[CLS] a b c [SEP] d e f g h i [SEP]");
        assert_eq!(type_ids, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(encoder(12, 0).encode(&text).unwrap().type_ids, [0; 0]);
        assert_eq!([12, 14].map(|len| encoder(len, 0).truncates(&text).unwrap()), [true, false]);
    }
}
