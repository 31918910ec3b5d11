//! A user's text within a line for the user.

use std::borrow::Cow;

/// `text` with an escape, such as `\n`, for each character that breaks a line, acts on the terminal or changes the direction
/// of what follows. Quotes and marks stay as they are.
pub fn on_one_line(text: &str) -> Cow<'_, str> {
    let is_escaped =
        |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::on_one_line;

    #[test]
    fn only_what_acts_on_the_line_is_escaped() {
        for plain in ["you'd say \"so\"", "a\\b", "ภาษาไทยที่นี่", "हिन्दी", "e\u{301}", "\u{200f}שלום"]
        {
            assert_eq!(on_one_line(plain), plain);
        }
        for (text, shown) in [
            ("a\nb\tc", "a\\nb\\tc"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\u{2028}b", "a\\u{2028}b"),
            ("\u{202e}txt.exe", "\\u{202e}txt.exe"),
            ("\u{2066}a", "\\u{2066}a"),
        ] {
            assert_eq!(on_one_line(text), shown);
        }
    }
}
