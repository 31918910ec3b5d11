//! Styles of the series of a chart: colour, dashes and marker; the title and the legend.

use super::colour::{self, Colour};
use super::font;
use super::shapes::{Anchor, Drawing, LABEL, Point, Shape, TITLE};

/// The style of one series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) colour: Colour,
    pub(super) dashes: &'static [f32],
    marker: usize,
}

const DASHES: [&[f32]; 4] = [&[], &[7., 3.], &[2., 2.], &[8., 2., 2., 2.]];
const N_MARKERS: usize = 5;

/// The style of series `index`. 4 dashes, 5 markers and 7 colours are coprime, so 140 series differ.
pub(super) fn series(index: usize) -> Style {
    Style {
        colour: colour::series(index),
        dashes: DASHES[index % DASHES.len()],
        marker: index % N_MARKERS,
    }
}

impl Style {
    /// Draws the marker centred at a point.
    pub(super) fn mark(&self, drawing: &mut Drawing, (x, y): Point) {
        let circle = (0..16_u8).map(|i| (f32::from(i) * std::f32::consts::TAU / 16.).sin_cos());
        let corners: Vec<Point> = match self.marker {
            0 => circle.map(|(a, b)| (3.4 * a, 3.4 * b)).collect(),
            // A square, a triangle, a diamond and a cross.
            1 => vec![(-3., -3.), (3., -3.), (3., 3.), (-3., 3.)],
            2 => vec![(0., -4.2), (4., 3.), (-4., 3.)],
            3 => vec![(0., -4.6), (4.2, 0.), (0., 4.6), (-4.2, 0.)],
            _ => vec![
                (-1.2, -4.2),
                (1.2, -4.2),
                (1.2, -1.2),
                (4.2, -1.2),
                (4.2, 1.2),
                (1.2, 1.2),
                (1.2, 4.2),
                (-1.2, 4.2),
                (-1.2, 1.2),
                (-4.2, 1.2),
                (-4.2, -1.2),
                (-1.2, -1.2),
            ],
        };
        let points = corners.iter().map(|(a, b)| (x + a, y + b)).collect();
        drawing.shapes.push(Shape::Area { points, fill: self.colour, opacity: 1. });
    }
}

/// The symbol before a name in a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sample {
    LineAndMarker,
    Marker,
}

/// The width of a chart, and its margin left and right of the legend.
pub(super) const WIDTH: f32 = 800.;
const MARGIN: f32 = 16.;
const SAMPLE: f32 = 34.;
const ROW: f32 = 19.;

/// The positions of the entries of a legend in rows, and the height of all rows.
fn layout(names: &[(usize, &str)]) -> (Vec<Point>, f32) {
    let (mut x, mut y) = (0., 0.);
    let mut places = Vec::with_capacity(names.len());
    for (_, name) in names {
        let needed = SAMPLE + 6. + font::width(name, LABEL);
        if x > 0. && x + needed > WIDTH - 2. * MARGIN {
            (x, y) = (0., y + ROW);
        }
        places.push((x, y));
        x += needed + 22.;
    }
    (places, y + ROW)
}

/// The height of the legend of a chart.
pub(super) fn legend_height(names: &[(usize, &str)]) -> f32 {
    if names.is_empty() { 0. } else { layout(names).1 }
}

/// A chart with its title and a legend of `names`, each with the number of its style.
pub(super) fn chart(title: &str, names: &[(usize, &str)], height: f32, sample: Sample) -> Drawing {
    let mut drawing = Drawing::new(WIDTH, height);
    drawing.text((MARGIN, 27.), title, TITLE, Anchor::Start);
    for ((x, y), &(index, name)) in layout(names).0.into_iter().zip(names) {
        let style = series(index);
        let (x, middle) = (MARGIN + x, 36. + y + ROW / 2.);
        if sample == Sample::LineAndMarker {
            drawing.shapes.push(Shape::Line {
                points: vec![(x, middle), (x + SAMPLE, middle)],
                stroke: style.colour,
                width: 2.,
                dashes: style.dashes,
            });
        }
        style.mark(&mut drawing, (x + SAMPLE / 2., middle));
        drawing.text((x + SAMPLE + 6., middle + 4.5), name, LABEL, Anchor::Start);
    }
    drawing
}
