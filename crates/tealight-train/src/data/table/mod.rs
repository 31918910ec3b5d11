//! Tables: rows of named cells. `FORMATS` lists the formats of files, each in a file of its own; a folder of class
//! folders with texts is a table, too. Files may be compressed, and in any [encoding](crate::storage::encoding).
//!
//! A row that cannot be read does not end the reading: `Broken` collects what is wrong.

mod broken;
mod folders;
mod json_array;
mod json_lines;
mod separated;
mod unused;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

pub(crate) use broken::Broken;
pub(crate) use unused::{Unused, listed};

use super::compressed::{self, Compression};
use super::text::corpus::Origin;
use crate::data::shown::on_one_line;
use crate::error::{Error, Result};

/// The formats of files. The first that has the ending of a file and accepts its text reads it.
const FORMATS: [&Format; 3] = [&json_array::FORMAT, &json_lines::FORMAT, &separated::FORMAT];

/// A format of files.
struct Format {
    /// How the names of its files end, in lower case.
    endings: &'static [&'static str],
    /// Whether a text of such a file has this format.
    accepts: fn(&str) -> bool,
    open: fn(&Source) -> Result<Box<dyn Rows>>,
}

/// A text with rows.
struct Source {
    path: Arc<Path>,
    /// In lower case, without that of a compression.
    ending: String,
    text: String,
    /// By line: what is wrong with its bytes.
    faults: BTreeMap<usize, String>,
}

/// What receives the rows of a table: the place of each, and its cells or what is wrong with it.
type Each<'a> = dyn FnMut(Origin, Result<Cells<'_>, String>) -> Result<()> + 'a;

/// How the rows of a table are read.
trait Rows {
    /// The names of the columns, where they are the same in all rows.
    fn heading(&self) -> Option<&[String]> {
        None
    }

    /// What a user should know about how the rows are read.
    fn note(&self) -> Option<String> {
        None
    }

    /// The sign between the cells of a row, where there is one.
    fn separator(&self) -> Option<u8> {
        None
    }

    /// Passes each row to `each`, which may end the reading by an error.
    fn each(&self, source: &Source, each: &mut Each<'_>) -> Result<()>;
}

impl Source {
    /// Passes the row on these lines to `each`; a row with bytes that are no characters is broken.
    fn pass(
        &self,
        lines: RangeInclusive<usize>,
        row: Result<Cells<'_>, String>,
        each: &mut Each<'_>,
    ) -> Result<()> {
        let origin = Origin { path: self.path.clone(), line: *lines.start() as u64 };
        match self.faults.range(lines).next() {
            Some((_, fault)) => each(origin, Err(fault.clone())),
            None => each(origin, row),
        }
    }

    fn wrong(&self, line: usize, rule: impl Into<String>) -> Error {
        Error::line(&self.path, line, rule)
    }
}

/// The cells of a row, by the names of their columns or fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cells<'a> {
    /// Fields of an object.
    Json(&'a Map<String, Value>),
    /// Text below a heading.
    Written { names: &'a [String], cells: &'a [Cow<'a, str>] },
}

/// A cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    Json(&'a Value),
    Written(&'a str),
}

impl<'a> Cells<'a> {
    pub(crate) fn get(self, name: &str) -> Option<Cell<'a>> {
        match self {
            Self::Json(object) => object.get(name).map(Cell::Json),
            Self::Written { names, cells } => {
                let at = names.iter().position(|known| known == name)?;
                Some(Cell::Written(cells.get(at)?))
            }
        }
    }

    /// The cell of this name.
    ///
    /// # Errors
    /// If the row has no such cell; the error lists the names that it has.
    pub(crate) fn field(self, name: &str) -> Result<Cell<'a>, String> {
        self.get(name).ok_or_else(|| {
            // Sorted: another crate may enable the feature of serde_json that keeps the order of fields.
            missing("field", name, self.iter().map(|(name, _)| name).collect::<BTreeSet<_>>())
        })
    }

    /// The text in the cell of this name.
    ///
    /// # Errors
    /// If the row has no such cell, or if it holds no text.
    pub(crate) fn text(self, name: &str) -> Result<String, String> {
        match self.field(name)? {
            Cell::Json(Value::String(text)) => Ok(text.clone()),
            Cell::Written(text) => Ok(text.to_owned()),
            Cell::Json(_) => Err(format!("the field `{name}` is not a text")),
        }
    }

    /// The text in the cell of this name, which is not empty.
    ///
    /// # Errors
    /// If it is, or if the cell has no text.
    pub(crate) fn filled_text(self, name: &str) -> Result<String, String> {
        let text = self.text(name)?;
        if text.trim().is_empty() {
            return Err(format!("the field `{name}` is empty"));
        }
        Ok(text)
    }

    /// All cells with their names.
    pub(crate) fn iter(self) -> Box<dyn Iterator<Item = (&'a str, Cell<'a>)> + 'a> {
        match self {
            Self::Json(object) => {
                Box::new(object.iter().map(|(name, value)| (name.as_str(), Cell::Json(value))))
            }
            Self::Written { names, cells } => {
                let cells = cells.iter().map(|cell| Cell::Written(cell));
                Box::new(names.iter().map(String::as_str).zip(cells))
            }
        }
    }
}

impl Cell<'_> {
    /// The number in this cell of `field`. `needs` names what needs one, for the error.
    ///
    /// # Errors
    /// If it is no number, or none that f32 can hold.
    pub(crate) fn number(self, field: &str, needs: &str) -> Result<f64, String> {
        let (number, shown) = match self {
            Self::Json(value) => (value.as_f64(), value.to_string()),
            Self::Written(cell) => (cell.trim().parse().ok(), format!("\"{}\"", on_one_line(cell))),
        };
        // It is computed with in f32.
        let rule = match number {
            Some(number) if (number as f32).is_finite() => return Ok(number),
            Some(_) => "a finite number in f32: at most 3.4e38 in size",
            None => "a number",
        };
        Err(format!("`{field}` is {shown}, and {needs} needs {rule}"))
    }
}

/// A table whose rows can be read, more than once.
pub(crate) struct Table {
    source: Source,
    rows: Box<dyn Rows>,
    /// What a user should know about how it is read, a line each.
    pub(crate) notes: Vec<String>,
}

impl Table {
    /// Opens the table in the setting or argument `key`.
    ///
    /// # Errors
    /// If it cannot be read, is no text, or has no format of [`FORMATS`].
    pub(crate) fn open(key: &str, path: &Path) -> Result<Self> {
        let shared: Arc<Path> = path.into();
        if path.is_dir() {
            let (text, faults) = (String::new(), BTreeMap::new());
            let source = Source { path: shared, ending: String::new(), text, faults };
            let rows = folders::open(key, path)?;
            return Ok(Self { source, notes: rows.note().into_iter().collect(), rows });
        }
        let ending = ending(path);
        if let Some(advice) = converted(path, &ending) {
            return Err(Error::config([key], advice));
        }
        let decoded = compressed::decoded(key, path)?;
        let (text, faults) = (decoded.text, decoded.faults);
        let source = Source { path: shared, ending, text, faults };
        let format = FORMATS.iter().find(|format| {
            format.endings.contains(&source.ending.as_str()) && (format.accepts)(&source.text)
        });
        let Some(format) = format else {
            return Err(Error::config([key], unknown(key, path)));
        };
        let rows = (format.open)(&source)?;
        let encoding = decoded.encoding.note().map(str::to_owned);
        let told = encoding.into_iter().chain(rows.note());
        let notes = told.map(|note| format!("`{}`: {note}", path.display())).collect();
        Ok(Self { source, rows, notes })
    }

    /// The names of the columns, where they are the same in all rows.
    pub(crate) fn heading(&self) -> Option<&[String]> {
        self.rows.heading()
    }

    /// # Errors
    /// If the columns are the same in all rows, and one of `names` is not among them, or is the name of two.
    pub(crate) fn check_heading<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let Some(heading) = self.heading() else { return Ok(()) };
        for name in names {
            let rule = match heading.iter().filter(|known| *known == name).count() {
                1 => continue,
                0 => missing("column", name, heading),
                n => format!(
                    "{n} columns are called `{name}`, and it is not known which one is meant"
                ),
            };
            return Err(self.source.wrong(1, rule));
        }
        Ok(())
    }

    /// The sign between the cells of a row; `None` of JSON.
    pub(crate) fn separator(&self) -> Option<u8> {
        self.rows.separator()
    }

    /// Passes each row to `each`, which may end the reading by an error.
    pub(crate) fn each(
        &self,
        mut each: impl FnMut(Origin, Result<Cells<'_>, String>) -> Result<()>,
    ) -> Result<()> {
        self.rows.each(&self.source, &mut each)
    }

    /// Nothing is wrong yet.
    pub(crate) fn broken(&self) -> Broken {
        Broken::new(self.source.path.clone())
    }
}

fn missing(what: &str, name: &str, known: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let known: Vec<String> =
        known.into_iter().map(|known| format!("`{}`", on_one_line(known.as_ref()))).collect();
    if known.is_empty() {
        return format!("there is no {what} `{name}`, nor any other");
    }
    format!("there is no {what} `{name}` among {}", known.join(", "))
}

/// Whether the name of a file is that of a table, or it is a folder.
pub fn is_table(path: &Path) -> bool {
    let ending = ending(path);
    path.is_dir() || FORMATS.iter().any(|format| format.endings.contains(&ending.as_str()))
}

/// How the name of a file ends, in lower case and without the ending of a compression: `csv` of `A.CSV.gz`.
pub fn ending(path: &Path) -> String {
    let name =
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
    let (name, _) = Compression::from_name(&name);
    name.rsplit_once('.').map_or_else(String::new, |(_, ending)| ending.to_owned())
}

/// How a table of a format that is not read becomes one that is; `None` of other files.
fn converted(path: &Path, ending: &str) -> Option<String> {
    let reader = match ending {
        "parquet" | "feather" => ending,
        "xlsx" | "xls" => "excel",
        _ => return None,
    };
    let shown = path.display();
    Some(format!(
        "`{shown}` ends in .{ending}, which is not read; Python writes a .csv of it: `python -c \"import pandas; \
         pandas.read_{reader}('{shown}').to_csv('{}', index=False)\"`",
        path.with_extension("csv").display()
    ))
}

fn unknown(key: &str, path: &Path) -> String {
    let mut known: Vec<String> = Vec::new();
    for ending in FORMATS.iter().rev().flat_map(|format| format.endings) {
        let ending = format!(".{ending}");
        if !known.contains(&ending) {
            known.push(ending);
        }
    }
    format!(
        "`{key}` = `{}` is no table: it ends in none of {} (plain, .gz or .zst), and is no folder of class folders",
        path.display(),
        known.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::compressed::tests::{gzip, zstandard};

    /// The rows of a file: the line, and the cells `text` and `label`, or what is wrong. Then the notes.
    fn rows(name: &str, bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let without = |text: String| text.replace(&folder.path().display().to_string(), "…");
        let table = Table::open("--data", &path).map_err(|error| without(error.to_string()))?;
        let mut rows = Vec::new();
        let shown = |cells: Cells<'_>, name| match cells.get(name) {
            Some(Cell::Json(Value::String(text))) => text.clone(),
            Some(Cell::Json(value)) => value.to_string(),
            Some(Cell::Written(text)) => text.to_owned(),
            None => "-".to_owned(),
        };
        let read = table.each(|origin, row| {
            rows.push(match row {
                Ok(cells) => {
                    format!("{} {}|{}", origin.line, shown(cells, "text"), shown(cells, "label"))
                }
                Err(rule) => format!("{} {rule}", origin.line),
            });
            Ok(())
        });
        read.map_err(|error| without(error.to_string()))?;
        Ok((rows, table.notes.iter().cloned().map(without).collect()))
    }

    #[test]
    fn every_format_has_the_same_rows() {
        let csv = "text,label\n\"one, \"\"two\"\"\",a\n\nthree,b\n";
        let jsonl = "{\"text\":\"one, \\\"two\\\"\",\"label\":\"a\"}\n{\"text\":\"three\",\"label\":\"b\"}\n";
        let json = format!("[{}]", jsonl.trim_end().replace('\n', ",\n"));
        let tabs = "text\tlabel\n\"one, \"\"two\"\"\"\ta\nthree\tb\n";
        let semicolons =
            csv.replace("text,", "text;").replace("\",a", "\";a").replace("three,", "three;");
        let expected = ["one, \"two\"|a", "three|b"];
        for (name, content, lines, note) in [
            ("a.csv", csv, [2, 4], None),
            ("a.CSV", csv, [2, 4], None),
            ("a.jsonl", jsonl, [1, 2], None),
            ("a.json", jsonl, [1, 2], None),
            ("a.json", &json, [1, 2], None),
            ("a.tsv", tabs, [2, 3], None),
            ("a.csv", tabs, [2, 3], Some("its columns are separated by tabs")),
            ("a.csv", &semicolons, [2, 4], Some("its columns are separated by semicolons")),
            ("a.tsv", csv, [2, 4], Some("its columns are separated by commas")),
        ] {
            let expected: Vec<_> =
                lines.iter().zip(expected).map(|(n, row)| format!("{n} {row}")).collect();
            let notes: Vec<_> =
                note.map(|note| format!("`…/{name}`: {note}")).into_iter().collect();
            assert_eq!(rows(name, content.as_bytes()), Ok((expected.clone(), notes)), "{content}");
            for (ending, bytes) in
                [("gz", gzip(content.as_bytes())), ("zst", zstandard(content.as_bytes()))]
            {
                let (read, _) = rows(&format!("{name}.{ending}"), &bytes).unwrap();
                assert_eq!(read, expected, "{name}.{ending}");
            }
        }
    }

    #[test]
    fn an_encoding_is_said_and_other_bytes_break_their_row_alone() {
        let western = b"text,label\nca\xE9 au lait with \x93quotes\x94 and more letters,a\n";
        let (read, notes) = rows("a.csv", western).unwrap();
        assert_eq!(read, ["2 caé au lait with “quotes” and more letters|a"]);
        assert_eq!(notes, ["`…/a.csv`: read as windows-1252, because it is not UTF-8"]);
        let utf_16: Vec<u8> =
            "\u{FEFF}text;label\né;a\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(rows("a.csv", &utf_16).unwrap().0, ["2 é|a"]);
        let fault = "this is not UTF-8: byte 2 of the line is 0xFF; `iconv -f ENCODING -t UTF-8` converts a text";
        let expected = ["2 é|a".to_owned(), format!("3 {fault}"), "5 c|d".to_owned()];
        let mixed = "text,label\né,a\n\"b?\nmore\",c\nc,d\n".replace('?', "\u{7F}");
        let mixed: Vec<u8> =
            mixed.bytes().map(|byte| if byte == 0x7F { 0xFF } else { byte }).collect();
        assert_eq!(
            rows("a.csv", &mixed).unwrap().0,
            expected.map(|row| row.replace("byte 2", "byte 3"))
        );
        let lines = b"{\"text\":\"\xC3\xA9\"}\n\"\xFF\"\n";
        assert_eq!(rows("a.jsonl", lines).unwrap().0, ["1 é|-".to_owned(), format!("2 {fault}")]);
    }

    #[test]
    fn a_tab_between_texts_with_quotes_is_a_tab() {
        // As the files of GLUE have them: quotes are part of the text, and need not be in pairs.
        let glue = "text\tlabel\n\"He said no\t1\nand \"yes\"\t0\n\"all\"\t1\n";
        let expected = ["2 \"He said no|1", "3 and \"yes\"|0", "4 all|1"];
        assert_eq!(rows("a.tsv", glue.as_bytes()).unwrap().0, expected);
        let spread = "text\tlabel\n\"one\ntwo\"\t1\n";
        assert_eq!(rows("a.tsv", spread.as_bytes()).unwrap().0, ["2 one\ntwo|1"]);
    }

    #[test]
    fn a_quote_that_does_not_close_is_told_where_it_opens() {
        let unclosed = b"text,label\na,b\nc,\"d\ne,f\ng,h\n";
        let rule = "3 a quote opens here, and none ends its cell: all up to line 5 is in it";
        assert_eq!(rows("a.csv", unclosed).unwrap().0, ["2 a|b", rule]);
        let in_text = b"text,label\n\"a \"\"b\"\"\nstill a,\"c\nd,e\n";
        let rule = "2 a quote opens here, and none ends its cell: all up to line 3 is in it";
        assert_eq!(rows("a.csv", in_text).unwrap().0, [rule, "4 d|e"]);
        // The last cell ends as it should; quotes within a cell are its own.
        let whole = b"text,label\n\"a\n\"\"b\"\"\",c\n5\" disk,d";
        assert_eq!(rows("a.csv", whole).unwrap().0, ["2 a\n\"b\"|c", "4 5\" disk|d"]);
        let closed = b"text,label\n\"a,b\nc,d\n\"e,f\n";
        let rule = "2 a quote opens here, and none ends its cell: all up to line 4 is in it";
        assert_eq!(rows("a.csv", closed).unwrap().0, [rule]);
        let joined = b"text,label\n\"a\nb\"\nc,d\n";
        let rule = "2 too few cells: 1, and the heading has 2; quotes join it to line 3";
        assert_eq!(rows("a.csv", joined).unwrap().0, [rule, "4 c|d"]);
    }

    #[test]
    fn rows_that_are_none_are_told_and_a_list_that_ends_early_is_an_error() {
        let rule = "3 too few cells: 1, and the heading has 2";
        assert_eq!(
            rows("a.csv", b"text,label\na,b\nc\nd,e\n").unwrap().0,
            ["2 a|b", rule, "4 d|e"]
        );
        let list = "[\n{\"text\":\"a\"},\n7,\n{\"text\":\"b\"}\n]\n";
        let expected = ["2 a|-", "3 this is JSON, but not an object", "4 b|-"];
        assert_eq!(rows("a.json", list.as_bytes()).unwrap().0, expected);
        for (list, fault) in [
            ("[\n{\"text\":\"a\"}\n{", "line 3: a comma or the end of the list is missing"),
            ("[\n{\"text\":", "line 2: this is not JSON: EOF while parsing a value"),
            ("[{}]\n{}", "line 2: the list has ended, and there is more"),
            ("[{}", "line 1: a comma or the end of the list is missing"),
        ] {
            let error = rows("a.json", list.as_bytes()).unwrap_err();
            assert!(error.starts_with(&format!("`…/a.json`, {fault}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_table_is_named_with_what_to_do() {
        let of = |name: &str, bytes: &[u8]| rows(name, bytes).unwrap_err();
        let known = "is no table: it ends in none of .csv, .tsv, .tab, .jsonl, .ndjson, .json (plain, .gz or .zst)";
        assert!(of("a.txt", b"a").contains(known), "{}", of("a.txt", b"a"));
        let parquet = of("a.parquet", b"PAR1");
        assert!(
            parquet.contains("pandas.read_parquet('…/a.parquet').to_csv('…/a.csv', index=False)"),
            "{parquet}"
        );
        for name in ["a.csv", "a"] {
            let program = of(name, b"\x7FELF\x02");
            assert_eq!(program, format!("`…/{name}` is not text: it begins as an ELF program"));
        }
    }
}
