//! Text that the vocabulary of a tokenizer lacks.

use super::Tokenizer;
use crate::error::Result;

/// How much of several texts a tokenizer does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Tokens that stand for text that the vocabulary lacks.
    pub n_unknown: usize,
    /// The number of all tokens, without the tokens of the template.
    pub n_tokens: usize,
}

impl Tokenizer {
    /// How much of `texts`, of all together, is unknown; runs on all threads. A tokenizer of bytes knows every text.
    pub fn unknown_in(&self, texts: &[&str]) -> Result<Unknown> {
        // GPT-2 names its end token as the unknown one, too, and knows every text.
        let unknown = self.special.unknown.filter(|&id| Some(id) != self.special.end);
        let mut counted = Unknown::default();
        for ids in self.encode_all_plain(texts)? {
            counted.n_tokens += ids.len();
            counted.n_unknown += ids.iter().filter(|&&id| Some(id) == unknown).count();
        }
        Ok(counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::text::tokenizer::{CharConfig, TokenizerConfig};

    fn unknown(config: &TokenizerConfig, texts: &[&str]) -> Unknown {
        let tokenizer = Tokenizer::train(config, ["the rain".to_owned()].map(Ok)).unwrap();
        tokenizer.unknown_in(texts).unwrap()
    }

    #[test]
    fn tokens_that_the_vocabulary_lacks_are_counted() {
        let characters = TokenizerConfig::Char(CharConfig::default());
        let expected = Unknown { n_unknown: 4, n_tokens: 9 };
        assert_eq!(unknown(&characters, &["thΩ日", "tea", "x日"]), expected);
        assert_eq!(unknown(&characters, &["", "a"]), Unknown { n_unknown: 0, n_tokens: 1 });
        assert_eq!(unknown(&TokenizerConfig::Byte, &["Ω"]), Unknown { n_unknown: 0, n_tokens: 2 });
    }
}
