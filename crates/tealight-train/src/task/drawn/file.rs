//! Examples of a file that a trained model is tested on: objects with `ids` and `labels`, such as lines of JSON.

use std::path::Path;

use serde_json::Value;
use tealight_ops::cross_entropy::IGNORE_INDEX;

use super::example::Example;
use super::source::Source;
use crate::data::table::{Cell, Cells, Table};
use crate::error::{Error, Result};

/// The examples at `path`, of at most `longest` symbols of `source`. −100 is no label.
///
/// # Errors
/// If a row is no example, or is too long.
pub(super) fn read(path: &Path, source: &dyn Source, longest: usize) -> Result<Vec<Example>> {
    let table = Table::open("--data", path)?;
    let (mut broken, mut all) = (table.broken(), Vec::new());
    table.each(|origin, row| {
        let row = row.and_then(|cells| example(cells, source, longest));
        all.extend(broken.row(&origin, row));
        Ok(())
    })?;
    broken.check("")?;
    if all.is_empty() {
        return Err(Error::input(format!("`{}` holds no example", path.display())));
    }
    Ok(all)
}

fn example(cells: Cells<'_>, source: &dyn Source, longest: usize) -> Result<Example, String> {
    let numbers = |wanted: &str, least: i64, below: usize| {
        let list = match cells.get(wanted) {
            Some(Cell::Json(Value::Array(list))) => list.clone(),
            Some(_) => return Err(format!("`{wanted}` is not a list")),
            None => return Err(format!("there is no `{wanted}`")),
        };
        let number = |value: &Value| {
            let is_below = |n: i64| u64::try_from(n).is_ok_and(|n| n < below as u64);
            value.as_i64().filter(|&n| n == least || is_below(n)).ok_or_else(|| {
                format!("`{wanted}` has {value}, and must hold whole numbers below {below}")
            })
        };
        list.iter().map(number).collect::<Result<Vec<i64>, String>>()
    };
    let ids = numbers("ids", 0, source.vocab_size())?;
    let labels = numbers("labels", IGNORE_INDEX, source.n_classes())?;
    if ids.is_empty() || ids.len() > longest || ids.len() != labels.len() {
        return Err(format!(
            "there are {} symbols and {} labels, and must be as many, from 1 to {longest}",
            ids.len(),
            labels.len()
        ));
    }
    let mut example = Example::new(ids.into_iter().map(|id| id as u32).collect());
    for (at, label) in labels.into_iter().enumerate().filter(|&(_, label)| label >= 0) {
        example.label(at, label as u32, at + 1);
    }
    Ok(example)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::drawn::tests::Toy;

    fn read_text(text: &str) -> Result<Vec<Example>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("examples.jsonl");
        std::fs::write(&path, text).unwrap();
        read(&path, &Toy, 3).map_err(|error| error.to_string())
    }

    #[test]
    fn a_line_is_an_example() {
        let read = read_text("{\"ids\": [0, 1, 2], \"labels\": [-100, 1, -100]}\n").unwrap();
        let [example] = &read[..] else { panic!("{read:?}") };
        assert_eq!(example.ids, [0, 1, 2]);
        assert_eq!(example.labels, [IGNORE_INDEX, 1, IGNORE_INDEX]);
    }

    #[test]
    fn what_is_no_example_is_named_with_its_line() {
        for (line, rule) in [
            (
                "{\"ids\": [0, 3], \"labels\": [0, 1]}",
                "line 1: `ids` has 3, and must hold whole numbers below 3",
            ),
            (
                "{\"ids\": [0, 1], \"labels\": [0, 2]}",
                "`labels` has 2, and must hold whole numbers below 2",
            ),
            ("{\"ids\": [0, 1], \"labels\": [0, -1]}", "`labels` has -1"),
            ("{\"ids\": [0, 1.5], \"labels\": [0, 0]}", "`ids` has 1.5"),
            (
                "{\"ids\": [0, 1], \"labels\": [0]}",
                "2 symbols and 1 labels, and must be as many, from 1 to 3",
            ),
            ("{\"ids\": [0, 0, 0, 0], \"labels\": [0, 0, 0, 0]}", "4 symbols"),
            ("{\"ids\": 5, \"labels\": [0]}", "`ids` is not a list"),
            ("{\"ids\": [0]}", "there is no `labels`"),
        ] {
            let error = read_text(&format!("{line}\n")).unwrap_err();
            assert!(error.contains(rule), "{error}");
        }
    }
}
