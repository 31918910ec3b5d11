//! Texts from outside, made safe to show: names in a run, lines of a corpus and outputs of a model may contain
//! sequences that move the cursor, clear the screen, rename the window or reverse the order of what is read.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

/// `text` with each character that acts on a terminal written as an escape such as `\u{1b}`. Line breaks and tabs stay.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    escape(text, acts_on_a_terminal)
}

/// As [`visible`], for a text in colour whose parts from outside have no escape character any more.
pub(crate) fn visible_in_color(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\u{1b}' && acts_on_a_terminal(c))
}

/// The JSON `text` with each of these characters, which occur in its strings alone, as an escape of JSON: the same value.
pub(crate) fn visible_in_json(text: &str) -> Cow<'_, str> {
    escaped(text, acts_on_a_terminal, |c, escaped| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    })
}

fn escape(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    escaped(text, acts, |c, escaped| escaped.extend(c.escape_default()))
}

/// `text` in which each character that `acts` is what `write` writes of it.
fn escaped(
    text: &str,
    acts: impl Fn(char) -> bool,
    write: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) { write(c, &mut escaped) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// Control characters but line breaks and tabs, separators that a terminal may show as line breaks, and the characters
/// that reorder others (embeddings, overrides and isolates of the bidirectional algorithm). Marks of direction, which
/// Arabic and Hebrew texts use, reorder nothing beyond themselves.
fn acts_on_a_terminal(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A path as an argument in a command that a reader copies.
pub(crate) fn shell_path(path: &Path) -> String {
    shell_quoted(&path.to_string_lossy()).into_owned()
}

/// An argument in a command that a reader copies: in quotes where a shell would read it otherwise.
pub(crate) fn shell_quoted(argument: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    let is_option = argument.starts_with('-');
    if !argument.is_empty() && !is_option && argument.chars().all(is_plain) {
        return Cow::Borrowed(argument);
    }
    let dot = if is_option { "./" } else { "" };
    Cow::Owned(if argument.contains(|c| acts_on_a_terminal(c) || "\n\t".contains(c)) {
        format!("$'{dot}{}'", ansi_c(argument))
    } else {
        format!("'{dot}{}'", argument.replace('\'', r"'\''"))
    })
}

/// The text within `$'…'`, as bash, zsh and POSIX 2024 read it.
fn ansi_c(text: &str) -> String {
    let mut quoted = String::with_capacity(2 * text.len());
    for c in text.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted += r"\n",
            '\t' => quoted += r"\t",
            c if acts_on_a_terminal(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Octal escapes end after three digits, unlike those in hexadecimal.
                    let _ = write!(quoted, "\\{byte:03o}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted
}

/// A string as TOML writes it. JSON does it in the same way, but for one control character.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_shown_and_the_rest_is_as_it_was() {
        for (text, expected) in [
            ("a\u{1b}]0;title\u{7}b", r"a\u{1b}]0;title\u{7}b"),
            ("\u{9b}2J", r"\u{9b}2J"),
            ("over\rwritten\u{8}", r"over\rwritten\u{8}"),
            ("user\u{202e}txt.exe", r"user\u{202e}txt.exe"),
            ("\u{2066}a\u{2069}\u{2028}b\u{7f}\0", r"\u{2066}a\u{2069}\u{2028}b\u{7f}\u{0}"),
        ] {
            assert_eq!(visible(text), expected);
        }
        for same in ["", "a\n\tb", "☀️🌧️ 日本語 é e\u{301} 👩‍👩‍👧", "שלום\u{200f}!", r"C:\u{1b}"]
        {
            assert!(matches!(visible(same), Cow::Borrowed(text) if text == same));
        }
    }

    #[test]
    fn json_in_which_nothing_acts_on_a_terminal_has_the_same_values() {
        let value =
            serde_json::json!({ "a\u{9b}2J": ["\u{1b}[31m", "user\u{202e}txt\n\u{7f}", "日本語"] });
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let shown = visible_in_json(&json);
            assert_eq!(visible(&shown), shown);
            assert!(
                shown.contains(r"a\u009b2J") && shown.contains(r"user\u202etxt\n\u007f"),
                "{shown}"
            );
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }

    #[test]
    fn colours_stay_in_a_text_in_colour() {
        assert_eq!(visible_in_color("\u{1b}[31ma\u{9b}b\u{1b}[0m"), "\u{1b}[31ma\\u{9b}b\u{1b}[0m");
    }

    #[test]
    fn arguments_are_quoted_where_a_shell_would_read_them_otherwise() {
        for (argument, expected) in [
            ("runs/a-b_1.2", "runs/a-b_1.2"),
            ("läufe/日記", "läufe/日記"),
            ("", "''"),
            ("my runs", "'my runs'"),
            ("~/a", "'~/a'"),
            ("a;reboot", "'a;reboot'"),
            ("$(id)`id`", "'$(id)`id`'"),
            ("it's", r"'it'\''s'"),
            ("-rf", "'./-rf'"),
            ("a\nb'\\\u{1b}1", r"$'a\nb\'\\\0331'"),
            ("\u{202e}", r"$'\342\200\256'"),
        ] {
            assert_eq!(shell_quoted(argument), expected);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_a_quoted_argument_as_it_was() {
        for argument in [
            "a b",
            "it's \"$HOME\" `id`",
            "a;b&c|d>e",
            "*?[x]",
            "tab\there\nand\\n \u{1b}[2J'\u{202e}",
        ] {
            let command = format!("printf %s {}", shell_quoted(argument));
            let Ok(output) = std::process::Command::new("bash").args(["-c", &command]).output()
            else {
                return;
            };
            assert_eq!(String::from_utf8_lossy(&output.stdout), argument);
        }
    }

    #[test]
    fn strings_are_those_of_toml() {
        let text = "a \"b\"\\c\u{7f}\n";
        assert_eq!(quoted(text), r#""a \"b\"\\c\u007f\n""#);
    }
}
