//! Affine maps of a picture.
//!
//! ```text
//! out[y, x] = in at A (x − c_x, y − c_y) + (c_x, c_y) + b          c the middle; 0 outside of the picture
//! ```
//!
//! Between pixels, the value is interpolated linearly.

use crate::data::images::picture::{Picture, PictureSize};

/// Where each pixel comes from: x = xx·x + xy·y + bx, y = yx·x + yy·y + by, from the middle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    xx: f64,
    xy: f64,
    bx: f64,
    yx: f64,
    yy: f64,
    by: f64,
}

const IDENTITY: Affine = Affine { xx: 1., xy: 0., bx: 0., yx: 0., yy: 1., by: 0. };

/// Bits after the point of a place.
const BITS: u32 = 16;

impl Affine {
    pub(super) fn shear_x(by: f64) -> Self {
        Self { xy: by, ..IDENTITY }
    }

    pub(super) fn shear_y(by: f64) -> Self {
        Self { yx: by, ..IDENTITY }
    }

    /// The picture moves by these pixels to the right and down.
    pub(super) fn shift(right: f64, down: f64) -> Self {
        Self { bx: -right, by: -down, ..IDENTITY }
    }

    /// The picture turns anticlockwise.
    pub(super) fn rotation(degrees: f64) -> Self {
        let (sin, cos) = degrees.to_radians().sin_cos();
        Self { xx: cos, xy: -sin, yx: sin, yy: cos, ..IDENTITY }
    }

    pub(super) fn apply(self, picture: &Picture) -> Picture {
        match picture.size.channels {
            1 => self.interpolate::<1>(picture),
            _ => self.interpolate::<3>(picture),
        }
    }

    fn interpolate<const N: usize>(self, picture: &Picture) -> Picture {
        let PictureSize { height, width, .. } = picture.size;
        let pixels = picture.pixels.as_chunks::<N>().0;
        let [cx, cy] = [width, height].map(|side| (side as f64 - 1.) / 2.);
        let fixed = |place: f64| (place * f64::from(1 << BITS)).round() as i64;
        let mut mapped = Vec::with_capacity(picture.pixels.len());
        for row in 0..height {
            let y = row as f64 - cy;
            // The place of the first pixel of the row, and the step to the next.
            let mut x_in = fixed(self.xx * -cx + self.xy * y + cx + self.bx);
            let mut y_in = fixed(self.yx * -cx + self.yy * y + cy + self.by);
            let (x_step, y_step) = (fixed(self.xx), fixed(self.yx));
            for _ in 0..width {
                mapped.extend_from_slice(&at(pixels, (height, width), (y_in, x_in)));
                x_in += x_step;
                y_in += y_step;
            }
        }
        Picture::new(picture.size, mapped)
    }
}

/// The value at a place in fixed point.
#[inline]
fn at<const N: usize>(
    pixels: &[[u8; N]],
    (height, width): (usize, usize),
    (y, x): (i64, i64),
) -> [u8; N] {
    let (top, left) = (y >> BITS, x >> BITS);
    let fraction = |place: i64| (place & ((1 << BITS) - 1)) as u64 >> (BITS - 8);
    let (down, right) = (fraction(y), fraction(x));
    let pixel = |row: i64, column: i64| {
        let inside = |place: i64, n: usize| usize::try_from(place).ok().filter(|&place| place < n);
        match (inside(row, height), inside(column, width)) {
            (Some(row), Some(column)) => pixels[row * width + column],
            _ => [0; N],
        }
    };
    if down == 0 && right == 0 {
        return pixel(top, left);
    }
    let corners =
        [pixel(top, left), pixel(top, left + 1), pixel(top + 1, left), pixel(top + 1, left + 1)];
    let weights =
        [(256 - down) * (256 - right), (256 - down) * right, down * (256 - right), down * right];
    std::array::from_fn(|channel| {
        let terms =
            corners.iter().zip(weights).map(|(pixel, weight)| u64::from(pixel[channel]) * weight);
        ((terms.sum::<u64>() + (1 << 15)) >> 16) as u8
    })
}
