//! Colours, and numbers as colours.

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour(pub(super) u8, pub(super) u8, pub(super) u8);

pub(super) const BLACK: Colour = Colour(0x22, 0x22, 0x22);
pub(super) const GREY: Colour = Colour(0x77, 0x77, 0x77);
pub(super) const PALE: Colour = Colour(0xdd, 0xdd, 0xdd);

/// Seven colours that stay apart for colour-blind eyes (Okabe and Ito 2008,
/// <https://jfly.uni-koeln.de/color/>), in an order in which neighbours differ in grey, too.
pub(super) const SERIES: [Colour; 7] = [
    Colour(0x00, 0x72, 0xb2),
    Colour(0xd5, 0x5e, 0x00),
    Colour(0x00, 0x9e, 0x73),
    Colour(0xcc, 0x79, 0xa7),
    Colour(0x22, 0x22, 0x22),
    Colour(0xe6, 0x9f, 0x00),
    Colour(0x56, 0xb4, 0xe9),
];

/// From dark to light, evenly to the eye: ten points of viridis
/// (<https://bids.github.io/colormap/>, CC0).
const VIRIDIS: [Colour; 10] = [
    Colour(0x44, 0x01, 0x54),
    Colour(0x48, 0x28, 0x78),
    Colour(0x3e, 0x49, 0x89),
    Colour(0x31, 0x68, 0x8e),
    Colour(0x26, 0x82, 0x8e),
    Colour(0x1f, 0x9e, 0x89),
    Colour(0x35, 0xb7, 0x79),
    Colour(0x6e, 0xce, 0x58),
    Colour(0xb5, 0xde, 0x2b),
    Colour(0xfd, 0xe7, 0x25),
];

/// Blue for negative, red for positive, white for nothing: points of ColorBrewer's RdBu
/// (<https://colorbrewer2.org>).
const BLUE_RED: [Colour; 9] = [
    Colour(0x21, 0x66, 0xac),
    Colour(0x43, 0x93, 0xc3),
    Colour(0x92, 0xc5, 0xde),
    Colour(0xd1, 0xe5, 0xf0),
    Colour(0xf7, 0xf7, 0xf7),
    Colour(0xfd, 0xdb, 0xc7),
    Colour(0xf4, 0xa5, 0x82),
    Colour(0xd6, 0x60, 0x4d),
    Colour(0xb2, 0x18, 0x2b),
];

/// A colour for 0 ≤ `part` ≤ 1.
pub(super) fn sequential(part: f64) -> Colour {
    between(&VIRIDIS, part)
}

/// A colour for 0 ≤ `part` ≤ 1, where ½ is nothing.
pub(super) fn diverging(part: f64) -> Colour {
    between(&BLUE_RED, part)
}

/// What is not a number is grey.
fn between(points: &[Colour], part: f64) -> Colour {
    if part.is_nan() {
        return GREY;
    }
    let place = part.clamp(0., 1.) * (points.len() - 1) as f64;
    let left = (place as usize).min(points.len() - 2);
    let (Colour(r0, g0, b0), Colour(r1, g1, b1)) = (points[left], points[left + 1]);
    let mix = |a: u8, b: u8| {
        (f64::from(a) + (f64::from(b) - f64::from(a)) * (place - left as f64)).round() as u8
    };
    Colour(mix(r0, r1), mix(g0, g1), mix(b0, b1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance: what is left in print.
    fn grey(Colour(r, g, b): Colour) -> f64 {
        0.2126 * f64::from(r) + 0.7152 * f64::from(g) + 0.0722 * f64::from(b)
    }

    #[test]
    fn more_is_lighter_in_grey_too() {
        let greys: Vec<f64> = (0..=100).map(|i| grey(sequential(f64::from(i) / 100.))).collect();
        assert!(greys.is_sorted_by(|a, b| a < b), "{greys:?}");
    }

    #[test]
    fn ends_and_nonsense_have_a_colour() {
        assert_eq!(sequential(-3.), VIRIDIS[0]);
        assert_eq!(sequential(1.), VIRIDIS[9]);
        assert_eq!(diverging(0.5), BLUE_RED[4]);
        assert_eq!(diverging(f64::NAN), GREY);
    }
}
