//! `.json`: a list of JSON objects.

use serde_json::{Deserializer, Value};

use super::{Cells, Each, Format, Rows, Source};
use crate::data::json_line::without_line;
use crate::error::Result;

pub(super) const FORMAT: Format = Format {
    endings: &["jsonl", "ndjson", "json"],
    accepts: |text| text.trim_start().starts_with('['),
    open: |_| Ok(Box::new(JsonArray)),
};

struct JsonArray;

impl Rows for JsonArray {
    /// Reads one element at a time, to know the line of each.
    fn each(&self, source: &Source, each: &mut Each<'_>) -> Result<()> {
        let mut rest = source.text.trim_start();
        let mut line = 1 + lines(&source.text[..source.text.len() - rest.len()]);
        // Leaves out the first `n` bytes, and the white space behind them.
        let mut skip = |rest: &mut &str, n: usize| {
            let after = rest[n..].trim_start();
            line += lines(&rest[..rest.len() - after.len()]);
            *rest = after;
            line
        };
        let mut line = skip(&mut rest, 1);
        if !rest.starts_with(']') {
            loop {
                let mut values = Deserializer::from_str(rest).into_iter::<Value>();
                let value = match values.next() {
                    Some(Ok(value)) => value,
                    Some(Err(error)) => {
                        let at = line + error.line() - 1;
                        let rule = format!("this is not JSON: {}", without_line(&error));
                        return Err(source.wrong(at, rule));
                    }
                    None => return Err(source.wrong(line, "the list does not end")),
                };
                let n = values.byte_offset();
                let row = match &value {
                    Value::Object(object) => Ok(Cells::Json(object)),
                    _ => Err("this is JSON, but not an object".to_owned()),
                };
                source.pass(line..=line + lines(&rest[..n]), row, each)?;
                line = skip(&mut rest, n);
                match rest.as_bytes().first() {
                    Some(b',') => line = skip(&mut rest, 1),
                    Some(b']') => break,
                    _ => {
                        let rule = "a comma or the end of the list is missing";
                        return Err(source.wrong(line, rule));
                    }
                }
            }
        }
        let line = skip(&mut rest, 1);
        if rest.is_empty() {
            Ok(())
        } else {
            Err(source.wrong(line, "the list has ended, and there is more"))
        }
    }
}

fn lines(text: &str) -> usize {
    text.matches('\n').count()
}
