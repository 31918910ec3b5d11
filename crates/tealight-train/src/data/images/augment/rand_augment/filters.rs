//! Blends of a picture with a plainer one, as Pillow's `ImageEnhance`: out = plain + factor (in − plain), within 0 and
//! 255.
//!
//! ```text
//! brightness   plain is black              contrast    the mean luma of the picture
//! colour       the luma of each pixel      sharpness   a smoothed picture, but for its edge
//! ```
//!
//! Smoothing weighs a pixel by 5/13 and each of its eight neighbours by 1/13.

use std::array::from_fn;

use crate::data::images::picture::{Picture, PictureSize, luma};

pub(super) fn brightness(picture: &mut Picture, factor: f64) {
    towards(picture, 0, factor);
}

pub(super) fn contrast(picture: &mut Picture, factor: f64) {
    let n = (picture.size.height * picture.size.width) as u64;
    let sum: u64 = match picture.size.channels {
        3 => picture.pixels.as_chunks().0.iter().map(|&pixel| u64::from(luma(pixel))).sum(),
        _ => picture.pixels.iter().map(|&byte| u64::from(byte)).sum(),
    };
    towards(picture, ((sum + n / 2) / n.max(1)) as u8, factor);
}

pub(super) fn colour(picture: &mut Picture, factor: f64) {
    if picture.size.channels != 3 {
        return;
    }
    let factor = Factor::new(factor);
    for pixel in picture.pixels.as_chunks_mut::<3>().0 {
        let grey = luma(*pixel);
        *pixel = pixel.map(|byte| factor.blend(grey, byte));
    }
}

pub(super) fn sharpness(picture: &mut Picture, factor: f64) {
    let PictureSize { height, width, channels } = picture.size;
    if height < 3 || width < 3 {
        return;
    }
    let factor = Factor::new(factor);
    let stride = width * channels;
    let before = picture.pixels.clone();
    for row in 1..height - 1 {
        // The sums of each column over three rows.
        let above = &before[(row - 1) * stride..];
        let columns: Vec<u16> = (0..stride)
            .map(|at| {
                u16::from(above[at])
                    + u16::from(above[at + stride])
                    + u16::from(above[at + 2 * stride])
            })
            .collect();
        for at in channels..stride - channels {
            let byte = before[row * stride + at];
            let around = columns[at - channels] + columns[at] + columns[at + channels];
            let smooth = (around + 4 * u16::from(byte) + 6) / 13;
            picture.pixels[row * stride + at] = factor.blend(smooth as u8, byte);
        }
    }
}

/// Blends all bytes with one.
fn towards(picture: &mut Picture, plain: u8, factor: f64) {
    let factor = Factor::new(factor);
    let table: [u8; 256] = from_fn(|byte| factor.blend(plain, byte as u8));
    for byte in &mut picture.pixels {
        *byte = table[usize::from(*byte)];
    }
}

/// A factor in fixed point.
#[derive(Clone, Copy)]
struct Factor(i32);

impl Factor {
    fn new(factor: f64) -> Self {
        Self((factor * 65536.).round() as i32)
    }

    #[inline]
    fn blend(self, plain: u8, byte: u8) -> u8 {
        let difference = self.0 * (i32::from(byte) - i32::from(plain));
        (i32::from(plain) + ((difference + 32768) >> 16)).clamp(0, 255) as u8
    }
}
