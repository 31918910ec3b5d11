//! A drawing as a list of shapes.

use super::bitmap::Bitmap;
use super::colour::Colour;

/// x from the left and y from the top, in pixels of the SVG.
pub(super) type Point = (f32, f32);

/// Shapes in drawing order on a white background.
#[derive(Debug)]
pub(crate) struct Drawing {
    pub(super) width: f32,
    pub(super) height: f32,
    pub(super) shapes: Vec<Shape>,
}

#[derive(Debug)]
pub(super) enum Shape {
    /// A rectangle without a border, aligned with the pixels.
    Rectangle { corner: Point, size: Point, fill: Colour },
    /// Pixels, each a rectangle of one colour.
    Bitmap { corner: Point, size: Point, bitmap: Bitmap },
    /// A filled polygon.
    Area { points: Vec<Point>, fill: Colour, opacity: f32 },
    /// A line through points; dashes are lengths of line and gap in turn.
    Line { points: Vec<Point>, stroke: Colour, width: f32, dashes: &'static [f32] },
    /// One line of text.
    Text(Text),
}

/// One line of text; `at` is on its baseline.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) at: Point,
    pub(super) content: String,
    pub(super) size: f32,
    pub(super) anchor: Anchor,
}

/// The part of a text at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
    /// The start of a text that is rotated upwards.
    Upwards,
}

/// Sizes of text.
pub(super) const TITLE: f32 = 17.;
pub(super) const LABEL: f32 = 13.;

impl Drawing {
    pub(super) fn new(width: f32, height: f32) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    pub(super) fn rectangle(&mut self, corner: Point, size: Point, fill: Colour) {
        self.shapes.push(Shape::Rectangle { corner, size, fill });
    }

    pub(super) fn bitmap(&mut self, corner: Point, size: Point, bitmap: Bitmap) {
        self.shapes.push(Shape::Bitmap { corner, size, bitmap });
    }

    pub(super) fn line(&mut self, points: Vec<Point>, stroke: Colour, width: f32) {
        self.shapes.push(Shape::Line { points, stroke, width, dashes: &[] });
    }

    pub(super) fn text(&mut self, at: Point, text: impl Into<String>, size: f32, anchor: Anchor) {
        self.shapes.push(Shape::Text(Text { at, content: text.into(), size, anchor }));
    }
}
