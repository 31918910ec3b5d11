//! Dot charts: a number with its error for each name, and lines for what to compare it with.

use super::axis::{Axis, Spacing};
use super::colour::{BLACK, GREY, PALE};
use super::font;
use super::shapes::{Anchor, LABEL, Picture, Shape, TITLE};
use super::style::{self, Sample, Style};

/// Names from top to bottom, numbers from left to right.
#[derive(Debug)]
pub(crate) struct DotChart {
    pub(crate) title: String,
    /// What the dots of a row are, in their order.
    pub(crate) series: Vec<String>,
    pub(crate) rows: Vec<DotRow>,
}

/// What is known of one name: a dot for each series, or none.
#[derive(Debug)]
pub(crate) struct DotRow {
    pub(crate) name: String,
    pub(crate) dots: Vec<Option<Dot>>,
}

/// A number, and how far it may be off to either side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dot {
    pub(crate) value: f64,
    pub(crate) error: f64,
}

const WIDTH: f32 = 800.;
const RIGHT: f32 = 40.;
/// The height of a dot's lane, and what is left between rows.
const LANE: f32 = 17.;
const GAP: f32 = 12.;

impl DotChart {
    pub(crate) fn draw(&self) -> Picture {
        let names: Vec<&str> = self.series.iter().map(String::as_str).collect();
        let top = 48. + style::legend_height(&names, WIDTH - 32.);
        let row_height = LANE * self.series.len().max(1) as f32 + GAP;
        let bottom = top + row_height * self.rows.len() as f32;
        let widest = self.rows.iter().map(|row| font::width(&row.name, LABEL)).fold(0., f32::max);
        let left = (widest + 28.).min(WIDTH / 2.);
        let axis = Axis::around(self.ends(), Spacing::Linear);

        let mut picture = Picture::new(WIDTH, bottom + 32.);
        picture.text((16., 27.), &self.title, TITLE, Anchor::Start);
        style::legend(&mut picture, &names, (16., 36.), WIDTH - 32., Sample::Marker);
        let place = |value: f64| left + axis.part(value) * (WIDTH - RIGHT - left);
        for (value, text) in &axis.ticks {
            let x = place(*value);
            picture.line(vec![(x, top), (x, bottom)], PALE, 1.);
            picture.text((x, bottom + 19.), text, LABEL, Anchor::Middle);
        }
        picture.line(vec![(left, bottom), (WIDTH - RIGHT, bottom)], GREY, 1.);
        for (index, row) in self.rows.iter().enumerate() {
            let y = top + row_height * index as f32;
            picture.text((left - 10., y + row_height / 2. + 4.5), &row.name, LABEL, Anchor::End);
            for (lane, dot) in row.dots.iter().enumerate() {
                let y = y + GAP / 2. + LANE * (lane as f32 + 0.5);
                if let Some(Dot { value, error }) = *dot {
                    let ends = [value - error, value, value + error].map(place);
                    dot_at(&mut picture, ends, y, style::of(lane));
                }
            }
        }
        picture
    }

    fn ends(&self) -> impl Iterator<Item = f64> {
        let dots = self.rows.iter().flat_map(|row| &row.dots).flatten();
        dots.flat_map(|Dot { value, error }| [value - error, value + error])
    }
}

/// The marker, and the bar of its error where that is wider than the marker.
fn dot_at(picture: &mut Picture, [low, middle, high]: [f32; 3], y: f32, style: Style) {
    if high - low > 1. {
        for points in [
            vec![(low, y), (high, y)],
            vec![(low, y - 4.), (low, y + 4.)],
            vec![(high, y - 4.), (high, y + 4.)],
        ] {
            picture.shapes.push(Shape::Line { points, stroke: BLACK, width: 1.2, dashes: &[] });
        }
    }
    style.mark(picture, (middle, y));
}
