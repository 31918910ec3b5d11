//! Reliability diagrams: how often predictions of each confidence are right.

use super::colour::{GREY, PALE};
use super::shapes::{Anchor, Drawing, LABEL, Point, Shape};
use super::style::{self, Sample};

const LEFT: f32 = 70.;
const SIDE: f32 = 360.;

/// A name, and the mean confidence and the accuracy of each bin, in ascending order.
pub(crate) type Bins<'a> = (&'a str, Vec<(f64, f64)>);

/// Lines over the diagonal, on which a confidence is as high as the share of right predictions.
pub(crate) fn draw(series: &[Bins<'_>]) -> Drawing {
    let names: Vec<_> = series.iter().map(|(name, _)| *name).enumerate().collect();
    let top = 46. + style::legend_height(&names);
    let (right, bottom) = (LEFT + SIDE, top + SIDE);
    let mut drawing = style::chart("reliability", &names, bottom + 48., Sample::LineAndMarker);
    let place = |x: f64, y: f64| -> Point { (LEFT + SIDE * x as f32, bottom - SIDE * y as f32) };
    for tenths in (0..=10_u8).step_by(2) {
        let (at, text) = (f64::from(tenths) / 10., format!("{:.1}", f64::from(tenths) / 10.));
        let (x, y) = place(at, at);
        drawing.line(vec![(LEFT, y), (right, y)], PALE, 1.);
        drawing.text((LEFT - 8., y + 4.5), &text, LABEL, Anchor::End);
        drawing.text((x, bottom + 19.), text, LABEL, Anchor::Middle);
    }
    drawing.line(vec![(LEFT, bottom), (right, top)], GREY, 1.);
    let middle = LEFT + SIDE / 2.;
    drawing.text((middle, bottom + 38.), "mean confidence", LABEL, Anchor::Middle);
    drawing.text((20., bottom - SIDE / 2. + 30.), "accuracy", LABEL, Anchor::Upwards);
    for (at, (_, bins)) in series.iter().enumerate() {
        let style = style::series(at);
        let points: Vec<Point> = bins.iter().map(|&(x, y)| place(x, y)).collect();
        for &point in &points {
            style.mark(&mut drawing, point);
        }
        let (stroke, dashes) = (style.colour, style.dashes);
        drawing.shapes.push(Shape::Line { points, stroke, width: 2., dashes });
    }
    drawing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_lies_at_its_confidence_and_accuracy() {
        let drawing = draw(&[("as trained", vec![(0., 1.), (0.5, 0.25)]), ("calibrated", vec![])]);
        let top = 46. + style::legend_height(&[(0, "as trained"), (1, "calibrated")]);
        let has_line = drawing.shapes.iter().any(|shape| match shape {
            Shape::Line { points, .. } => {
                *points == [(LEFT, top), (LEFT + SIDE / 2., top + 0.75 * SIDE)]
            }
            _ => false,
        });
        assert!(has_line, "{drawing:?}");
    }
}
