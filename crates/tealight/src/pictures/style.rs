//! How the series of a chart differ: by colour, by dash and by marker.

use super::colour::{Colour, SERIES};
use super::font;
use super::shapes::{Anchor, LABEL, Picture, Point, Shape};

/// How one series looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) colour: Colour,
    pub(super) dashes: &'static [f32],
    marker: Marker,
}

#[derive(Clone, Copy, Debug)]
enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
}

const DASHES: [&[f32]; 4] = [&[], &[7., 3.], &[2., 2.], &[8., 2., 2., 2.]];
const MARKERS: [Marker; 5] =
    [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Cross];

/// The style of series `index`: 4, 5 and 7 have no common factor, so 140 series all differ.
pub(super) fn of(index: usize) -> Style {
    Style {
        colour: SERIES[index % SERIES.len()],
        dashes: DASHES[index % DASHES.len()],
        marker: MARKERS[index % MARKERS.len()],
    }
}

impl Style {
    /// The marker around `at`.
    pub(super) fn mark(&self, picture: &mut Picture, (x, y): Point) {
        let around = |corners: &[Point]| corners.iter().map(|(a, b)| (x + a, y + b)).collect();
        let points: Vec<Point> = match self.marker {
            Marker::Circle => {
                let corner = |i: u8| (f32::from(i) * std::f32::consts::TAU / 16.).sin_cos();
                (0..16).map(corner).map(|(a, b)| (x + 3.4 * a, y + 3.4 * b)).collect()
            }
            Marker::Square => around(&[(-3., -3.), (3., -3.), (3., 3.), (-3., 3.)]),
            Marker::Triangle => around(&[(0., -4.2), (4., 3.), (-4., 3.)]),
            Marker::Diamond => around(&[(0., -4.6), (4.2, 0.), (0., 4.6), (-4.2, 0.)]),
            Marker::Cross => around(&[
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
            ]),
        };
        picture.shapes.push(Shape::Area { points, fill: self.colour, opacity: 1. });
    }
}

/// What stands before a name in a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sample {
    LineAndMarker,
    Marker,
}

const SAMPLE: f32 = 34.;
const ROW: f32 = 19.;

/// Where the entries of a legend stand in rows no wider than `width`, and the height of all rows.
fn places(names: &[&str], width: f32) -> (Vec<Point>, f32) {
    let (mut x, mut y) = (0., 0.);
    let mut places = Vec::with_capacity(names.len());
    for name in names {
        let needed = SAMPLE + 6. + font::width(name, LABEL);
        if x > 0. && x + needed > width {
            (x, y) = (0., y + ROW);
        }
        places.push((x, y));
        x += needed + 22.;
    }
    (places, y + ROW)
}

/// The height that a legend takes.
pub(super) fn legend_height(names: &[&str], width: f32) -> f32 {
    if names.len() > 1 { places(names, width).1 } else { 0. }
}

/// The names of the series in rows; nothing where there is but one.
pub(super) fn legend(
    picture: &mut Picture,
    names: &[&str],
    (left, top): Point,
    width: f32,
    sample: Sample,
) {
    if names.len() < 2 {
        return;
    }
    for (index, ((x, y), name)) in places(names, width).0.into_iter().zip(names).enumerate() {
        let style = of(index);
        let (x, middle) = (left + x, top + y + ROW / 2.);
        if sample == Sample::LineAndMarker {
            picture.shapes.push(Shape::Line {
                points: vec![(x, middle), (x + SAMPLE, middle)],
                stroke: style.colour,
                width: 2.,
                dashes: style.dashes,
            });
        }
        style.mark(picture, (x + SAMPLE / 2., middle));
        picture.text((x + SAMPLE + 6., middle + 4.5), *name, LABEL, Anchor::Start);
    }
}
