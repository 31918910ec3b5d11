//! Colours and colour scales.

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour(pub(super) u8, pub(super) u8, pub(super) u8);

impl Colour {
    /// `0xRRGGBB`
    const fn hex(rgb: u32) -> Self {
        let [_, red, green, blue] = rgb.to_be_bytes();
        Self(red, green, blue)
    }

    /// The grey of the same luma (ITU-R BT.601).
    pub(super) fn grey(self) -> Self {
        let Self(red, green, blue) = self;
        let luma = 0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue);
        let luma = luma.round() as u8;
        Self(luma, luma, luma)
    }
}

pub(super) const BLACK: Colour = Colour::hex(0x22_22_22);
pub(super) const GREY: Colour = Colour::hex(0x77_77_77);
/// Frames that stand out on every picture.
pub(super) const FRAME: Colour = Colour::hex(0xd5_5e_00);
pub(super) const PALE: Colour = Colour::hex(0xdd_dd_dd);

/// Colours that colour-blind readers can tell apart (Okabe and Ito 2008,
/// <https://jfly.uni-koeln.de/color/>), ordered so that neighbours also differ in luminance.
const SERIES: [u32; 7] =
    [0x00_72_b2, 0xd5_5e_00, 0x00_9e_73, 0xcc_79_a7, 0x22_22_22, 0xe6_9f_00, 0x56_b4_e9];

/// Ten points of viridis, from dark to light and perceptually uniform
/// (<https://bids.github.io/colormap/>, CC0).
const VIRIDIS: [u32; 10] = [
    0x44_01_54, 0x48_28_78, 0x3e_49_89, 0x31_68_8e, 0x26_82_8e, 0x1f_9e_89, 0x35_b7_79, 0x6e_ce_58,
    0xb5_de_2b, 0xfd_e7_25,
];

/// Points of ColorBrewer's RdBu: blue is negative, white zero, red positive
/// (<https://colorbrewer2.org>).
const BLUE_RED: [u32; 9] = [
    0x21_66_ac, 0x43_93_c3, 0x92_c5_de, 0xd1_e5_f0, 0xf7_f7_f7, 0xfd_db_c7, 0xf4_a5_82, 0xd6_60_4d,
    0xb2_18_2b,
];

/// The colour of the series `index` of a chart.
pub(super) fn series(index: usize) -> Colour {
    Colour::hex(SERIES[index % SERIES.len()])
}

/// The colour of 0 ≤ `part` ≤ 1 on a scale from zero.
pub(super) fn sequential(part: f64) -> Colour {
    interpolate(&VIRIDIS, part)
}

/// The colour of 0 ≤ `part` ≤ 1 on a scale around zero, which is at ½.
pub(super) fn diverging(part: f64) -> Colour {
    interpolate(&BLUE_RED, part)
}

/// Linear interpolation; NaN is grey.
fn interpolate(points: &[u32], part: f64) -> Colour {
    if part.is_nan() {
        return GREY;
    }
    let place = part.clamp(0., 1.) * (points.len() - 1) as f64;
    let left = (place as usize).min(points.len() - 2);
    mixed(Colour::hex(points[left]), Colour::hex(points[left + 1]), place - left as f64)
}

/// (1 − `share`) of a colour and `share` of another.
pub(super) fn mixed(one: Colour, other: Colour, share: f64) -> Colour {
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
    Colour(mix(one.0, other.0), mix(one.1, other.1), mix(one.2, other.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance, which remains in a black-and-white print.
    fn grey(Colour(r, g, b): Colour) -> f64 {
        0.2126 * f64::from(r) + 0.7152 * f64::from(g) + 0.0722 * f64::from(b)
    }

    #[test]
    fn larger_values_have_higher_luminance() {
        let greys: Vec<f64> = (0..=100).map(|i| grey(sequential(f64::from(i) / 100.))).collect();
        assert!(greys.is_sorted_by(|a, b| a < b), "{greys:?}");
    }

    #[test]
    fn ends_and_nan_have_a_colour() {
        assert_eq!(sequential(-3.), Colour::hex(VIRIDIS[0]));
        assert_eq!(sequential(1.), Colour::hex(VIRIDIS[9]));
        assert_eq!(diverging(0.5), Colour::hex(BLUE_RED[4]));
        assert_eq!(diverging(f64::NAN), GREY);
    }
}
