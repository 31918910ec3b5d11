//! Confusion matrices: a row for each class, a column for each prediction.

use tealight_train::task::table::thousands;

use super::colour::{Colour, PALE, diverging};
use super::font;
use super::shapes::{Anchor, Drawing, LABEL, Point, TITLE};

const MARGIN: f32 = 20.;
/// The space for the title and the caption.
const TOP: f32 = 66.;
const NAMES: f32 = 13.;
/// The size of all cells together, as far as that of one stays within `CELLS`.
const MATRIX: f32 = 640.;
const CELLS: (f32, f32) = (4., 56.);
/// The least distance of labels.
const LINE: f32 = 13.;
/// The longest label, in pixels.
const LONGEST: f32 = 160.;
/// The most intense colour, below 1 so that black numbers are legible on it.
const DARKEST: f64 = 0.36;

const TITLE_TEXT: &str = "confusion matrix";
const CAPTION: &str = "shares of each row: blue is right, red is wrong";

/// Where things are.
struct Layout {
    cell: f32,
    left: f32,
    top: f32,
    side: f32,
    /// Whether the labels of columns fit above them without being turned.
    is_upright: bool,
    has_numbers: bool,
}

impl Layout {
    fn new(labels: &[String], counts: &[Vec<u64>]) -> Self {
        let cell = (MATRIX / labels.len().max(1) as f32).clamp(CELLS.0, CELLS.1);
        let numbers = counts.iter().flatten().map(|&count| thousands(count));
        let names = font::widest(labels.iter(), NAMES);
        let is_upright = names <= cell - 4.;
        let above = if is_upright { NAMES } else { names } + 10.;
        Self {
            cell,
            left: MARGIN + NAMES + 10. + names + 8.,
            top: TOP + NAMES + 10. + above,
            side: cell * labels.len().max(1) as f32,
            is_upright,
            has_numbers: font::widest(numbers, NAMES) + 10. <= cell,
        }
    }

    fn corner(&self, row: usize, column: usize) -> Point {
        (self.left + column as f32 * self.cell, self.top + row as f32 * self.cell)
    }
}

/// `counts[row][column]` examples of the row's class were taken for the column's. The colour is their share of the row:
/// blue where the class is right, red where it is wrong.
pub(super) fn draw(labels: &[String], counts: &[Vec<u64>]) -> Drawing {
    let labels: Vec<String> =
        labels.iter().map(|label| font::shortened(label, NAMES, LONGEST)).collect();
    let layout = Layout::new(&labels, counts);
    let Layout { left, top, side, .. } = layout;
    let width = (left + side + MARGIN).max(2. * MARGIN + font::width(CAPTION, NAMES));
    let mut drawing = Drawing::new(width.ceil(), (top + side + MARGIN).ceil());
    drawing.text((MARGIN, 28.), TITLE_TEXT, TITLE, Anchor::Start);
    drawing.text((MARGIN, 48.), CAPTION, NAMES, Anchor::Start);
    drawing.text((left + side / 2., TOP + NAMES), "predicted", LABEL, Anchor::Middle);
    let half = font::width("class", LABEL) / 2.;
    drawing.text((MARGIN + NAMES, top + side / 2. + half), "class", LABEL, Anchor::Upwards);
    for (row, counts) in counts.iter().enumerate() {
        cells(&mut drawing, &layout, row, counts);
    }
    names(&mut drawing, &layout, &labels);
    let (right, bottom) = (left + side, top + side);
    let around = vec![(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
    drawing.line(around, PALE, 1.);
    drawing
}

/// The cells of a row, with numbers where they fit.
fn cells(drawing: &mut Drawing, layout: &Layout, row: usize, counts: &[u64]) {
    let cell = layout.cell;
    let total = counts.iter().sum::<u64>().max(1) as f64;
    for (column, &count) in counts.iter().enumerate() {
        let (x, y) = layout.corner(row, column);
        drawing.rectangle((x, y), (cell, cell), colour(count as f64 / total, row == column));
        if layout.has_numbers && count > 0 {
            let at = (x + cell / 2., y + cell / 2. + 4.5);
            drawing.text(at, thousands(count), NAMES, Anchor::Middle);
        }
    }
}

/// The labels of rows and columns: only some, where cells are smaller than letters.
fn names(drawing: &mut Drawing, layout: &Layout, labels: &[String]) {
    let Layout { cell, left, top, is_upright, .. } = *layout;
    let every = (LINE / cell).ceil().max(1.) as usize;
    for (index, label) in labels.iter().enumerate().step_by(every) {
        let middle = (index as f32 + 0.5) * cell;
        drawing.text((left - 6., top + middle + 4.5), label, NAMES, Anchor::End);
        let (x, anchor) = if is_upright {
            (left + middle, Anchor::Middle)
        } else {
            (left + middle + 4.5, Anchor::Upwards)
        };
        drawing.text((x, top - 6.), label, NAMES, anchor);
    }
}

/// The colour of a share of a row.
fn colour(share: f64, is_right: bool) -> Colour {
    // The root shows rare mistakes, which are the interesting ones.
    let part = DARKEST * share.sqrt();
    diverging(if is_right { 0.5 - part } else { 0.5 + part })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::{png, svg};

    #[test]
    fn a_matrix_of_few_classes_has_numbers_and_one_of_many_has_none() {
        let labels = |n: usize| (0..n).map(|i| format!("class {i}")).collect::<Vec<_>>();
        let counts = |n: usize| (0..n).map(|i| (0..n).map(|j| (i * j) as u64).collect()).collect();
        let svg_of = |n: usize| {
            let counts: Vec<Vec<u64>> = counts(n);
            let drawing = draw(&labels(n), &counts);
            assert!(!png::write(&drawing, 1.).unwrap().is_empty());
            svg::write(&drawing)
        };
        assert_eq!(svg_of(4).matches(">6<").count(), 2);
        let many = svg_of(300);
        assert!(!many.contains(">1,000<") && many.contains(">class 0<"));
        assert!(!many.contains(">class 1<"), "labels do not overlap");
    }
}
