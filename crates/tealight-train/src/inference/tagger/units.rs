//! What a tagger tags: the words of a text, each with its tokens.
//!
//! A word is what the tokenizer splits a text into before it splits words into tokens, and never goes on behind a blank.
//! Scripts that are written without spaces have no such words: there, each token is one. Blanks are no words.

use std::ops::Range;

use crate::data::text::tokenizer::Placed;

/// A word with its tokens, of which it may have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Places among the tokens of the text or the words.
    pub(crate) tokens: Range<usize>,
    /// Characters of the text, without blanks at the ends; of words that were given one by one, the number of the word.
    pub(crate) chars: Range<usize>,
}

/// The words of a text with these tokens.
pub(crate) fn units_of_text(text: &str, placed: &[Placed]) -> Vec<Unit> {
    let chars: Vec<char> = text.chars().collect();
    let mut units: Vec<Unit> = Vec::new();
    let mut before: Option<&Placed> = None;
    for (at, token) in placed.iter().enumerate() {
        let goes_on = before.zip(units.last_mut()).filter(|(before, unit)| {
            // Several tokens may be bytes of one character.
            let is_same_character = token.start < unit.chars.end;
            let is_word = before.word == token.word
                && !has_blank_between(&chars, before, token)
                && !is_unspaced(&chars, before)
                && !is_unspaced(&chars, token);
            is_same_character || is_word
        });
        match goes_on {
            Some((_, unit)) => {
                unit.tokens.end = at + 1;
                unit.chars.end = unit.chars.end.max(token.end);
            }
            None => units.push(Unit { tokens: at..at + 1, chars: token.start..token.end }),
        }
        before = Some(token);
    }
    for unit in &mut units {
        unit.chars = trimmed(&chars, unit.chars.clone());
    }
    units.retain(|unit| {
        !chars[unit.chars.clone()].iter().all(|c| c.is_whitespace()) || unit.chars.is_empty()
    });
    units
}

/// Whether a blank stands between two tokens: at the end of the first, behind it, or at the start of the second.
/// Tokenizers that do not split texts into words, such as one of characters, have tokens of blanks.
fn has_blank_between(chars: &[char], before: &Placed, token: &Placed) -> bool {
    let (last, first) = (before.end.saturating_sub(1), token.start);
    let between = chars.get(last.max(before.start)..=first).unwrap_or_default();
    between.iter().any(|c| c.is_whitespace())
}

/// `n` words, given one by one, with these tokens.
pub(crate) fn units_of_words(n: usize, placed: &[Placed]) -> Vec<Unit> {
    let mut at = 0;
    let unit = |word: usize| {
        let start = at;
        while placed.get(at).is_some_and(|token| token.word == word) {
            at += 1;
        }
        Unit { tokens: start..at, chars: word..word + 1 }
    };
    (0..n).map(unit).collect()
}

/// The range without blanks at its ends; as it is if there is nothing else.
fn trimmed(chars: &[char], mut range: Range<usize>) -> Range<usize> {
    let whole = range.clone();
    while range.start < range.end && chars[range.start].is_whitespace() {
        range.start += 1;
    }
    while range.start < range.end && chars[range.end - 1].is_whitespace() {
        range.end -= 1;
    }
    if range.is_empty() { whole } else { range }
}

/// Whether a token has a character of a script that is written without spaces.
fn is_unspaced(chars: &[char], token: &Placed) -> bool {
    chars[token.start.min(chars.len())..token.end.min(chars.len())].iter().any(|&c| {
        matches!(c,
            '\u{0E00}'..='\u{0EFF}'       // Thai, Lao
            | '\u{1000}'..='\u{109F}'     // Myanmar
            | '\u{1780}'..='\u{17FF}'     // Khmer
            | '\u{3040}'..='\u{30FF}'     // Hiragana, Katakana
            | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' // Han
            | '\u{FF66}'..='\u{FF9D}'     // Katakana of half a width
            | '\u{20000}'..='\u{3FFFF}') // further Han
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(tokens: &[(usize, usize, usize)]) -> Vec<Placed> {
        let token = |&(word, start, end)| Placed { id: 7, word, start, end };
        tokens.iter().map(token).collect()
    }

    fn shown(text: &str, tokens: &[(usize, usize, usize)]) -> Vec<String> {
        let units = units_of_text(text, &placed(tokens));
        let of = |unit: &Unit| {
            let word: String = text.chars().skip(unit.chars.start).take(unit.chars.len()).collect();
            format!("{word} {:?}", unit.tokens)
        };
        units.iter().map(of).collect()
    }

    #[test]
    fn words_are_those_of_the_tokenizer() {
        assert_eq!(
            shown("New Yorkers", &[(0, 0, 3), (1, 3, 8), (1, 8, 11)]),
            ["New 0..1", "Yorkers 1..3"]
        );
    }

    #[test]
    fn tokens_are_words_where_no_spaces_are_written() {
        let tokens = [(0, 0, 1), (0, 1, 3), (0, 3, 4), (0, 3, 4), (0, 4, 5)];
        assert_eq!(shown("明日は京都", &tokens), ["明 0..1", "日は 1..2", "京 2..4", "都 4..5"]);
    }

    #[test]
    fn a_word_may_have_no_token() {
        let units = units_of_words(3, &placed(&[(0, 0, 1), (2, 0, 1), (2, 1, 2)]));
        let tokens: Vec<_> = units.into_iter().map(|unit| unit.tokens).collect();
        assert_eq!(tokens, [0..1, 1..1, 1..3]);
    }
}
