//! The tokens of a text: characters or words.

use tealight_model::names;

names! {
    /// What a token is.
    pub enum Level {
        /// A character (a Unicode scalar value).
        "characters" => Characters,
        /// Words, separated by spaces.
        "words" => Words,
    }
}

impl Level {
    /// The tokens of a text, in order.
    pub(crate) fn tokens(self, text: &str) -> Vec<&str> {
        match self {
            Self::Characters => text.split_inclusive(|_| true).collect(),
            Self::Words => text.split_whitespace().collect(),
        }
    }

    /// The text of tokens, in its normal form: texts of the same tokens are equal.
    pub(crate) fn text(self, tokens: &[&str]) -> String {
        match self {
            Self::Characters => tokens.concat(),
            Self::Words => tokens.join(" "),
        }
    }
}
