//! Resizing by averages of the pixels around each new pixel, as Pillow and torchvision (with `antialias`) do it.
//!
//! ```text
//! out[i] = Σ_j w_ij in[j],     w_ij = k((j + ½ − cᵢ) / s) / Σ_j' k((j' + ½ − cᵢ) / s)
//!
//! cᵢ = (i + ½) · in / out      s = max(in / out, 1)
//!
//! bilinear   k(x) = 1 − |x|                                                       |x| < 1
//! bicubic    k(x) = (a + 2)|x|³ − (a + 3)x² + 1, a|x|³ − 5a x² + 8a|x| − 4a       |x| < 1, |x| < 2; a = −½
//! ```
//!
//! Weights have 22 bits of fixed point and each of the two passes rounds to 8 bits, so that the result is Pillow's bit
//! for bit. As in Pillow 13, the width is changed first, unless the height shrinks by more than twice as many pixels as
//! the width; earlier versions always change the width first.

use tealight_model::names;

use super::picture::{Picture, PictureSize};

names! {
    /// How pixels between pixels are computed.
    pub enum Filter {
        /// Weights fall linearly with the distance.
        "bilinear" => Bilinear,
        /// Weights are those of a cubic (Keys 1981), which is sharper.
        "bicubic" => Bicubic,
    }
}

names! {
    /// `task.fit`: how a picture of other proportions fits.
    pub enum Fit {
        /// It is resized to cover the size, and what exceeds it is cut off on both ends.
        "crop" => Crop,
        /// Each side is resized by itself.
        "stretch" => Stretch,
    }
}

/// The most pixels of a picture that is resized before its middle is cut out: a long line one pixel high would need
/// more than memory holds.
const MAX_PIXELS: usize = 1 << 27;
/// Bits after the point of a weight.
const BITS: u32 = 22;

impl Filter {
    /// Where the weight becomes zero.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.,
            Self::Bicubic => 2.,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Self::Bilinear => (1. - x).max(0.),
            Self::Bicubic if x < 1. => ((A + 2.) * x - (A + 3.)) * x * x + 1.,
            Self::Bicubic if x < 2. => (((x - 5.) * x + 8.) * x - 4.) * A,
            Self::Bicubic => 0.,
        }
    }
}

/// The picture in `rows` x `columns` pixels.
pub fn resize(picture: &Picture, [rows, columns]: [usize; 2], fit: Fit, filter: Filter) -> Picture {
    let PictureSize { height, width, .. } = picture.size;
    if (height, width) == (rows, columns) {
        return picture.clone();
    }
    match fit {
        Fit::Stretch => resized(picture, rows, columns, filter),
        // For a square, the shorter side decides, as in the image processors of transformers.
        Fit::Crop if rows * width >= columns * height => {
            cut_out(&resized(picture, rows, width * rows / height, filter), [rows, columns])
        }
        Fit::Crop => {
            cut_out(&resized(picture, height * columns / width, columns, filter), [rows, columns])
        }
    }
}

/// Refuses a picture that would be too large if its shorter side had `n` pixels.
///
/// # Errors
/// The end of a sentence that begins with its name.
pub fn check_proportions(size: PictureSize, n: usize) -> Result<(), String> {
    let (height, width) = (size.height.max(1), size.width.max(1));
    let longer = n.saturating_mul(height.max(width)) / height.min(width);
    if n.saturating_mul(longer) <= MAX_PIXELS {
        return Ok(());
    }
    Err(format!("has {size}, and with {n} on the shorter side more than {MAX_PIXELS} of them"))
}

/// The picture resized so that its shorter side has `n` pixels and its proportions stay.
pub fn with_shorter_side(picture: &Picture, n: usize, filter: Filter) -> Picture {
    let PictureSize { height, width, .. } = picture.size;
    let size = if width <= height { [n * height / width, n] } else { [n, n * width / height] };
    resize(picture, size, Fit::Stretch, filter)
}

/// The middle of a picture; `None` if it is smaller.
pub fn centre(picture: &Picture, [rows, columns]: [usize; 2]) -> Option<Picture> {
    let fits = rows <= picture.size.height && columns <= picture.size.width;
    fits.then(|| cut_out(picture, [rows, columns]))
}

fn resized(picture: &Picture, height: usize, width: usize, filter: Filter) -> Picture {
    let (from, channels) = (picture.size, picture.size.channels);
    let change_width = |pixels: Vec<u8>| {
        if from.width == width {
            return pixels;
        }
        let taps = taps(from.width, width, filter);
        let row = |row: &[u8]| along(row, &taps, channels);
        pixels.chunks_exact(from.width * channels).flat_map(row).collect()
    };
    let change_height = |pixels: Vec<u8>, width: usize| {
        if from.height == height {
            return pixels;
        }
        along(&pixels, &taps(from.height, height, filter), width * channels)
    };
    let pixels = picture.pixels.clone();
    let pixels = if is_height_first(from, height, width) {
        change_width(change_height(pixels, from.width))
    } else {
        change_height(change_width(pixels), width)
    };
    Picture::new(PictureSize { height, width, channels }, pixels)
}

/// The order in which Pillow 13 changes the sides.
fn is_height_first(from: PictureSize, height: usize, width: usize) -> bool {
    from.height > height && from.height - height > 2 * from.width.saturating_sub(width)
}

/// The weights of a new pixel: the first old one, and a weight for it and each after it.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let ratio = from as f64 / to as f64;
    let scale = ratio.max(1.);
    let support = filter.support() * scale;
    let of = |i: usize| {
        let centre = (i as f64 + 0.5) * ratio;
        let first = (centre - support + 0.5).max(0.) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let weight = |j: usize| filter.weight((j as f64 - centre + 0.5) / scale);
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / sum * f64::from(1 << BITS)).round() as i32;
        Taps { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..to).map(of).collect()
}

/// Resizes the first axis of `pixels (from, inner)`.
fn along(pixels: &[u8], taps: &[Taps], inner: usize) -> Vec<u8> {
    let mut resized = Vec::with_capacity(taps.len() * inner);
    for Taps { first, weights } in taps {
        let start = first * inner;
        resized.extend((0..inner).map(|at| {
            let old = pixels[start + at..].iter().step_by(inner);
            let sum: i32 = old.zip(weights).map(|(&old, weight)| i32::from(old) * weight).sum();
            ((sum + (1 << (BITS - 1))) >> BITS).clamp(0, 255) as u8
        }));
    }
    resized
}

/// The middle of a picture: `rows` x `columns` pixels. If the rest is odd, its larger part is below and on the right,
/// as in the image processors of transformers.
fn cut_out(picture: &Picture, [rows, columns]: [usize; 2]) -> Picture {
    let PictureSize { height, width, channels } = picture.size;
    let (top, left) = ((height - rows) / 2, (width - columns) / 2);
    let row = |row| &picture.pixels[(row * width + left) * channels..][..columns * channels];
    let pixels = (top..top + rows).flat_map(row).copied().collect();
    Picture::new(PictureSize { height: rows, width: columns, channels }, pixels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fingerprint::fnv_1a;

    fn picture((height, width, channels): (usize, usize, usize)) -> Picture {
        let byte = |at: usize| {
            let (row, column, channel) =
                (at / (width * channels), at / channels % width, at % channels);
            ((row * 31 + column * 17 + channel * 71) * 7 % 256) as u8
        };
        let size = PictureSize { height, width, channels };
        Picture::new(size, (0..height * width * channels).map(byte).collect())
    }

    /// Hashes of the bytes that Pillow 13.0 makes of the same pictures.
    #[test]
    fn pictures_are_resized_as_pillow_does() {
        use Filter::{Bicubic, Bilinear};
        for (from, to, filter, expected) in [
            ((13, 7, 3), [8, 8], Bilinear, 0x9b16_270c_82bc_9437),
            ((13, 7, 3), [17, 5], Bilinear, 0xe9ca_87e5_ee01_5089),
            ((13, 7, 3), [8, 8], Bicubic, 0x94ea_1144_1a60_acd3),
            ((13, 7, 3), [17, 5], Bicubic, 0x0ba0_c6bc_4094_f9d4),
            ((5, 11, 1), [8, 8], Bilinear, 0x48a1_a339_38dd_022c),
            ((5, 11, 1), [17, 5], Bilinear, 0x7833_864f_47ea_dedc),
            ((5, 11, 1), [8, 8], Bicubic, 0xbdde_1786_db04_bbb7),
            ((5, 11, 1), [17, 5], Bicubic, 0x9da2_51cc_38bb_7fe8),
            ((40, 23, 3), [8, 8], Bilinear, 0xad81_e81d_01af_9be5),
            ((40, 23, 3), [17, 5], Bilinear, 0xa436_d3e6_52fb_27eb),
            ((40, 23, 3), [8, 8], Bicubic, 0x186e_28eb_b85b_86c1),
            ((40, 23, 3), [17, 5], Bicubic, 0xc248_215f_694e_8793),
        ] {
            let resized = resize(&picture(from), to, Fit::Stretch, filter);
            let hash = fnv_1a(resized.pixels);
            assert_eq!(hash, expected, "{from:?} to {to:?}, {filter:?}");
        }
    }

    /// Values of Pillow's `resize` and `crop`, with the sizes of torchvision's `Resize` and `CenterCrop`.
    #[test]
    fn the_middle_of_the_shorter_side_is_kept() {
        for (from, expected) in [
            ((13, 7, 3), 0x67d4_fbbb_047f_4afc),
            ((5, 11, 1), 0x60cd_f6af_16b7_7579),
            ((40, 23, 3), 0xb4b4_6bb3_1669_4970),
        ] {
            let resized = resize(&picture(from), [8, 8], Fit::Crop, Filter::Bilinear);
            assert_eq!(fnv_1a(resized.pixels), expected, "{from:?}");
        }
        let wide = resize(&picture((10, 10, 1)), [3, 6], Fit::Crop, Filter::Bilinear);
        assert_eq!((wide.size.height, wide.size.width), (3, 6));
        let same = picture((5, 11, 3));
        assert_eq!(resize(&same, [5, 11], Fit::Crop, Filter::Bicubic), same);
    }
}
