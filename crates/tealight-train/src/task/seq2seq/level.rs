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
    pub(super) fn tokens(self, text: &str) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Self::Characters => {
                let ends = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
                Box::new(ends)
            }
            Self::Words => Box::new(text.split_whitespace()),
        }
    }

    /// The text in its normal form: texts of the same tokens are equal.
    pub(super) fn normal(self, text: &str) -> String {
        match self {
            Self::Characters => text.to_owned(),
            Self::Words => text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    /// The plural that messages count tokens in.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Characters => "characters",
            Self::Words => "words",
        }
    }
}
