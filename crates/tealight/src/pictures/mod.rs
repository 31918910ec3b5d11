//! Pictures: what a chart consists of, written as SVG and as PNG.
//!
//! ```text
//! numbers ─► LineChart, DotChart, HeatMaps ─► Picture (shapes) ─► svg.rs, png.rs
//! ```
//!
//! A picture is white, and its series differ by colour, dash and marker, so that it can be printed in
//! grey and read with any eyes. SVG text is text: whatever the reader's fonts have is shown. A PNG has the
//! glyphs of the embedded font, DejaVu Sans reduced to European scripts and the weather.

mod axis;
mod colour;
mod dots;
mod font;
mod heat;
mod lines;
mod png;
mod style;
mod svg;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tealight_train::storage::files::replace;

use self::colour::Colour;

pub(crate) use self::dots::{Dot, DotChart, DotRow};
pub(crate) use self::heat::{HeatMaps, Panel, Scale};
pub(crate) use self::lines::{Across, LineChart, Series, Spread};

/// From the left and from the top, in pixels of the SVG.
type Point = (f32, f32);

/// What is drawn, in order, on white.
#[derive(Debug)]
pub(crate) struct Picture {
    width: f32,
    height: f32,
    shapes: Vec<Shape>,
}

#[derive(Debug)]
enum Shape {
    /// A rectangle without a border, aligned with the pixels.
    Rectangle { corner: Point, size: Point, fill: Colour },
    /// A filled polygon.
    Area { points: Vec<Point>, fill: Colour, opacity: f32 },
    /// A line through points; dashes are lengths of line and gap in turn.
    Line { points: Vec<Point>, stroke: Colour, width: f32, dashes: &'static [f32] },
    /// One line of text.
    Text(Text),
}

/// One line of text; `at` is on its base line.
#[derive(Debug)]
struct Text {
    at: Point,
    content: String,
    size: f32,
    anchor: Anchor,
    direction: Direction,
}

/// Which part of a text stands at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Across,
    Upwards,
}

/// Sizes of text.
const TITLE: f32 = 17.;
const LABEL: f32 = 13.;

impl Picture {
    fn new(width: f32, height: f32) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    fn rectangle(&mut self, corner: Point, size: Point, fill: Colour) {
        self.shapes.push(Shape::Rectangle { corner, size, fill });
    }

    fn line(&mut self, points: Vec<Point>, stroke: Colour, width: f32) {
        self.shapes.push(Shape::Line { points, stroke, width, dashes: &[] });
    }

    fn text(&mut self, at: Point, text: impl Into<String>, size: f32, anchor: Anchor) {
        let (content, direction) = (text.into(), Direction::Across);
        self.shapes.push(Shape::Text(Text { at, content, size, anchor, direction }));
    }

    /// Text from `at` upwards.
    fn text_upwards(&mut self, at: Point, text: impl Into<String>, size: f32) {
        let (content, direction, anchor) = (text.into(), Direction::Upwards, Anchor::Start);
        self.shapes.push(Shape::Text(Text { at, content, size, anchor, direction }));
    }

    /// Writes `<directory>/<name>.svg` and `.png`; the paths of both.
    pub(crate) fn save(&self, directory: &Path, name: &str) -> Result<[PathBuf; 2]> {
        let paths = ["svg", "png"].map(|ending| directory.join(format!("{name}.{ending}")));
        replace(&paths[0], svg::write(self).as_bytes())?;
        replace(&paths[1], &self.png(SHARP)?)?;
        Ok(paths)
    }

    /// The picture as a PNG of `scale` times its size.
    pub(crate) fn png(&self, scale: f32) -> Result<Vec<u8>> {
        png::write(self, scale).context("the picture cannot be written as PNG")
    }

    /// Width and height in pixels of [`Self::png`].
    pub(crate) fn png_size(&self, scale: f32) -> (u32, u32) {
        png::size(self, scale)
    }
}

/// The scale of a PNG file: twice as many pixels, for screens that have them.
const SHARP: f32 = 2.;

/// A name that is one part of a path on every system.
pub(crate) fn file_name(name: &str) -> String {
    let keep = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    name.chars().map(|c| if keep(c) { c } else { '_' }).collect()
}
