//! A random part of the padded picture: a shift by up to `padding` pixels (He et al. 2016, §4.2,
//! <https://arxiv.org/abs/1512.03385>).
//!
//! ```text
//! out[y, x] = in[y + t − p, x + l − p],    0 outside;    t, l uniform in 0..=2p
//! ```

use tealight_ops::rng::Stream;

use crate::data::images::picture::{Picture, PictureSize};

pub(super) fn random(picture: &Picture, padding: usize, stream: Stream) -> Picture {
    let n = 2 * padding as u64 + 1;
    let [top, left] = [0, 1].map(|index| stream.below(index, n) as usize);
    padded(picture, padding, top, left)
}

/// The part of the padded picture that begins `top` rows and `left` columns from its corner.
pub fn padded(picture: &Picture, padding: usize, top: usize, left: usize) -> Picture {
    let PictureSize { height, width, channels } = picture.size;
    let mut cropped = Picture::new(picture.size, vec![0; picture.pixels.len()]);
    // Where the picture lies in the part: rows and columns of the part, and the first of the picture.
    let overlap = |shift: usize, side: usize| {
        let first = padding.saturating_sub(shift).min(side);
        let from = shift.saturating_sub(padding).min(side);
        (first, from, (side - first).min(side - from))
    };
    let (first_row, from_row, n_rows) = overlap(top, height);
    let (first, from, n) = overlap(left, width);
    for row in 0..n_rows {
        let to = ((first_row + row) * width + first) * channels;
        let source = ((from_row + row) * width + from) * channels;
        cropped.pixels[to..to + n * channels]
            .copy_from_slice(&picture.pixels[source..source + n * channels]);
    }
    cropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_is_that_of_the_padded_picture() {
        let size = PictureSize { height: 3, width: 5, channels: 1 };
        let picture = Picture::new(size, (1..=15).collect());
        assert_eq!(padded(&picture, 2, 2, 2), picture);
        let at = |y: usize, x: usize| -> u8 {
            let inside = |at: usize, side: usize| at.checked_sub(2).filter(|&at| at < side);
            let (Some(y), Some(x)) = (inside(y, 3), inside(x, 5)) else { return 0 };
            picture.pixels[y * 5 + x]
        };
        for top in 0..=4 {
            for left in 0..=4 {
                let expected: Vec<u8> =
                    (0..15).map(|place| at(top + place / 5, left + place % 5)).collect();
                assert_eq!(padded(&picture, 2, top, left).pixels, expected, "{top} {left}");
            }
        }
    }

    #[test]
    fn a_padding_larger_than_the_picture_can_leave_nothing_of_it() {
        let size = PictureSize { height: 3, width: 5, channels: 1 };
        let picture = Picture::new(size, (1..=15).collect());
        assert_eq!(padded(&picture, 7, 0, 7).pixels, [0; 15]);
        assert_eq!(padded(&picture, 7, 14, 7).pixels, [0; 15]);
        assert_eq!(padded(&picture, 7, 7, 7), picture);
    }
}
