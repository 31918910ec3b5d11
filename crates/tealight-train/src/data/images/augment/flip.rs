//! Mirrors a picture, left to right.

use crate::data::images::picture::Picture;

/// Column x becomes column width − 1 − x.
pub fn horizontal(picture: &mut Picture) {
    let (width, channels) = (picture.size.width, picture.size.channels);
    for row in picture.pixels.chunks_exact_mut(width * channels) {
        for left in 0..width / 2 {
            let right = width - 1 - left;
            for channel in 0..channels {
                row.swap(left * channels + channel, right * channels + channel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::images::picture::PictureSize;

    #[test]
    fn columns_are_swapped_and_channels_are_not() {
        let size = PictureSize { height: 2, width: 3, channels: 3 };
        let mut picture = Picture::new(size, (0..18).collect());
        let before = picture.clone();
        horizontal(&mut picture);
        assert_eq!(picture.pixels[..9], [6, 7, 8, 3, 4, 5, 0, 1, 2]);
        horizontal(&mut picture);
        assert_eq!(picture, before);
    }
}
