//! Dot charts: values with error bars, one row per name.

use super::axis::{Axis, Spacing};
use super::colour::{BLACK, GREY, PALE};
use super::font;
use super::shapes::{Anchor, Drawing, LABEL, Shape};
use super::style::{self, Sample, Style, WIDTH};

/// A chart with a row per name; values are horizontal.
#[derive(Debug)]
pub(crate) struct DotChart {
    pub(crate) title: String,
    /// Names of the dots of a row, in order.
    pub(crate) series: Vec<String>,
    pub(crate) rows: Vec<DotRow>,
}

/// A row: a dot per series, or `None` for a missing value.
#[derive(Debug)]
pub(crate) struct DotRow {
    pub(crate) name: String,
    pub(crate) dots: Vec<Option<Dot>>,
}

/// A value and half the length of its error bar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dot {
    pub(crate) value: f64,
    pub(crate) error: f64,
}

const RIGHT: f32 = 40.;
/// The height of a dot's lane, and the gap between rows.
const LANE: f32 = 17.;
const GAP: f32 = 12.;

impl DotChart {
    pub(crate) fn draw(&self) -> Drawing {
        let names = self.series.iter().map(String::as_str).enumerate();
        let names: Vec<_> = if self.series.len() > 1 { names.collect() } else { Vec::new() };
        let top = 48. + style::legend_height(&names);
        let row_height = LANE * self.series.len().max(1) as f32 + GAP;
        let bottom = top + row_height * self.rows.len() as f32;
        let widest = font::widest(self.rows.iter().map(|row| &row.name), LABEL);
        let left = (widest + 28.).min(WIDTH / 2.);
        let axis = Axis::around(self.ends(), Spacing::Linear);

        let mut drawing = style::chart(&self.title, &names, bottom + 32., Sample::Marker);
        let place = |value: f64| left + axis.part(value) * (WIDTH - RIGHT - left);
        for (value, text) in &axis.ticks {
            let x = place(*value);
            drawing.line(vec![(x, top), (x, bottom)], PALE, 1.);
            drawing.text((x, bottom + 19.), text, LABEL, Anchor::Middle);
        }
        drawing.line(vec![(left, bottom), (WIDTH - RIGHT, bottom)], GREY, 1.);
        for (index, row) in self.rows.iter().enumerate() {
            let y = top + row_height * index as f32;
            drawing.text((left - 10., y + row_height / 2. + 4.5), &row.name, LABEL, Anchor::End);
            for (lane, dot) in row.dots.iter().enumerate() {
                let y = y + GAP / 2. + LANE * (lane as f32 + 0.5);
                if let Some(Dot { value, error }) = *dot {
                    let ends = [value - error, value, value + error].map(place);
                    // A single series is no legend: colours tell the rows apart.
                    let style = if row.dots.len() > 1 { lane } else { index };
                    dot_at(&mut drawing, ends, y, style::series(style));
                }
            }
        }
        drawing
    }

    fn ends(&self) -> impl Iterator<Item = f64> {
        let dots = self.rows.iter().flat_map(|row| &row.dots).flatten();
        dots.flat_map(|Dot { value, error }| [value - error, value + error])
    }
}

/// Draws the marker, and the error bar if it is visible.
fn dot_at(drawing: &mut Drawing, [low, middle, high]: [f32; 3], y: f32, style: Style) {
    if high - low > 1. {
        for points in [
            vec![(low, y), (high, y)],
            vec![(low, y - 4.), (low, y + 4.)],
            vec![(high, y - 4.), (high, y + 4.)],
        ] {
            drawing.shapes.push(Shape::Line { points, stroke: BLACK, width: 1.2, dashes: &[] });
        }
    }
    style.mark(drawing, (middle, y));
}
