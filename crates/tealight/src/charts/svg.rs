//! A drawing as SVG.

use std::fmt::{self, Write as _};

use super::base64::Base64;
use super::colour::{BLACK, Colour, GREY, PALE};
use super::shapes::{Anchor, Drawing, Point, Shape, Text};

/// Fonts with about the widths of the embedded font, which determine the layout.
const FONTS: &str = "DejaVu Sans, Verdana, sans-serif";

pub(super) fn write(drawing: &Drawing) -> String {
    let (width, height) = (Number(drawing.width), Number(drawing.height));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"{FONTS}\" fill=\"{BLACK}\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for shape in &drawing.shapes {
        element(&mut svg, shape).expect("invariant: a String grows");
        svg.push('\n');
    }
    svg + "</svg>\n"
}

/// The drawing as an element of a page: as wide as its place, on the background of the page and in its text colour.
pub(crate) fn inline(drawing: &Drawing, label: &str) -> String {
    let (width, height) = (Number(drawing.width), Number(drawing.height));
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width} {height}\" font-family=\"{FONTS}\" \
         fill=\"currentColor\">\n",
        escaped(label)
    );
    for shape in &drawing.shapes {
        let mut written = String::new();
        element(&mut written, shape).expect("invariant: a String grows");
        svg += &in_colours_of_page(&written);
        svg.push('\n');
    }
    svg + "</svg>\n"
}

/// Black, grey and pale lines and areas of an element in the text colour, more or less transparent.
fn in_colours_of_page(element: &str) -> String {
    let inks = [(BLACK, "1"), (GREY, "0.6"), (PALE, "0.15")];
    inks.into_iter().fold(element.to_owned(), |element, (ink, opacity)| {
        ["stroke", "fill"].into_iter().fold(element, |element, what| {
            let of_page = format!("{what}=\"currentColor\" {what}-opacity=\"{opacity}\"");
            element.replace(&format!(" {what}=\"{ink}\""), &format!(" {of_page}"))
        })
    })
}

fn element(svg: &mut String, shape: &Shape) -> fmt::Result {
    match shape {
        Shape::Rectangle { corner: (x, y), size: (width, height), fill } => write!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\" \
             shape-rendering=\"crispEdges\"/>",
            Number(*x),
            Number(*y),
            Number(*width),
            Number(*height)
        ),
        Shape::Bitmap { corner: (x, y), size: (width, height), bitmap } => write!(
            svg,
            "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
             image-rendering=\"pixelated\" href=\"data:image/png;base64,{}\"/>",
            Number(*x),
            Number(*y),
            Number(*width),
            Number(*height),
            Base64(&bitmap.png())
        ),
        Shape::Area { points, fill, opacity } => {
            write!(svg, "<polygon points=\"{}\" fill=\"{fill}\"", coordinates(points))?;
            if *opacity < 1. {
                write!(svg, " fill-opacity=\"{}\"", Number(*opacity))?;
            }
            svg.write_str("/>")
        }
        Shape::Line { points, stroke, width, dashes } => {
            write!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{}\" \
                 stroke-linejoin=\"round\"",
                coordinates(points),
                Number(*width)
            )?;
            if !dashes.is_empty() {
                let dashes: Vec<String> = dashes.iter().map(ToString::to_string).collect();
                write!(svg, " stroke-dasharray=\"{}\"", dashes.join(" "))?;
            }
            svg.write_str("/>")
        }
        Shape::Text(text) => write_text(svg, text),
    }
}

fn write_text(svg: &mut String, text: &Text) -> fmt::Result {
    let (x, y) = (Number(text.at.0), Number(text.at.1));
    write!(svg, "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\"", Number(text.size))?;
    match text.anchor {
        Anchor::Start => {}
        Anchor::Middle => svg.write_str(" text-anchor=\"middle\"")?,
        Anchor::End => svg.write_str(" text-anchor=\"end\"")?,
        Anchor::Upwards => write!(svg, " transform=\"rotate(-90 {x} {y})\"")?,
    }
    write!(svg, ">{}</text>", escaped(&text.content))
}

/// Escapes XML, and replaces control characters, which XML does not permit.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A coordinate, rounded to a hundredth of a pixel.
struct Number(f32);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", (self.0 * 100.).round() / 100.)
    }
}

/// `1,2.5 3,4`
fn coordinates(points: &[Point]) -> String {
    let pair = |(x, y): &Point| format!("{},{}", Number(*x), Number(*y));
    points.iter().map(pair).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut drawing = Drawing::new(50., 20.);
        drawing.text((1., 2.5), "</text>&\"天\u{1}", 13., Anchor::Middle);
        let svg = write(&drawing);
        let text = "<text x=\"1\" y=\"2.5\" font-size=\"13\" text-anchor=\"middle\">\
                    &lt;/text&gt;&amp;&quot;天\u{FFFD}</text>";
        assert!(svg.contains(text), "{svg}");
    }
}
