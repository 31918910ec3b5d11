//! A column of labels that are numbers.

use serde_json::Value;

use crate::data::table::Cell;

/// How the numbers of a column become labels.
#[derive(Clone, Copy)]
pub(super) struct LabelColumn<'a> {
    pub(super) name: &'a str,
    /// What they are divided by: `task.data.label_scale`.
    pub(super) scale: f64,
    /// The kind of the loss that needs them, for errors.
    pub(super) loss: &'a str,
}

impl LabelColumn<'_> {
    /// The label in a cell.
    ///
    /// # Errors
    /// If it is no number, or is not `within` the least and the highest label.
    pub(super) fn label(self, cell: Cell<'_>, within: Option<(f64, f64)>) -> Result<f64, String> {
        let label = self.number(cell)?;
        match within {
            Some((least, most)) if !(least..=most).contains(&label) => {
                let rule = format!(
                    "a number from {least} to {most}: `task.data.label_scale` divides labels"
                );
                Err(self.wrong(label, &rule))
            }
            _ => Ok(label),
        }
    }

    /// The label in a cell, 0 or 1.
    ///
    /// # Errors
    /// If it is another one.
    pub(super) fn binary(self, cell: Cell<'_>) -> Result<f64, String> {
        let label = self.number(cell)?;
        if label == 0. || label == 1. { Ok(label) } else { Err(self.wrong(label, "0 or 1")) }
    }

    /// The margin in a cell, or the difference of the two scores in it.
    ///
    /// # Errors
    /// If it holds neither.
    pub(super) fn margin(self, cell: Cell<'_>) -> Result<f64, String> {
        match cell {
            Cell::Json(Value::Array(scores)) if scores.len() == 2 => {
                Ok(self.number(Cell::Json(&scores[0]))? - self.number(Cell::Json(&scores[1]))?)
            }
            cell => self.number(cell),
        }
    }

    fn number(self, cell: Cell<'_>) -> Result<f64, String> {
        Ok(cell.number(self.name, &self.needs())? / self.scale)
    }

    fn needs(self) -> String {
        format!("the loss \"{}\"", self.loss)
    }

    fn wrong(self, label: f64, rule: &str) -> String {
        let divided = if self.scale == 1. { "" } else { " after `task.data.label_scale`" };
        format!("`{}` is {label}{divided}, and {} needs {rule}", self.name, self.needs())
    }
}
