//! Patterns of parameter names, in which `*` matches any text.

/// Whether `name` matches `pattern`.
///
/// ```
/// use tealight_model::pattern::matches;
///
/// assert!(matches("layer.*.key.*", "layer.0.attention.key.bias"));
/// assert!(!matches("key.*", "layer.0.attention.key.bias"));
/// ```
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len())
                .filter(|&at| name.is_char_boundary(at))
                .any(|at| matches(rest, &name[at..]))
        }),
    }
}

/// Whether `name` matches one of `patterns`.
pub fn matches_any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text() {
        assert!(matches("*.key.bias", "layer.0.attention.key.bias"));
        assert!(matches("layer.*.key.*", "layer.0.attention.key.bias"));
        assert!(matches("*", ""));
        assert!(!matches("*.key.bias", "layer.0.attention.key.weight"));
        assert!(!matches("key.bias", "layer.0.attention.key.bias"));
        assert!(matches_any(&["a".to_owned(), "b*".to_owned()], "bias"));
        assert!(!matches_any(&[], "bias"));
    }
}
