//! The embedded font: widths and outlines of texts.

use std::sync::LazyLock;

use tiny_skia::{Path, PathBuilder};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

static FACE: LazyLock<Face<'static>> = LazyLock::new(|| {
    let font = include_bytes!("../../fonts/DejaVuSans-subset.ttf");
    Face::parse(font, 0).expect("invariant: the embedded font is one")
});

/// The glyphs of a text. Variation selectors and joiners are skipped; a missing character is the empty
/// box.
fn glyphs(text: &str) -> impl Iterator<Item = GlyphId> {
    let visible = text.chars().filter(|c| !matches!(c, '\u{FE00}'..='\u{FE0F}' | '\u{200D}'));
    visible.map(|character| match character {
        // The font has no cloud with rain, but an umbrella.
        '🌧' => FACE.glyph_index('☂').unwrap_or_default(),
        other => FACE.glyph_index(other).unwrap_or_default(),
    })
}

/// The width of a line of text.
pub(super) fn width(text: &str, size: f32) -> f32 {
    glyphs(text).map(advance).sum::<f32>() * scale(size)
}

/// The width of the widest of `texts`; 0 for none.
pub(super) fn widest(texts: impl Iterator<Item = impl AsRef<str>>, size: f32) -> f32 {
    texts.map(|text| width(text.as_ref(), size)).fold(0., f32::max)
}

/// The text, or its beginning with an ellipsis if it is wider than `widest`.
pub(super) fn shortened(text: &str, size: f32, widest: f32) -> String {
    if width(text, size) <= widest {
        return text.to_owned();
    }
    let mut short = String::new();
    for character in text.chars() {
        short.push(character);
        if width(&short, size) + width("…", size) > widest {
            short.pop();
            break;
        }
    }
    short + "…"
}

fn advance(glyph: GlyphId) -> f32 {
    f32::from(FACE.glyph_hor_advance(glyph).unwrap_or_default())
}

fn scale(size: f32) -> f32 {
    size / f32::from(FACE.units_per_em())
}

/// The outlines of a text that starts at (0, 0) on its baseline; `None` if no glyph is visible.
pub(super) fn outline(text: &str, size: f32) -> Option<Path> {
    let scale = scale(size);
    let mut pen = Pen { path: PathBuilder::new(), scale, x: 0. };
    for glyph in glyphs(text) {
        FACE.outline_glyph(glyph, &mut pen);
        pen.x += advance(glyph) * scale;
    }
    pen.path.finish()
}

/// Converts font units with y upwards to pixels with y downwards.
struct Pen {
    path: PathBuilder,
    scale: f32,
    x: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, -y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_ends_in_an_ellipsis() {
        assert_eq!(shortened("boat", 13., 60.), "boat");
        let short = shortened("a very long name of a class", 13., 60.);
        assert!(short.ends_with('…') && width(&short, 13.) <= 60., "{short}");
    }

    #[test]
    fn all_characters_in_use_have_a_glyph() {
        let written = "step loss [CLS] −0.5 1e-5 ± · ↓ → … Nyström 🌧\u{FE0F}☁\u{FE0F}☀\u{FE0F}";
        assert!(glyphs(written).all(|glyph| glyph != GlyphId(0)));
        assert!(glyphs("天").all(|glyph| glyph == GlyphId(0)));
        assert_eq!(width("☀\u{FE0F}", 13.), width("☀", 13.));
    }
}
