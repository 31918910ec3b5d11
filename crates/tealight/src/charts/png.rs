//! A drawing as PNG.

use anyhow::{Context, Result};
use tiny_skia::{
    Color, FillRule, FilterQuality, LineJoin, Paint, Path, PathBuilder, Pixmap, PixmapPaint, Rect,
    Stroke, StrokeDash, Transform,
};

use super::colour::{BLACK, Colour};
use super::font;
use super::shapes::{Anchor, Drawing, Point, Shape, Text};

/// Width and height in pixels at `scale`.
pub(super) fn size(drawing: &Drawing, scale: f32) -> (u32, u32) {
    ((drawing.width * scale).ceil() as u32, (drawing.height * scale).ceil() as u32)
}

/// Encodes the drawing at `scale`.
pub(crate) fn write(drawing: &Drawing, scale: f32) -> Result<Vec<u8>> {
    let (width, height) = size(drawing, scale);
    let mut pixels = Pixmap::new(width, height)
        .with_context(|| format!("cannot write a PNG of {width} × {height} pixels"))?;
    pixels.fill(Color::WHITE);
    let transform = Transform::from_scale(scale, scale);
    for shape in &drawing.shapes {
        draw(&mut pixels, shape, transform);
    }
    Ok(pixels.encode_png()?)
}

fn draw(pixels: &mut Pixmap, shape: &Shape, transform: Transform) {
    match shape {
        Shape::Rectangle { corner: (x, y), size: (width, height), fill } => {
            if let Some(rectangle) = Rect::from_xywh(*x, *y, *width, *height) {
                let paint = Paint { anti_alias: false, ..paint(*fill, 1.) };
                pixels.fill_rect(rectangle, &paint, transform, None);
            }
        }
        Shape::Bitmap { corner: (x, y), size: (width, height), bitmap } => {
            let (columns, rows) = bitmap.size();
            let scale = Transform::from_scale(width / columns as f32, height / rows as f32);
            let transform = transform.pre_translate(*x, *y).pre_concat(scale);
            let paint = PixmapPaint { quality: FilterQuality::Nearest, ..PixmapPaint::default() };
            pixels.draw_pixmap(0, 0, bitmap.pixels(), &paint, transform, None);
        }
        Shape::Area { points, fill, opacity } => {
            if let Some(path) = path(points) {
                let paint = paint(*fill, *opacity);
                pixels.fill_path(&path, &paint, FillRule::Winding, transform, None);
            }
        }
        Shape::Line { points, stroke, width, dashes } => {
            if let Some(path) = path(points) {
                let dash = StrokeDash::new(dashes.to_vec(), 0.);
                let line_join = LineJoin::Round;
                let line = Stroke { width: *width, dash, line_join, ..Stroke::default() };
                pixels.stroke_path(&path, &paint(*stroke, 1.), &line, transform, None);
            }
        }
        Shape::Text(text) => write_text(pixels, text, transform),
    }
}

fn write_text(pixels: &mut Pixmap, text: &Text, transform: Transform) {
    let Some(outline) = font::outline(&text.content, text.size) else { return };
    let width = font::width(&text.content, text.size);
    let start = transform.pre_translate(text.at.0, text.at.1);
    let at = match text.anchor {
        Anchor::Start => start,
        Anchor::Middle => start.pre_translate(-width / 2., 0.),
        Anchor::End => start.pre_translate(-width, 0.),
        Anchor::Upwards => start.pre_rotate(-90.),
    };
    pixels.fill_path(&outline, &paint(BLACK, 1.), FillRule::Winding, at, None);
}

fn paint(Colour(red, green, blue): Colour, opacity: f32) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(red, green, blue, (opacity * 255.).round() as u8);
    paint
}

/// The open path through `points`; filling closes it.
fn path(points: &[Point]) -> Option<Path> {
    let (first, rest) = points.split_first()?;
    let mut path = PathBuilder::new();
    path.move_to(first.0, first.1);
    for (x, y) in rest {
        path.line_to(*x, *y);
    }
    path.finish()
}
