//! Lists as they are typed: `softmax,aft_full` or `[1,2],{ kind = "a", n = 3 }`.

/// The parts of `text` between the `separator`s that stand outside quotes and brackets.
pub(crate) fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let (mut quote, mut depth, mut is_escaped) = (None, 0_i64, false);
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (Some('"'), _) if is_escaped => is_escaped = false,
            (Some('"'), '\\') => is_escaped = true,
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (None, _) if c == separator && depth <= 0 => {
                parts.push(text[start..index].trim());
                start = index + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_quotes_and_brackets_separate_nothing() {
        for (text, parts) in [
            ("a", &["a"][..]),
            ("a, b ,c", &["a", "b", "c"]),
            ("[1,2],[3]", &["[1,2]", "[3]"]),
            ("{a=1,b=[2,3]},c", &["{a=1,b=[2,3]}", "c"]),
            ("\"a,b\",'c,\"d',e", &["\"a,b\"", "'c,\"d'", "e"]),
            (r#""a\",b",c"#, &[r#""a\",b""#, "c"]),
            ("", &[""]),
            ("a,,b,", &["a", "", "b", ""]),
            ("]],a", &["]]", "a"]),
            ("ä,🕯", &["ä", "🕯"]),
        ] {
            assert_eq!(split(text, ','), parts, "{text}");
        }
        assert_eq!(split("a=b=c", '='), ["a", "b", "c"]);
    }
}
