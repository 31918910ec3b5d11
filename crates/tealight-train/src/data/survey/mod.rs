//! A survey of a user's data: it looks into them and finds enough to write a configuration that reads them.
//!
//! One function per use, because the same file can be read in several ways. The answers are proposals: reading the
//! data with the configuration is the check.

mod columns;
mod corpus;
mod labelled;
mod pairs;
mod pictures;
mod sentences;
mod tags;

use std::path::Path;

pub use corpus::{Corpus, corpus};
pub use labelled::{Columns, Labelled, Target, column_names, labelled, texts};
pub(crate) use pairs::is_heading;
pub use pairs::{Pairs, pairs};
pub use pictures::{PictureFiles, PictureFormat, pictures};
pub use sentences::{Alike, Compared, compared};
pub use tags::{Tagged, tags};

use crate::error::Error;

/// The argument with the data, for errors.
const DATA: &str = "--data";

/// The words of a text; of scripts that put no spaces between words, each character counts as one.
fn n_words(text: &str) -> usize {
    let of_word = |word: &str| {
        let n_unspaced = word.chars().filter(|&c| is_unspaced(c)).count();
        let has_others = word.chars().any(|c| c.is_alphanumeric() && !is_unspaced(c));
        n_unspaced + usize::from(has_others || n_unspaced == 0)
    };
    text.split_whitespace().map(of_word).sum()
}

/// Characters of Thai, Lao, Burmese, Khmer, Chinese and Japanese (blocks of Unicode 16).
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}')
}

fn refused(path: &Path, rule: &str) -> Error {
    Error::config([DATA], format!("`{}` {rule}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_also_without_spaces() {
        for (text, n) in [
            ("", 0),
            ("It's 3 o'clock.", 3),
            ("吾輩は猫である。名前はまだ無い。", 14),
            ("Rust は 速い", 4),
            ("GPUを2枚", 3),
            ("한국어 문장", 2),
            ("— …", 2),
        ] {
            assert_eq!(n_words(text), n, "{text}");
        }
    }
}
