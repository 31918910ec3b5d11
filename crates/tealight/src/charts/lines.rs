//! Line charts: values over steps or lengths, one line per series.

use super::axis::{Axis, Spacing};
use super::colour::{GREY, PALE};
use super::font;
use super::shapes::{Anchor, Drawing, LABEL, Point, Shape};
use super::style::{self, Sample, Style, WIDTH};

/// The quantity of the x axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XAxis {
    Steps,
    /// Sequence lengths: a logarithmic axis with a tick at each.
    Lengths,
    /// Positions in a sequence.
    Positions,
    /// Bytes of a state, on a logarithmic axis.
    StateBytes,
}

/// A chart with one line per series.
#[derive(Debug)]
pub(crate) struct LineChart {
    pub(crate) title: String,
    pub(crate) x_axis: XAxis,
    /// The scale of the y axis.
    pub(crate) spacing: Spacing,
    pub(crate) series: Vec<Series>,
}

/// One line with an optional band.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// Its name in the legend; empty if the legend leaves it out.
    pub(crate) name: String,
    /// x and y, in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Half the height of the band at each point; empty for no band.
    pub(crate) deviations: Vec<f64>,
    /// Colour, dashes and marker: those of the series of this number; by default its own.
    pub(crate) style: Option<usize>,
}

const PLOT_HEIGHT: f32 = 300.;
/// The least margin at the right.
const RIGHT: f32 = 24.;
/// The maximum number of points of a line: two per pixel.
const MAX_POINTS: usize = 1500;
/// The minimum distance of markers. Lines of up to `FEW_POINTS` have a marker at each point.
const BETWEEN_MARKERS: f32 = 70.;
const FEW_POINTS: usize = 25;

impl LineChart {
    pub(crate) fn draw(&self) -> Drawing {
        let plot = Plot::around(self);
        let mut drawing =
            style::chart(&self.title, &self.names(), plot.bottom + 48., Sample::LineAndMarker);
        plot.frame(&mut drawing);
        let styled = || self.series.iter().enumerate().map(|(at, one)| (one, one.style(at)));
        for (series, style) in styled() {
            plot.band(&mut drawing, series, style::series(style));
        }
        for (series, style) in styled() {
            plot.line(&mut drawing, series, style::series(style), self.series.len());
        }
        drawing
    }

    /// The entries of the legend, each with its style; none for a single series, which has the title.
    fn names(&self) -> Vec<(usize, &str)> {
        let named = self.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty());
        let named = named.map(|(at, series)| (series.style(at), series.name.as_str()));
        if self.series.len() > 1 { named.collect() } else { Vec::new() }
    }
}

/// The axes and their positions.
struct Plot {
    x_axis: XAxis,
    x: Axis,
    y: Axis,
    left: f32,
    right: f32,
    top: f32,
    bottom: f32,
}

impl Plot {
    fn around(chart: &LineChart) -> Self {
        let steps = || chart.series.iter().flat_map(|series| &series.points).map(|(step, _)| *step);
        let last = steps().fold(1., f64::max);
        let first = steps().fold(last, f64::min).min(last * 0.5);
        let x = match chart.x_axis {
            XAxis::Steps | XAxis::Positions => Axis::exactly(first, last),
            XAxis::StateBytes => Axis::around([first, last].into_iter(), Spacing::Logarithmic),
            XAxis::Lengths => Axis::by_doublings(first, last, steps()),
        };
        let y = Axis::around(chart.series.iter().flat_map(Series::heights), chart.spacing);
        let widest = font::widest(y.ticks.iter().map(|(_, text)| text), LABEL);
        // The last label is centred below the end of the axis, and must fit into the margin.
        let last = x.ticks.last().map_or(0., |(_, text)| font::width(text, LABEL));
        let right = WIDTH - RIGHT.max(last / 2. + 2.);
        let top = 46. + style::legend_height(&chart.names());
        let bottom = top + PLOT_HEIGHT;
        Self { x_axis: chart.x_axis, x, y, left: widest + 26., right, top, bottom }
    }

    fn place(&self, (step, value): (f64, f64)) -> Point {
        let x = self.left + self.x.part(step) * (self.right - self.left);
        let y = self.bottom - self.y.part(value).clamp(0., 1.) * (self.bottom - self.top);
        (x, y)
    }

    /// Draws axes, ticks and the label of the x axis.
    fn frame(&self, drawing: &mut Drawing) {
        let right = self.right;
        for (value, text) in &self.y.ticks {
            let y = self.bottom - self.y.part(*value) * (self.bottom - self.top);
            drawing.line(vec![(self.left, y), (right, y)], PALE, 1.);
            drawing.text((self.left - 8., y + 4.5), text, LABEL, Anchor::End);
        }
        drawing.line(vec![(self.left, self.bottom), (right, self.bottom)], GREY, 1.);
        for (value, text) in &self.x.ticks {
            let x = self.left + self.x.part(*value) * (right - self.left);
            drawing.line(vec![(x, self.bottom), (x, self.bottom + 5.)], GREY, 1.);
            drawing.text((x, self.bottom + 19.), text, LABEL, Anchor::Middle);
        }
        let middle = f32::midpoint(self.left, right);
        let what = match self.x_axis {
            XAxis::Steps => "step",
            XAxis::Lengths => "sequence length",
            XAxis::Positions => "position",
            XAxis::StateBytes => "bytes of the decoding state",
        };
        drawing.text((middle, self.bottom + 38.), what, LABEL, Anchor::Middle);
    }

    fn band(&self, drawing: &mut Drawing, series: &Series, style: Style) {
        let ends = series.points.iter().zip(&series.deviations);
        let ends = ends.filter(|((_, value), deviation)| (value + *deviation).is_finite());
        let upper = ends.clone().map(|((step, value), by)| self.place((*step, value + by)));
        // On a logarithmic axis the lower end of a band may not be positive.
        let floor =
            |value: f64| if self.y.spacing.holds(value) { value } else { f64::MIN_POSITIVE };
        let lower = ends.rev().map(|((step, value), by)| self.place((*step, floor(value - by))));
        let points: Vec<Point> = upper.chain(lower).collect();
        if points.len() > 2 {
            drawing.shapes.push(Shape::Area { points, fill: style.colour, opacity: 0.2 });
        }
    }

    /// Draws a line with gaps at non-finite values, and with markers if there are several lines.
    fn line(&self, drawing: &mut Drawing, series: &Series, style: Style, n_series: usize) {
        let width = if series.points.len() > 200 { 1.4 } else { 2. };
        let thin = thinned(&series.points);
        for piece in thin.split(|(_, value)| !self.y.spacing.holds(*value)) {
            let points: Vec<Point> = piece.iter().map(|point| self.place(*point)).collect();
            if points.len() == 1 {
                style.mark(drawing, points[0]);
            } else if points.len() > 1 {
                let Style { colour: stroke, dashes, .. } = style;
                drawing.shapes.push(Shape::Line { points, stroke, width, dashes });
            }
        }
        if n_series < 2 {
            return;
        }
        let mut last = f32::NEG_INFINITY;
        for point in series.points.iter().filter(|(_, value)| self.y.spacing.holds(*value)) {
            let at = self.place(*point);
            if series.points.len() <= FEW_POINTS || at.0 - last >= BETWEEN_MARKERS {
                style.mark(drawing, at);
                last = at.0;
            }
        }
    }
}

impl Series {
    /// The style of the series that is at this place.
    fn style(&self, at: usize) -> usize {
        self.style.unwrap_or(at)
    }

    /// All y values, including the ends of the band.
    fn heights(&self) -> impl Iterator<Item = f64> {
        let ends = self.points.iter().zip(&self.deviations);
        let ends = ends.flat_map(|((_, value), by)| [value - by, value + by]);
        self.points.iter().map(|(_, value)| *value).chain(ends)
    }
}

/// Keeps the minimum and maximum of each stretch, so that a long line still shows its peaks.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(MAX_POINTS / 2);
    let mut thin = Vec::with_capacity(MAX_POINTS + 1);
    for chunk in points.chunks(stretch) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = [chunk.iter().min_by(by_value), chunk.iter().max_by(by_value)];
        let mut ends: Vec<(f64, f64)> = ends.into_iter().flatten().copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        thin.extend(ends);
    }
    thin
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::png;

    #[test]
    fn a_long_line_keeps_its_peaks() {
        let mut points: Vec<(f64, f64)> = (0..100_003).map(|i| (f64::from(i), 0.5)).collect();
        points[54_321].1 = 9.;
        let thin = thinned(&points);
        assert!(thin.len() <= MAX_POINTS && thin.contains(&(54_321., 9.)), "{}", thin.len());
        assert!(thin.is_sorted_by(|a, b| a.0 <= b.0));
    }

    #[test]
    fn non_finite_values_break_the_line() {
        let points = [1., 2., f64::NAN, 3., 4.].into_iter().zip(1..);
        let points = points.map(|(value, step)| (f64::from(step), value)).collect();
        let series = vec![Series { name: "a".into(), points, ..Series::default() }];
        let chart = LineChart {
            title: "loss".into(),
            x_axis: XAxis::Steps,
            spacing: Spacing::Logarithmic,
            series,
        };
        let drawing = chart.draw();
        let lines = drawing.shapes.iter().filter(|shape| {
            matches!(shape, Shape::Line { points, width, .. } if points.len() == 2 && *width == 2.)
        });
        assert_eq!(lines.count(), 2);
    }

    #[test]
    fn the_labels_of_the_axes_are_whole() {
        for last in [3_000., 100_000., 123_456_789.] {
            let points = vec![(1., 0.5), (last, 12_345.)];
            let series = vec![Series { points, ..Series::default() }];
            let (title, spacing) = (String::new(), Spacing::Linear);
            let drawing = LineChart { title, x_axis: XAxis::Steps, spacing, series }.draw();
            for shape in &drawing.shapes {
                let Shape::Text(text) = shape else { continue };
                let width = font::width(&text.content, text.size);
                let start = match text.anchor {
                    Anchor::End => text.at.0 - width,
                    Anchor::Middle => text.at.0 - width / 2.,
                    Anchor::Start | Anchor::Upwards => text.at.0,
                };
                assert!(start >= 0. && start + width <= drawing.width, "{last}: {text:?}");
            }
        }
    }

    #[test]
    fn a_chart_without_points_can_be_drawn() {
        let chart = LineChart {
            title: "loss".into(),
            x_axis: XAxis::Steps,
            spacing: Spacing::Linear,
            series: vec![Series::default(), Series::default()],
        };
        assert!(!png::write(&chart.draw(), 1.).unwrap().is_empty());
    }
}
