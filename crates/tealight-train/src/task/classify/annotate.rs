//! A file of texts with what a model predicts for each: further columns, or further fields of objects.

use std::path::Path;

use serde_json::{Value, json};

use crate::data::table::{Cell, Cells, Table, ending};
use crate::error::{Error, Result};
use crate::inference::labels::{Classified, Objective};

const PREDICTED: &str = "predicted";
const PROBABILITY: &str = "probability";

/// The rows of the file at `path`, each with the labels in `classified`, in the format of the file: `predicted`, its
/// `probability` (if no label is predicted, that of the likeliest), and `probability of LABEL` for each label. A
/// regression predicts a number. Rows that are not `is_read`, and not among the classified ones, are left out.
///
/// # Errors
/// If the file cannot be read, has a column of one of these names already, or has another number of rows.
pub fn annotated(
    path: &Path,
    objective: Objective,
    is_read: &[bool],
    classified: &[Classified],
) -> Result<Vec<u8>> {
    let table = Table::open("--file", path)?;
    let mut all = classified.iter().map(|one| added(objective, one));
    let added: Vec<_> =
        is_read.iter().map(|&is_read| if is_read { all.next() } else { None }).collect();
    if let Some(separator) = table.separator() {
        return csv(&table, separator, path, &added);
    }
    let lines = json_lines(&table, path, &added)?;
    let text = if ending(path) == "json" {
        format!("[\n{}\n]\n", lines.join(",\n"))
    } else {
        lines.iter().flat_map(|line| [line, "\n"]).collect()
    };
    Ok(text.into_bytes())
}

/// What is added to a row.
type Added = Vec<(String, Value)>;

fn added(objective: Objective, Classified { labels, scores }: &Classified) -> Added {
    if objective == Objective::Regression {
        return vec![(PREDICTED.to_owned(), json!(scores.first().map(|one| one.score)))];
    }
    // A threshold may decide for a label that is not the likeliest.
    let given = scores.iter().find(|one| labels.first() == Some(&one.label)).or(scores.first());
    let probability = given.map(|one| one.score);
    let mut by_label: Added = scores
        .iter()
        .map(|one| (format!("{PROBABILITY} of {}", one.label), json!(one.score)))
        .collect();
    // The order of the scores differs from row to row.
    by_label.sort_by(|one, other| one.0.cmp(&other.0));
    let first = [
        (PREDICTED.to_owned(), json!(labels.join(";"))),
        (PROBABILITY.to_owned(), json!(probability)),
    ];
    first.into_iter().chain(by_label).collect()
}

fn csv(table: &Table, separator: u8, path: &Path, added: &[Option<Added>]) -> Result<Vec<u8>> {
    let wrong = |error: csv::Error| Error::unusable(path, &error);
    let mut writer = csv::WriterBuilder::new().delimiter(separator).from_writer(Vec::new());
    let heading = table.heading().unwrap_or_default().iter().map(String::as_str);
    let first = added.iter().flatten().next().map_or(&[][..], Vec::as_slice);
    refuse_taken(path, heading.clone(), first)?;
    writer
        .write_record(heading.chain(first.iter().map(|(name, _)| name.as_str())))
        .map_err(wrong)?;
    let mut rest = added.iter();
    table.each(|_, row| {
        let Some(added) = next(path, &mut rest)? else { return Ok(()) };
        let row = row.map_err(|rule| Error::unusable(path, &rule))?;
        let shown = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let cells = row.iter().map(|(_, cell)| match cell {
            Cell::Written(text) => text.to_owned(),
            Cell::Json(value) => shown(value),
        });
        writer.write_record(cells.chain(added.iter().map(|(_, value)| shown(value)))).map_err(wrong)
    })?;
    writer.into_inner().map_err(|error| Error::unusable(path, &error.error()))
}

/// A line for each object.
fn json_lines(table: &Table, path: &Path, added: &[Option<Added>]) -> Result<Vec<String>> {
    let (mut lines, mut rest) = (Vec::new(), added.iter());
    table.each(|_, row| {
        let Some(added) = next(path, &mut rest)? else { return Ok(()) };
        let row = row.map_err(|rule| Error::unusable(path, &rule))?;
        refuse_taken(path, row.iter().map(|(name, _)| name), added)?;
        let Cells::Json(object) = row else { return Ok(()) };
        let mut object = object.clone();
        object.extend(added.iter().cloned());
        lines.push(Value::Object(object).to_string());
        Ok(())
    })?;
    Ok(lines)
}

/// What is added to the next row; `None` if it is left out.
fn next<'a>(
    path: &Path,
    rest: &mut impl Iterator<Item = &'a Option<Added>>,
) -> Result<Option<&'a Added>> {
    let next = rest.next().map(Option::as_ref);
    next.ok_or_else(|| Error::unusable(path, &"it has changed while it was read"))
}

/// Refuses to write a column of a name that the file has already.
fn refuse_taken<'a>(
    path: &Path,
    mut known: impl Iterator<Item = &'a str>,
    added: &[(String, Value)],
) -> Result<()> {
    match known.find(|known| added.iter().any(|(name, _)| name == known)) {
        Some(taken) => Err(Error::unusable(path, &format!("it has a column `{taken}` already"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::labels::Score;

    fn one(scores: &[(&str, f64)]) -> Classified {
        let score = |&(label, score): &(&str, f64)| Score {
            label: label.to_owned(),
            score,
            accepted: None,
        };
        Classified {
            labels: vec![scores[0].0.to_owned()],
            scores: scores.iter().map(score).collect(),
        }
    }

    fn of(name: &str, content: &str) -> Result<String> {
        read_in(name, content, &[true, true])
    }

    fn read_in(name: &str, content: &str, is_read: &[bool]) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let classified = [one(&[("b", 0.75), ("a", 0.25)]), one(&[("a", 0.5), ("b", 0.5)])];
        let bytes = annotated(&path, Objective::Classes, is_read, &classified)?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn rows_keep_their_cells_and_get_further_ones() {
        let table = of("a.csv", "nr,text\n1,\"x, y\"\n2,z\n").unwrap();
        let expected = "nr,text,predicted,probability,probability of a,probability of b\n\
                        1,\"x, y\",b,0.75,0.25,0.75\n2,z,a,0.5,0.5,0.5\n";
        assert_eq!(table, expected);
        let semicolons = of("a.csv", "nr;text\n1;\"x; y\"\n2;z\n").unwrap();
        assert!(semicolons.contains("\n1;\"x; y\";b;0.75;0.25;0.75\n"), "{semicolons}");
        let list = of("a.json", "[{\"text\":\"x\"},{\"text\":\"z\"}]").unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list[1]["predicted"], json!("a"));
        let lines = of("a.jsonl", "{\"text\":\"x\"}\n\n{\"text\":\"z\"}\n").unwrap();
        let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!((&first["text"], &first["predicted"]), (&json!("x"), &json!("b")));
        assert_eq!(lines.lines().count(), 2);
    }

    #[test]
    fn a_row_without_a_text_is_left_out() {
        let is_read = [false, true, false, true];
        let table = read_in("a.csv", "nr,text\nx\n2,y\n3,\n4,z\n", &is_read).unwrap();
        let rows: Vec<_> = table.lines().skip(1).map(|line| &line[..5]).collect();
        assert_eq!(rows, ["2,y,b", "4,z,a"]);
        let lines = "7\n{\"text\":\"x\"}\n{}\n{\"text\":\"z\"}\n";
        assert_eq!(read_in("a.jsonl", lines, &is_read).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_column_is_not_overwritten() {
        let error = of("a.csv", "text,predicted\nx,1\n").unwrap_err().to_string();
        assert!(error.contains("it has a column `predicted` already"), "{error}");
    }
}
