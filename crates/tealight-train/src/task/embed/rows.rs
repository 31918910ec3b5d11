//! Rows of texts that a loss compares: pairs, scored pairs, triplets.

use std::path::Path;

use serde_json::Value;

use super::source::DataConfig;
use crate::data::table::{Cell, Cells, Table, Unused};
use crate::data::text::corpus::Origin;
use crate::error::{Error, Result};
use crate::task::label_column::LabelColumn;
use crate::task::parts::Read;

/// The fields of hard negatives that are read where no setting names them and a file has them.
const NEGATIVES: [&str; 2] = ["negative", "negatives"];
/// How broken rows are left out.
const ADVICE: &str = "; `task.data.skip_broken` = true (`--skip-broken`) leaves out such rows";

/// What rows consist of, besides the anchor and the positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wants {
    /// Hard negatives.
    pub(crate) negatives: Negatives,
    /// Whether a row has a label.
    pub(crate) labels: bool,
    /// Whether it is 0 or 1.
    pub(crate) binary: bool,
    /// Whether it is the margin of a teacher: a number, or its scores of the positive and of the negative.
    pub(crate) margins: bool,
    /// The least and the highest label.
    pub(crate) labels_in: Option<(f64, f64)>,
}

/// Hard negatives of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Negatives {
    /// None is read.
    None,
    /// As many as it has.
    Any,
    /// One; a row with several becomes several rows.
    One,
}

impl Wants {
    /// Pairs, with hard negatives or without.
    pub(super) fn pairs() -> Self {
        let (negatives, labels_in) = (Negatives::Any, None);
        Self { negatives, labels: false, binary: false, margins: false, labels_in }
    }

    /// Pairs with a number.
    pub(super) fn scored() -> Self {
        Self { negatives: Negatives::None, labels: true, ..Self::pairs() }
    }

    /// Pairs with a label 0 or 1.
    pub(super) fn binary() -> Self {
        Self { binary: true, ..Self::scored() }
    }

    /// Triplets.
    pub(super) fn triplets() -> Self {
        Self { negatives: Negatives::One, ..Self::pairs() }
    }

    /// Whether rows have a label of any kind.
    pub(super) fn has_labels(self) -> bool {
        self.labels || self.margins
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::task) struct Row {
    pub(super) anchor: String,
    pub(super) positive: String,
    pub(super) negatives: Vec<String>,
    pub(super) label: Option<f64>,
    /// Rows of one group have the same positives.
    pub(super) group: Option<String>,
    pub(super) origin: Origin,
}

/// What is read of a file.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) data: &'a DataConfig,
    pub(super) wants: Wants,
    /// The kind of the loss, for errors.
    pub(super) loss: &'static str,
}

/// The rows of the table in the setting `key`.
///
/// # Errors
/// If it cannot be read, or holds no row; if a row is broken, unless these are left out, or all are.
pub(super) fn read(key: &str, path: &Path, wanted: Wanted<'_>) -> Result<Read<Row>> {
    let table = Table::open(key, path)?;
    table.check_heading(wanted.required())?;
    let (mut broken, mut all, mut unused) = (table.broken(), Vec::new(), Unused::default());
    table.each(|origin, row| {
        if let Ok(cells) = &row {
            unused.add(*cells, |name| wanted.reads(name));
        }
        let read = row.and_then(|cells| wanted.rows(cells, &origin));
        all.extend(broken.row(&origin, read).into_iter().flatten());
        Ok(())
    })?;
    if !wanted.data.skip_broken || all.is_empty() {
        broken.check(if all.is_empty() { "" } else { ADVICE })?;
    }
    if all.is_empty() {
        let message = format!("`{}` holds no row", path.display());
        return Err(Error::config([key], message));
    }
    let left_out = broken.note().map(|note| format!("`{}`: {note}", path.display()));
    let notes = table.notes.into_iter().chain(left_out).chain(unused.note()).collect();
    Ok(Read { all, form: (), notes })
}

impl Wanted<'_> {
    /// The columns that all rows have.
    fn required(&self) -> impl Iterator<Item = &str> {
        let DataConfig { anchor, positive, self_positive, label, group, negatives, .. } = self.data;
        let positive = (!self_positive).then_some(positive);
        let label = self.wants.has_labels().then_some(label);
        let names = [Some(anchor), positive, label, group.as_ref()].into_iter().flatten();
        let of_negatives = negatives.iter().flatten().filter(|_| self.reads_negatives());
        names.chain(of_negatives).map(String::as_str)
    }

    fn reads_negatives(&self) -> bool {
        self.wants.negatives != Negatives::None
    }

    /// The fields of hard negatives.
    fn negatives(&self) -> Vec<&str> {
        match &self.data.negatives {
            _ if !self.reads_negatives() => Vec::new(),
            Some(names) => names.iter().map(String::as_str).collect(),
            None => NEGATIVES.to_vec(),
        }
    }

    fn reads(&self, name: &str) -> bool {
        self.required().any(|known| known == name) || self.negatives().contains(&name)
    }

    /// A row of the table: several, if it has several negatives and the loss takes one.
    fn rows(&self, cells: Cells<'_>, origin: &Origin) -> Result<Vec<Row>, String> {
        let DataConfig { anchor, positive, self_positive, group, negatives, .. } = self.data;
        let anchor = cells.filled_text(anchor)?;
        let positive = if *self_positive { anchor.clone() } else { cells.filled_text(positive)? };
        let mut of_row = Vec::new();
        for name in self.negatives() {
            if negatives.is_some() || cells.get(name).is_some() {
                of_row.extend(texts(cells, name)?);
            }
        }
        let group = group.as_ref().map(|name| word(cells, name)).transpose()?;
        let label = self.label(cells)?;
        let row = |negatives| Row {
            anchor: anchor.clone(),
            positive: positive.clone(),
            negatives,
            label,
            group: group.clone(),
            origin: origin.clone(),
        };
        if self.wants.negatives != Negatives::One {
            return Ok(vec![row(of_row)]);
        }
        if of_row.is_empty() {
            let names = self.negatives();
            return Err(format!(
                "it has no negative (`{}`), and the loss \"{}\" needs one",
                names.join("` or `"),
                self.loss
            ));
        }
        if self.wants.margins && of_row.len() > 1 {
            let n = of_row.len();
            return Err(format!(
                "it has {n} negatives and one margin: the loss \"{}\" needs a row for each",
                self.loss
            ));
        }
        Ok(of_row.into_iter().map(|negative| row(vec![negative])).collect())
    }

    fn label(&self, cells: Cells<'_>) -> Result<Option<f64>, String> {
        let Wants { binary, margins, labels_in, .. } = self.wants;
        let DataConfig { label: name, label_scale, .. } = self.data;
        if !self.wants.has_labels() {
            return Ok(None);
        }
        let column = LabelColumn { name, scale: *label_scale, loss: self.loss };
        let cell = cells.field(name)?;
        let label = match (margins, binary) {
            (true, _) => column.margin(cell),
            (_, true) => column.binary(cell),
            _ => column.label(cell, labels_in),
        };
        label.map(Some)
    }
}

/// A text, or a list of texts; none of an empty cell.
fn texts(cells: Cells<'_>, name: &str) -> Result<Vec<String>, String> {
    match cells.field(name)? {
        Cell::Json(Value::Null) => Ok(Vec::new()),
        Cell::Written(text) if text.trim().is_empty() => Ok(Vec::new()),
        Cell::Json(Value::Array(all)) => {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let texts = all.iter().map(text).collect::<Option<Vec<_>>>();
            let is_text = |texts: &Vec<String>| texts.iter().all(|text| !text.trim().is_empty());
            texts
                .filter(is_text)
                .ok_or_else(|| format!("the field `{name}` is not a list of texts"))
        }
        _ => Ok(vec![cells.filled_text(name)?]),
    }
}

/// A word or a number.
pub(super) fn word(cells: Cells<'_>, name: &str) -> Result<String, String> {
    match cells.field(name)? {
        Cell::Json(Value::String(word)) => Ok(word.clone()),
        Cell::Json(number @ Value::Number(_)) => Ok(number.to_string()),
        Cell::Written(word) => Ok(word.trim().to_owned()),
        Cell::Json(_) => Err(format!("the field `{name}` is neither a word nor a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: &str = r#"{"anchor":"a","positive":"b"}"#;

    fn rows(
        lines: &str,
        wants: Wants,
        change: impl FnOnce(&mut DataConfig),
    ) -> Result<Read<Row>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        std::fs::write(&path, lines).unwrap();
        let mut data = DataConfig::default();
        change(&mut data);
        let wanted = Wanted { data: &data, wants, loss: "cosine" };
        let read = read("task.data.path", &path, wanted);
        read.map_err(|error| {
            error.to_string().replace(&path.display().to_string(), "…").replace(ADVICE, "")
        })
    }

    #[test]
    fn negatives_are_fields_or_lists_and_a_triplet_has_one() {
        let lines =
            r#"{"anchor":"a","positive":"b","negative":"c","negatives":["d","e"],"more":1}"#;
        let Read { all, notes, .. } = rows(lines, Wants::pairs(), |_| {}).unwrap();
        assert_eq!(all[0].negatives, ["c", "d", "e"]);
        assert_eq!(notes, ["not used: `more`"]);
        let all = rows(lines, Wants::triplets(), |_| {}).unwrap().all;
        assert_eq!(all.iter().map(|row| &*row.negatives[0]).collect::<Vec<_>>(), ["c", "d", "e"]);
        let all = rows(lines, Wants::triplets(), |data| {
            data.negatives = Some(vec!["negative".to_owned()]);
        });
        assert_eq!(all.unwrap().all.len(), 1);
        let error = rows(PAIR, Wants::triplets(), |_| {}).unwrap_err();
        assert_eq!(
            error,
            "`…`, line 1: it has no negative (`negative` or `negatives`), and the loss \"cosine\" needs one"
        );
        assert!(rows(PAIR, Wants::pairs(), |_| {}).unwrap().all[0].negatives.is_empty());
    }

    #[test]
    fn a_text_may_be_its_own_positive_and_rows_may_have_groups() {
        let lines = r#"{"anchor":"a","group":7}"#;
        let all = rows(lines, Wants::pairs(), |data| {
            (data.self_positive, data.group) = (true, Some("group".to_owned()));
        });
        let row = &all.unwrap().all[0];
        assert_eq!((&*row.positive, row.group.as_deref()), ("a", Some("7")));
    }

    #[test]
    fn labels_are_scaled_and_checked() {
        let label = |value: &str| PAIR.replace('}', &format!(",\"label\":{value}}}"));
        let cosine = Wants { labels_in: Some((-1., 1.)), ..Wants::scored() };
        let read = |value: &str, wants, scale| {
            let all = rows(&label(value), wants, |data| data.label_scale = scale)?.all;
            Ok(all[0].label)
        };
        assert_eq!(read("2.5", cosine, 5.), Ok(Some(0.5)));
        assert_eq!(read("1", Wants::binary(), 1.), Ok(Some(1.)));
        assert_eq!(read("\"x\"", Wants::pairs(), 1.), Ok(None));
        for (value, wants, rule) in [
            (
                "4.2",
                cosine,
                "`label` is 4.2, and the loss \"cosine\" needs a number from -1 to 1: `task.data.label_scale` divides labels",
            ),
            ("0.5", Wants::binary(), "`label` is 0.5, and the loss \"cosine\" needs 0 or 1"),
            ("\"x\"", cosine, "`label` is \"x\", and the loss \"cosine\" needs a number"),
        ] {
            assert_eq!(read(value, wants, 1.), Err(format!("`…`, line 1: {rule}")));
        }
        let margin = Wants { margins: true, ..Wants::triplets() };
        let with = |value: &str| label(value).replace('}', ",\"negative\":\"c\"}");
        for (value, expected) in [("0.75", 0.75), ("[1.0,0.25]", 0.75)] {
            assert_eq!(rows(&with(value), margin, |_| {}).unwrap().all[0].label, Some(expected));
        }
        let several = with("1").replace("\"c\"", "[\"c\",\"d\"]");
        assert!(rows(&several, margin, |_| {}).unwrap_err().contains("2 negatives and one margin"));
    }

    #[test]
    fn broken_rows_are_named_or_left_out() {
        let lines =
            format!("{PAIR}\n{{\"anchor\":\"a\"}}\n{{\"anchor\":\" \",\"positive\":\"b\"}}");
        let error = rows(&lines, Wants::pairs(), |_| {}).unwrap_err();
        assert!(
            error.starts_with("`…`, line 2: there is no field `positive` among `anchor`"),
            "{error}"
        );
        assert!(error.contains("line 3: the field `anchor` is empty"), "{error}");
        let Read { all, notes, .. } =
            rows(&lines, Wants::pairs(), |data| data.skip_broken = true).unwrap();
        assert_eq!((all.len(), notes.len()), (1, 1));
    }
}
