//! Heat maps: matrices as coloured cells, several side by side on one colour scale.

use super::axis::Axis;
use super::colour::{BLACK, Colour, PALE, diverging, sequential};
use super::font;
use super::shapes::{Anchor, Drawing, LABEL, Point, TITLE};

/// Matrices on one colour scale.
#[derive(Debug)]
pub(crate) struct HeatMaps {
    pub(crate) title: String,
    /// The meaning of rows and columns.
    pub(crate) caption: String,
    pub(crate) scale: Scale,
    pub(crate) panels: Vec<Panel>,
}

/// A matrix with labels for rows and columns.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) name: String,
    pub(crate) rows: Vec<String>,
    pub(crate) columns: Vec<String>,
    /// `[row][column]`
    pub(crate) values: Vec<Vec<f32>>,
}

/// The range of the colour scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// From 0 to the largest value.
    FromZero(f64),
    /// Symmetric around 0 up to the largest magnitude; a dash marks negative cells.
    AroundZero(f64),
}

impl Scale {
    /// The scale of `values`: around zero if any is negative.
    pub(crate) fn from_values(values: impl Iterator<Item = f32> + Clone) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let largest =
            f64::from(finite.clone().fold(0_f32, |largest, value| largest.max(value.abs())));
        let largest = if largest > 0. { largest } else { 1. };
        if finite.clone().any(|value| value < 0.) {
            Self::AroundZero(largest)
        } else {
            Self::FromZero(largest)
        }
    }

    fn colour(self, value: f64) -> Colour {
        match self {
            Self::FromZero(largest) => sequential(value / largest),
            Self::AroundZero(largest) => diverging(f64::midpoint(value / largest, 1.)),
        }
    }

    fn ends(self) -> (f64, f64) {
        match self {
            Self::FromZero(largest) => (0., largest),
            Self::AroundZero(largest) => (-largest, largest),
        }
    }
}

const MARGIN: f32 = 20.;
const BETWEEN: f32 = 30.;
/// The size of a panel; up to `WIDE_PANEL` if every label fits then. Cells stay within `CELLS`.
const PANEL: f32 = 200.;
const WIDE_PANEL: f32 = 450.;
const CELLS: (f32, f32) = (2., 30.);
/// The maximum number of panels side by side.
const MAX_ACROSS: usize = 4;
const NAMES: f32 = 13.;
/// The minimum distance of labels.
const LINE: f32 = 12.;

/// Sizes common to all panels.
struct Layout {
    cell: f32,
    /// Space for row labels, and for column labels.
    names: (f32, f32),
    /// Size of a panel with its labels.
    panel: (f32, f32),
    across: usize,
    upright: bool,
}

impl HeatMaps {
    /// Panels on one scale.
    pub(crate) fn new(title: String, caption: &str, panels: Vec<Panel>) -> Self {
        let values = panels.iter().flat_map(|panel| &panel.values).flatten();
        Self {
            title,
            caption: caption.to_owned(),
            scale: Scale::from_values(values.copied()),
            panels,
        }
    }

    pub(crate) fn draw(&self) -> Drawing {
        let layout = self.layout();
        let down = self.panels.len().div_ceil(layout.across).max(1);
        let step = (layout.panel.0 + BETWEEN, layout.panel.1 + BETWEEN);
        let body = (step.0 * layout.across as f32 - BETWEEN, step.1 * down as f32 - BETWEEN);
        let top = 66.;
        let bar = self.bar_width();
        let texts = font::width(&self.title, TITLE).max(font::width(&self.caption, NAMES));
        let width = (MARGIN + body.0 + bar + MARGIN).max(texts + 2. * MARGIN);
        let mut drawing = Drawing::new(width.ceil(), (top + body.1 + MARGIN).ceil());
        drawing.text((MARGIN, 28.), &self.title, TITLE, Anchor::Start);
        drawing.text((MARGIN, 48.), &self.caption, NAMES, Anchor::Start);
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = (index % layout.across, index / layout.across);
            let at = (MARGIN + step.0 * column as f32, top + step.1 * row as f32);
            self.panel(&mut drawing, panel, at, &layout);
        }
        let first = layout.panel.1 - layout.names.1;
        self.bar(&mut drawing, (MARGIN + body.0 + 24., top + layout.names.1), first);
        drawing
    }

    fn layout(&self) -> Layout {
        let sizes = self.panels.iter().map(|panel| (panel.columns.len(), panel.rows.len()));
        let (columns, rows) = sizes.fold((1, 1), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let cell = |panel: f32| panel / columns.max(rows) as f32;
        let cell = cell(PANEL).max(cell(WIDE_PANEL).min(LINE)).clamp(CELLS.0, CELLS.1);
        let rows_width = font::widest(self.panels.iter().flat_map(|panel| &panel.rows), NAMES);
        let columns_width =
            font::widest(self.panels.iter().flat_map(|panel| &panel.columns), NAMES);
        let upright = columns_width <= cell;
        let above = if upright { NAMES } else { columns_width } + 8.;
        let names = (rows_width + 6., above + LABEL + 8.);
        let panel = (names.0 + cell * columns as f32, names.1 + cell * rows as f32);
        let across = self.panels.len().clamp(1, MAX_ACROSS);
        Layout { cell, names, panel, across, upright }
    }

    fn panel(&self, drawing: &mut Drawing, panel: &Panel, (x, y): Point, layout: &Layout) {
        let Layout { cell, names, upright, .. } = *layout;
        let (left, top) = (x + names.0, y + names.1);
        drawing.text((left, y + LABEL), &panel.name, LABEL, Anchor::Start);
        // If cells are smaller than letters, only some rows have labels.
        let every = (LINE / cell).ceil().max(1.) as usize;
        for (row, name) in panel.rows.iter().enumerate().step_by(every) {
            let middle = top + (row as f32 + 0.5) * cell;
            drawing.text((left - 5., middle + 4.2), name, NAMES, Anchor::End);
        }
        for (column, name) in panel.columns.iter().enumerate().step_by(every) {
            let middle = left + (column as f32 + 0.5) * cell;
            let (x, anchor) =
                if upright { (middle, Anchor::Middle) } else { (middle + 4.2, Anchor::Upwards) };
            drawing.text((x, top - 5.), name, NAMES, anchor);
        }
        for (row, values) in panel.values.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                let corner = (left + column as f32 * cell, top + row as f32 * cell);
                self.cell(drawing, corner, cell, f64::from(*value));
            }
        }
        let (right, bottom) =
            (left + panel.columns.len() as f32 * cell, top + panel.rows.len() as f32 * cell);
        let around = vec![(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        drawing.line(around, PALE, 1.);
    }

    fn cell(&self, drawing: &mut Drawing, (x, y): Point, cell: f32, value: f64) {
        drawing.rectangle((x, y), (cell, cell), self.scale.colour(value));
        if let Scale::AroundZero(largest) = self.scale
            && value < -0.1 * largest
            && cell >= 8.
        {
            let middle = y + cell / 2.;
            drawing.line(vec![(x + cell * 0.3, middle), (x + cell * 0.7, middle)], BLACK, 1.);
        }
    }

    /// Draws the colour scale.
    fn bar(&self, drawing: &mut Drawing, (x, top): Point, height: f32) {
        const STRIPES: usize = 64;
        let ((low, high), stripe) = (self.scale.ends(), height / STRIPES as f32);
        for i in 0..STRIPES {
            let value = high + (low - high) * (i as f64 + 0.5) / STRIPES as f64;
            // Stripes overlap slightly, so that no seam shows.
            let size = (14., stripe + if i + 1 < STRIPES { 0.5 } else { 0. });
            drawing.rectangle((x, top + i as f32 * stripe), size, self.scale.colour(value));
        }
        let axis = Axis::exactly(low, high);
        for (value, text) in &axis.ticks {
            let y = top + (1. - axis.part(*value)) * height;
            drawing.line(vec![(x + 14., y), (x + 18., y)], BLACK, 1.);
            drawing.text((x + 22., y + 4.2), text, NAMES, Anchor::Start);
        }
    }

    fn bar_width(&self) -> f32 {
        let (low, high) = self.scale.ends();
        24. + 22. + font::widest(Axis::exactly(low, high).ticks.iter().map(|(_, text)| text), NAMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::png;

    #[test]
    fn negative_values_make_a_symmetric_scale() {
        assert_eq!(Scale::from_values([0., 0.5, f32::NAN].into_iter()), Scale::FromZero(0.5));
        assert_eq!(Scale::from_values([-0.75, 0.5].into_iter()), Scale::AroundZero(0.75));
        assert_eq!(Scale::from_values([0.; 3].into_iter()), Scale::FromZero(1.));
        assert_eq!(Scale::AroundZero(2.).colour(-2.), diverging(0.));
    }

    #[test]
    fn matrices_of_any_size_can_be_drawn() {
        for (rows, columns) in [(0, 0), (1, 1), (3, 500), (97, 2)] {
            let panel = Panel {
                name: "a".into(),
                rows: vec!["長い名前".into(); rows],
                columns: vec!["x".into(); columns],
                values: vec![vec![f32::NAN; columns]; rows],
            };
            let (title, caption) = ("t".into(), "c".into());
            let maps = HeatMaps { title, caption, scale: Scale::FromZero(1.), panels: vec![panel] };
            assert!(!png::write(&maps.draw(), 1.).unwrap().is_empty(), "{rows} {columns}");
        }
    }
}
