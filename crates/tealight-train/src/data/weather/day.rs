//! One day's weather, as an id, an emoji or a letter.

use std::fmt;

/// A day's weather. The discriminant is the token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Weather {
    /// 🌧️, `R`
    Rain = 0,
    /// ☁️, `C`
    Cloud = 1,
    /// ☀️, `S`
    Sun = 2,
}

/// A character that does not denote weather.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}, column {column}: `{}` is neither rain (🌧️ or R), cloud (☁️ or C) nor sun (☀️ or S)",
    character.escape_debug()
)]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1 in characters; an emoji counts once, with or without variation selector.
    pub column: usize,
    /// The character found there.
    pub character: char,
}

/// U+FE0F selects the emoji presentation of the character before it. Text editors add and drop it.
const VARIATION_SELECTOR: char = '\u{FE0F}';

impl Weather {
    /// Every kind, by id.
    pub const ALL: [Self; 3] = [Self::Rain, Self::Cloud, Self::Sun];

    /// The id: 0, 1 or 2.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The weather with an id.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// The emoji, with its variation selector.
    pub fn emoji(self) -> &'static str {
        match self {
            Self::Rain => "🌧\u{FE0F}",
            Self::Cloud => "☁\u{FE0F}",
            Self::Sun => "☀\u{FE0F}",
        }
    }

    fn from_char(character: char) -> Option<Self> {
        match character {
            '🌧' | 'R' | 'r' => Some(Self::Rain),
            '☁' | 'C' | 'c' => Some(Self::Cloud),
            '☀' | 'S' | 's' => Some(Self::Sun),
            _ => None,
        }
    }
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.emoji())
    }
}

/// Text → ids. Ignores white space, commas and variation selectors.
pub fn parse(text: &str) -> Result<Vec<u8>, ParseError> {
    let lines = text.lines().zip(1..).map(|(text, line)| parse_line(text, line));
    Ok(lines.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Ids → emoji.
///
/// # Panics
/// If an id is not 0, 1 or 2.
pub fn format(days: &[u8]) -> String {
    let emoji = |&id| Weather::from_id(id).expect("invariant: a day is 0, 1 or 2").emoji();
    days.iter().map(emoji).collect()
}

/// One line of text → ids; `line` is its number for errors.
pub(super) fn parse_line(text: &str, line: usize) -> Result<Vec<u8>, ParseError> {
    let visible = text.chars().filter(|&character| character != VARIATION_SELECTOR);
    let days = visible.enumerate().filter(|(_, c)| !c.is_whitespace() && *c != ',');
    days.map(|(at, character)| {
        let error = ParseError { line, column: at + 1, character };
        Weather::from_char(character).map(Weather::id).ok_or(error)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emoji_parse_with_and_without_the_variation_selector() {
        let ids = vec![0, 1, 2, 0];
        assert_eq!(parse("🌧\u{FE0F}☁\u{FE0F}☀\u{FE0F}🌧\u{FE0F}").unwrap(), ids);
        assert_eq!(parse("🌧☁☀🌧").unwrap(), ids);
        assert_eq!(parse(" R, c,\tS\n🌧\u{FE0F}\r\n").unwrap(), ids);
        assert_eq!(parse("").unwrap(), Vec::<u8>::new());
    }

    #[test]
    fn printing_and_parsing_are_inverse() {
        let days = vec![2, 0, 1, 1, 0];
        assert_eq!(format(&days), "☀\u{FE0F}🌧\u{FE0F}☁\u{FE0F}☁\u{FE0F}🌧\u{FE0F}");
        assert_eq!(parse(&format(&days)).unwrap(), days);
        for weather in Weather::ALL {
            assert_eq!(Weather::from_id(weather.id()), Some(weather));
            assert_eq!(parse(&weather.to_string()).unwrap(), [weather.id()]);
        }
        assert_eq!(Weather::from_id(3), None);
    }

    #[test]
    fn an_error_names_line_column_and_character() {
        let error = parse("🌧\u{FE0F}☁\u{FE0F}\n☀\u{FE0F}, ☀\u{FE0F} x").unwrap_err();
        assert_eq!(error, ParseError { line: 2, column: 6, character: 'x' });
        assert!(error.to_string().starts_with("line 2, column 6: `x` is neither rain"));
        // The character is shown even if it is invisible.
        let error = parse("R\u{200B}").unwrap_err();
        assert!(error.to_string().contains("`\\u{200b}`"), "{error}");
    }
}
