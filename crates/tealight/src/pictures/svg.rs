//! A picture as SVG.

use std::fmt::{self, Write as _};

use super::colour::{BLACK, Colour};
use super::shapes::{Anchor, Picture, Point, Shape, Text};

/// Fonts with about the widths of the embedded font, which determine the layout.
const FONTS: &str = "DejaVu Sans, Verdana, sans-serif";

pub(super) fn write(picture: &Picture) -> String {
    let (width, height) = (Number(picture.width), Number(picture.height));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"{FONTS}\" fill=\"{BLACK}\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for shape in &picture.shapes {
        element(&mut svg, shape).expect("invariant: a String grows");
        svg.push('\n');
    }
    svg + "</svg>\n"
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
             style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>",
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
            control if control.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Bytes as text (RFC 4648).
struct Base64<'a>(&'a [u8]);

impl fmt::Display for Base64<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for bytes in self.0.chunks(3) {
            let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for at in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
                f.write_char(if at > bytes.len() { '=' } else { char::from(digit) })?;
            }
        }
        Ok(())
    }
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
    fn bytes_are_written_as_rfc_4648_says() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let written = texts.map(|text| Base64(text.as_bytes()).to_string());
        assert_eq!(written, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn text_is_escaped() {
        let mut picture = Picture::new(50., 20.);
        picture.text((1., 2.5), "</text>&\"天\u{1}", 13., Anchor::Middle);
        let svg = write(&picture);
        let text = "<text x=\"1\" y=\"2.5\" font-size=\"13\" text-anchor=\"middle\">\
                    &lt;/text&gt;&amp;\"天\u{FFFD}</text>";
        assert!(svg.contains(text), "{svg}");
    }
}
