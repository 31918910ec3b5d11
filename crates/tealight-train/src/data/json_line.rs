//! Parsing a line of JSON.

use serde_json::{Map, Value};

/// The JSON object on a line, or the error with its column; the caller adds the number of the line.
pub(crate) fn object(line: &str) -> Result<Map<String, Value>, String> {
    // With the line break, serde_json would report an incomplete object on the next line.
    let value = serde_json::from_str(line.trim_end());
    match value.map_err(|error| format!("this is not JSON: {}", without_line(&error)))? {
        Value::Object(object) => Ok(object),
        _ => Err("this is JSON, but not an object".to_owned()),
    }
}

/// The error without the number of its line, which a reader of single values counts from their beginning.
pub(crate) fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match message.strip_suffix(&place) {
        Some(rule) => format!("{rule} at column {}", error.column()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_its_column_and_without_a_line() {
        assert_eq!(object("{\"a\": 1}\n").unwrap()["a"], 1);
        for (line, rule) in [
            ("{\n", "this is not JSON: EOF while parsing an object at column 1"),
            ("{\"a\": x}", "this is not JSON: expected value at column 7"),
            ("[1]", "this is JSON, but not an object"),
        ] {
            assert_eq!(object(line).unwrap_err(), rule);
        }
        let deep = object(&format!("{{\"text\": {}", "[".repeat(100_000))).unwrap_err();
        assert!(deep.contains("recursion limit"), "{deep}");
    }
}
