//! A file of texts with what a model predicts for each: further columns of a `.csv`, further fields of a `.jsonl`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::data::json_line;
use crate::error::{Error, Result};
use crate::inference::labels::{Classified, Objective};

const PREDICTED: &str = "predicted";
const PROBABILITY: &str = "probability";

/// The rows of the file at `path`, each with the labels in `classified`, in the format of the file: `predicted`, the
/// `probability` of that label, or of the likeliest if there is none, and one `probability of LABEL` for each. A
/// regression predicts a number.
///
/// # Errors
/// If the file cannot be read, has a column of one of these names already, or has another number of rows.
pub fn annotated(path: &Path, objective: Objective, classified: &[Classified]) -> Result<Vec<u8>> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let added: Vec<_> = classified.iter().map(|one| added(objective, one)).collect();
    if path.extension().is_some_and(|ending| ending == "csv") {
        csv(path, bytes, &added)
    } else {
        jsonl(path, bytes, &added)
    }
}

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

fn csv(path: &Path, bytes: &[u8], added: &[Added]) -> Result<Vec<u8>> {
    let wrong = |error: csv::Error| Error::unusable(path, &error);
    let mut reader = csv::Reader::from_reader(bytes);
    let mut writer = csv::Writer::from_writer(Vec::new());
    let heading = reader.headers().map_err(wrong)?;
    let first = added.first().map_or(&[][..], Vec::as_slice);
    refuse_taken(path, heading.iter(), first)?;
    let names = first.iter().map(|(name, _)| name.as_str());
    writer.write_record(heading.iter().chain(names)).map_err(wrong)?;
    let mut rest = added.iter();
    for row in reader.records() {
        let (row, added) = (row.map_err(wrong)?, next(path, &mut rest)?);
        let cell = |(_, value): &(String, Value)| match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            number => number.to_string(),
        };
        let cells = row.iter().map(str::to_owned).chain(added.iter().map(cell));
        writer.write_record(cells).map_err(wrong)?;
    }
    writer.into_inner().map_err(|error| Error::unusable(path, &error.error()))
}

fn jsonl(path: &Path, bytes: &[u8], added: &[Added]) -> Result<Vec<u8>> {
    let (mut text, mut rest) = (String::new(), added.iter());
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let wrong = |rule: String| Error::line(path, at + 1, rule);
        let line = str::from_utf8(line).map_err(|_| wrong("this is not UTF-8".to_owned()))?;
        if line.trim().is_empty() {
            continue;
        }
        let mut object = json_line::object(line).map_err(wrong)?;
        let added = next(path, &mut rest)?;
        refuse_taken(path, object.keys().map(String::as_str), added)?;
        object.extend(added.iter().cloned());
        text += &Value::Object(object).to_string();
        text.push('\n');
    }
    Ok(text.into_bytes())
}

fn next<'a>(path: &Path, rest: &mut impl Iterator<Item = &'a Added>) -> Result<&'a Added> {
    rest.next().ok_or_else(|| Error::unusable(path, &"it has changed while it was read"))
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        let classified = [one(&[("b", 0.75), ("a", 0.25)]), one(&[("a", 0.5), ("b", 0.5)])];
        let bytes = annotated(&path, Objective::Classes, &classified)?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn rows_keep_their_cells_and_get_further_ones() {
        let table = of("a.csv", "nr,text\n1,\"x, y\"\n2,z\n").unwrap();
        let expected = "nr,text,predicted,probability,probability of a,probability of b\n\
                        1,\"x, y\",b,0.75,0.25,0.75\n2,z,a,0.5,0.5,0.5\n";
        assert_eq!(table, expected);
        let lines = of("a.jsonl", "{\"text\":\"x\"}\n\n{\"text\":\"z\"}\n").unwrap();
        let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!((&first["text"], &first["predicted"]), (&json!("x"), &json!("b")));
        assert_eq!(lines.lines().count(), 2);
    }

    #[test]
    fn a_column_is_not_overwritten() {
        let error = of("a.csv", "text,predicted\nx,1\n").unwrap_err().to_string();
        assert!(error.contains("it has a column `predicted` already"), "{error}");
    }
}
