//! `.jsonl`: a JSON object on each line; blank lines are skipped.

use super::{Cells, Each, Format, Rows, Source};
use crate::data::json_line;
use crate::error::Result;

pub(super) const FORMAT: Format = Format {
    endings: &["jsonl", "ndjson", "json"],
    accepts: |_| true,
    open: |_| Ok(Box::new(JsonLines)),
};

struct JsonLines;

impl Rows for JsonLines {
    fn each(&self, source: &Source, each: &mut Each<'_>) -> Result<()> {
        for (at, line) in source.text.split('\n').enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let object = json_line::object(line);
            let row = object.as_ref().map(Cells::Json).map_err(Clone::clone);
            source.pass(at + 1..=at + 1, row, each)?;
        }
        Ok(())
    }
}
