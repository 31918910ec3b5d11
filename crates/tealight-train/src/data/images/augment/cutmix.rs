//! CutMix (Yun et al. 2019, <https://arxiv.org/abs/1905.04899>, eq. 1 and 2).
//!
//! ```text
//! x̃ = M ⊙ x_A + (1 − M) ⊙ x_B      ỹ = λ y_A + (1 − λ) y_B
//!
//! λ ~ Beta(α, α)      r_x ~ uniform(0, W)      r_w = W √(1 − λ)      r_y ~ uniform(0, H)      r_h = H √(1 − λ)
//! ```
//!
//! M is 0 in the rectangle around (r_x, r_y), which is cut off at the edges. As in the authors' program, λ of the
//! target is then the share that is left of x_A.

use std::ops::Range;

use tealight_ops::rng::Stream;

use super::mixup::beta;
use crate::data::images::picture::PictureSize;

/// A part of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// Its first row.
    pub top: usize,
    /// Its first column.
    pub left: usize,
    /// Its height.
    pub rows: usize,
    /// Its width.
    pub columns: usize,
}

impl Rectangle {
    /// The places of its numbers in a picture `(height, width, channels)`, row by row.
    pub fn rows_of(self, size: PictureSize) -> impl Iterator<Item = Range<usize>> {
        let Self { top, left, rows, columns } = self;
        let at = move |row| (row * size.width + left) * size.channels;
        (top..top + rows).map(move |row| at(row)..at(row) + columns * size.channels)
    }

    /// The share of the picture outside of it.
    pub fn outside(self, size: PictureSize) -> f64 {
        1. - (self.rows * self.columns) as f64 / (size.height * size.width) as f64
    }
}

pub(super) fn random(size: PictureSize, alpha: f64, stream: Stream) -> Rectangle {
    let lambda = beta(alpha, stream.fork(0));
    around(size, lambda, [stream.uniform(0), stream.uniform(1)])
}

/// The rectangle of 1 − λ of the picture around the `centre` (y, x) in [0, 1), cut off at the edges.
fn around(size: PictureSize, lambda: f64, centre: [f64; 2]) -> Rectangle {
    let cut = (1. - lambda).sqrt();
    let range = |side: usize, centre: f64| {
        let (half, centre) = (cut * side as f64 / 2., centre * side as f64);
        let inside = |at: f64| (at.round().max(0.) as usize).min(side);
        (inside(centre - half), inside(centre + half))
    };
    let (top, bottom) = range(size.height, centre[0]);
    let (left, right) = range(size.width, centre[1]);
    Rectangle { top, left, rows: bottom - top, columns: right - left }
}

#[cfg(test)]
mod tests {
    use tealight_ops::rng::Purpose;

    use super::*;

    const SIZE: PictureSize = PictureSize { height: 16, width: 32, channels: 3 };

    #[test]
    fn the_rectangle_has_its_share_unless_an_edge_cuts_it_off() {
        let middle = around(SIZE, 0.75, [0.5, 0.5]);
        assert_eq!(middle, Rectangle { top: 4, left: 8, rows: 8, columns: 16 });
        assert_eq!(middle.outside(SIZE), 0.75);
        let corner = around(SIZE, 0.75, [0., 0.]);
        assert_eq!(corner, Rectangle { top: 0, left: 0, rows: 4, columns: 8 });
        assert_eq!(corner.outside(SIZE), 1. - 32. / 512.);
        assert_eq!(around(SIZE, 1., [0.3, 0.9]).outside(SIZE), 1.);
        assert_eq!(around(SIZE, 0., [0.5, 0.5]).outside(SIZE), 0.);
        assert_eq!(corner.rows_of(SIZE).nth(1), Some(96..120));
    }

    #[test]
    fn rectangles_lie_within_the_picture() {
        let stream = Stream::new(17, Purpose::Data);
        for index in 0..1000 {
            let Rectangle { top, left, rows, columns } = random(SIZE, 1., stream.fork(index));
            assert!(top + rows <= 16 && left + columns <= 32);
        }
    }
}
