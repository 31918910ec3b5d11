//! Expressions of a file, with their values, that a trained model is tested on: a table such as the `.tsv` files of the
//! Long Range Arena.

use std::path::Path;

use serde_json::Value;

use super::expression::Expression;
use crate::data::table::{Cell, Cells, Table};
use crate::error::{Error, Result};

/// Names of the columns, without regard to case; the Long Range Arena has `Source` and `Target`.
const EXPRESSION: [&str; 4] = ["expression", "source", "input", "text"];
const VALUE: [&str; 5] = ["value", "target", "answer", "output", "label"];

/// The expressions of the table at `path`, of at most `longest` tokens.
///
/// # Errors
/// If a row is no expression with its value, or is too long.
pub(super) fn read(path: &Path, longest: usize) -> Result<Vec<Expression>> {
    let table = Table::open("--data", path)?;
    let (mut broken, mut all) = (table.broken(), Vec::new());
    table.each(|origin, row| {
        let row = row.and_then(|cells| expression(cells, longest));
        all.extend(broken.row(&origin, row));
        Ok(())
    })?;
    broken.check("")?;
    if all.is_empty() {
        return Err(Error::input(format!("`{}` holds no expression", path.display())));
    }
    Ok(all)
}

fn expression(cells: Cells<'_>, longest: usize) -> Result<Expression, String> {
    let of = |names: &[&str]| {
        let is = |name: &str| names.iter().any(|known| name.eq_ignore_ascii_case(known));
        let cell = cells.iter().find(|(name, _)| is(name)).map(|(_, cell)| cell);
        match cell {
            Some(Cell::Written(text)) => Ok(text.trim().to_owned()),
            Some(Cell::Json(Value::String(text))) => Ok(text.trim().to_owned()),
            Some(Cell::Json(value)) => Ok(value.to_string()),
            None => Err(format!("there is no column of the names {}", names.join(", "))),
        }
    };
    let (written, value) = (of(&EXPRESSION)?, of(&VALUE)?);
    let expression = Expression::parse(&written)?;
    let (n, own) = (expression.tokens.len(), expression.value);
    if n > longest {
        return Err(format!(
            "the expression has {n} tokens, and the model is built for at most {longest}"
        ));
    }
    if value != own.to_string() {
        return Err(format!(
            "the value is \"{}\", and that of the expression is {own}",
            value.escape_debug()
        ));
    }
    Ok(expression)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(name: &str, text: &str) -> Result<Vec<Expression>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path, 9).map_err(|error| error.to_string())
    }

    #[test]
    fn a_row_is_an_expression_and_its_value() {
        let arena = "Source\tTarget\n( ( ( [MAX 2 ) ( ( ( [SM 5 ) 8 ) ] ) ) ] )\t3\n";
        let json = "{\"value\": 3, \"expression\": \"[MAX 2 [SM 5 8 ] ]\"}\n";
        let [of_arena, of_json] = [("a.tsv", arena), ("a.jsonl", json)]
            .map(|(name, text)| read_text(name, text).unwrap());
        assert_eq!(of_arena, of_json);
        let [one] = &of_arena[..] else { panic!("{of_arena:?}") };
        assert_eq!((one.text().as_str(), one.value, one.depth), ("[MAX 2 [SM 5 8 ] ]", 3, 2));
    }

    #[test]
    fn what_is_no_expression_is_named_with_its_line() {
        for (row, rule) in [
            ("[MAX 2 3 ],2", "line 2: the value is \"2\", and that of the expression is 3"),
            ("[MAX 2 3,3", "the expression does not end"),
            (",3", "the expression does not end"),
            ("[MAX ],0", "a bracket closes no operation on digits"),
            ("],0", "a bracket closes no operation on digits"),
            ("7,7", "the digit 7 is in no operation"),
            ("[MAX 2 ] 3,2", "\"3\" follows the end"),
            ("[MAX 10 ],1", "\"10\" is no digit, no ], and none of [MIN, [MAX, [MED, [SM"),
            ("[MAX 1 1 1 1 1 1 1 1 ],1", "has 10 tokens, and the model is built for at most 9"),
        ] {
            let error = read_text("a.csv", &format!("text,label\n{row}\n")).unwrap_err();
            assert!(error.contains(rule), "{error}");
        }
        let error = read_text("a.csv", "text,x\n[MAX 2 3 ],3\n").unwrap_err();
        assert!(error.contains("no column of the names value, target"), "{error}");
        assert!(read_text("a.csv", "text,label\n").unwrap_err().contains("holds no expression"));
    }
}
