//! `.csv` and `.tsv`: a heading, and rows whose cells are separated by commas, semicolons or tabs (RFC 4180). The
//! heading decides which sign separates.

use std::borrow::Cow;

use super::{Cells, Each, Format, Rows, Source};
use crate::error::Result;

pub(super) const FORMAT: Format =
    Format { endings: &["csv", "tsv", "tab"], accepts: |_| true, open };

/// Signs between cells, and their names.
const SEPARATORS: [(u8, &str); 3] = [(b',', "commas"), (b';', "semicolons"), (b'\t', "tabs")];

struct Separated {
    separator: u8,
    heading: Vec<String>,
    /// Whether each line is a row: all have as many tabs as the heading. Then quotes need not be in pairs.
    is_by_line: bool,
    note: Option<String>,
}

fn open(source: &Source) -> Result<Box<dyn Rows>> {
    let usual = if source.ending == "csv" { b',' } else { b'\t' };
    let (separator, name) =
        separator(source.text.lines().find(|line| !line.is_empty()).unwrap_or_default(), usual);
    let mut reader = reader(source, separator);
    let heading = reader.headers().map_err(|error| source.wrong(1, error.to_string()))?;
    let heading: Vec<String> = heading.iter().map(|name| name.trim().to_owned()).collect();
    let n_tabs = |line: &str| line.matches('\t').count();
    let mut lines = source.text.lines().filter(|line| !line.is_empty());
    let is_by_line = separator == b'\t' && lines.all(|line| n_tabs(line) + 1 == heading.len());
    let note = (separator != usual).then(|| format!("its columns are separated by {name}"));
    Ok(Box::new(Separated { separator, heading, is_by_line, note }))
}

/// The most frequent sign of the heading outside of quotes; the `usual` one of equals.
fn separator(heading: &str, usual: u8) -> (u8, &'static str) {
    let outside = || heading.split('"').step_by(2).flat_map(str::bytes);
    let n = |sign: u8| outside().filter(|&byte| byte == sign).count();
    let rank = |&(sign, _): &(u8, _)| (n(sign), sign == usual);
    SEPARATORS.into_iter().max_by_key(rank).expect("invariant: there are separators")
}

fn reader(source: &Source, separator: u8) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().delimiter(separator).from_reader(source.text.as_bytes())
}

impl Rows for Separated {
    fn heading(&self) -> Option<&[String]> {
        Some(&self.heading)
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn separator(&self) -> Option<u8> {
        Some(self.separator)
    }

    fn each(&self, source: &Source, each: &mut Each<'_>) -> Result<()> {
        let names = &self.heading;
        if self.is_by_line {
            let lines = source.text.lines().enumerate().filter(|(_, line)| !line.is_empty());
            for (at, line) in lines.skip(1) {
                let cells: Vec<Cow<'_, str>> = line.split('\t').map(unquoted).collect();
                source.pass(at + 1..=at + 1, Ok(Cells::Written { names, cells: &cells }), each)?;
            }
            return Ok(());
        }
        let bytes = source.text.as_bytes();
        let mut reader = reader(source, self.separator);
        // Counts the lines up to a row; rows come in order. The csv reader's own count is too low after blank lines
        // and `\r\n`: it takes them for the beginning of the next row.
        let (mut at, mut line) = (0, 1);
        let mut line_of = |start: usize| {
            while let Some(&byte) = bytes.get(at)
                && (at < start || matches!(byte, b'\r' | b'\n'))
            {
                line += usize::from(byte == b'\n');
                at += 1;
            }
            (line, at)
        };
        reader.headers().map_err(|error| source.wrong(1, error.to_string()))?;
        let mut record = csv::StringRecord::new();
        loop {
            let start = reader.position().byte() as usize;
            let read = reader.read_record(&mut record);
            if matches!(read, Ok(false)) {
                return Ok(());
            }
            let (first, start) = line_of(start);
            let end = reader.position().byte() as usize;
            let whole = source.text.get(start..end).unwrap_or_default().trim_end();
            let cells: Vec<Cow<'_, str>> = record.iter().map(Cow::Borrowed).collect();
            let lines = first..=first + whole.matches('\n').count();
            // Other rows are on a line of their own, whatever their quotes.
            let may_swallow = end == bytes.len() || lines.end() > lines.start();
            let open = may_swallow.then(|| open_quote(whole, self.separator)).flatten();
            if let Some(open) = open {
                let line = first + whole[..open].matches('\n').count();
                let rule = format!(
                    "a quote opens here, and none ends its cell: all up to line {} is in it",
                    lines.end()
                );
                source.pass(line..=line, Err(rule), each)?;
                continue;
            }
            let row = match read {
                Ok(_) => Ok(Cells::Written { names, cells: &cells }),
                Err(error) if lines.end() > lines.start() => {
                    Err(format!("{}; quotes join it to line {}", fault(&error), lines.end()))
                }
                Err(error) => Err(fault(&error)),
            };
            source.pass(lines, row, each)?;
        }
    }
}

/// The place of a quote that opens a cell which does not end as it should: no quote closes it, or the one that does is
/// on another line and within a word.
fn open_quote(row: &str, separator: u8) -> Option<usize> {
    let spans = |from: usize, to: usize| row[from..to].contains('\n');
    let (mut first, mut is_open, mut closed, mut begins) = (0, false, None, true);
    for (at, byte) in row.bytes().enumerate() {
        let follows = closed == Some(at);
        match byte {
            b'"' if is_open => (is_open, closed) = (false, Some(at + 1)),
            b'"' if begins => (is_open, first) = (true, at),
            // A quote that is doubled.
            b'"' if follows => is_open = true,
            _ if follows && ![separator, b'\r', b'\n'].contains(&byte) && spans(first, at) => {
                return Some(first);
            }
            _ => {}
        }
        begins = !is_open && byte == separator;
    }
    is_open.then_some(first)
}

/// A cell without the quotes around it.
fn unquoted(cell: &str) -> Cow<'_, str> {
    let inner = cell.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match inner {
        Some(inner) if !inner.replace("\"\"", "").contains('"') => {
            inner.replace("\"\"", "\"").into()
        }
        _ => cell.into(),
    }
}

fn fault(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let amount = if len < expected_len { "few" } else { "many" };
            format!("too {amount} cells: {len}, and the heading has {expected_len}")
        }
        _ => error.to_string(),
    }
}
