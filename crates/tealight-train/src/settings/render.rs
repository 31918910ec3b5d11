//! Renders a report as a compiler does: the line, carets below it, help and notes.

use std::collections::BTreeSet;
use std::ops::Range;

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Snippet};

use super::report::{FILE, Report, Source};

/// The message, the marked lines of each source, and the notes.
pub(super) fn group<'a>(report: &'a Report, sources: &'a [Source]) -> Group<'a> {
    let mut group = Group::with_title(Level::ERROR.primary_title(&report.message));
    // The sources that have marks, in the order of the marks.
    let mut seen = BTreeSet::new();
    let marked = report.marks.iter().map(|mark| mark.span.source);
    let marked: Vec<usize> = marked.filter(|index| seen.insert(*index)).collect();
    for (rank, index) in marked.iter().enumerate() {
        let snippet = snippet(*index, report, &sources[*index]);
        // The renderer prints a path above every source but the first.
        let unnamed = rank > 0 && sources[*index].path.is_none();
        group = group.element(if unnamed { snippet.path("the command line") } else { snippet });
    }
    // A report without marks shows the path of the file.
    let file = sources.get(FILE).and_then(|file| file.path.as_deref());
    if let (true, Some(path)) = (marked.is_empty(), file) {
        group = group.element(Origin::path(path));
    }
    group.elements(report.notes.iter().map(|(level, text)| level.clone().message(text)))
}

fn snippet<'a>(
    index: usize,
    report: &'a Report,
    source: &'a Source,
) -> Snippet<'a, Annotation<'a>> {
    let snippet = Snippet::source(&source.text);
    let snippet = match &source.path {
        Some(path) => snippet.path(path),
        None => snippet.line_numbering(false),
    };
    let marks = report.marks.iter().enumerate().filter(|(_, mark)| mark.span.source == index);
    snippet.annotations(marks.map(|(rank, mark)| {
        let kind = if rank == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
        kind.span(visible(&source.text, &mark.span.range)).label(mark.label.as_deref())
    }))
}

/// The part of `range` on its first line, on character boundaries: the parser's spans may end inside a
/// character or past the end of the text.
fn visible(text: &str, range: &Range<usize>) -> Range<usize> {
    let boundary =
        |index: usize| (0..=index.min(text.len())).rev().find(|i| text.is_char_boundary(*i));
    let start = boundary(range.start).unwrap_or(0);
    let end = boundary(range.end).unwrap_or(0).max(start);
    let line = text[start..end].lines().next().unwrap_or("");
    start..start + line.len()
}
