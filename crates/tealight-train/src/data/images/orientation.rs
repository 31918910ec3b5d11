//! The orientation in the metadata of a picture: cameras store pixels as the sensor reads them, and how to turn them
//! (Exif 2.32, CIPA DC-008, tag 274).
//!
//! ```text
//! 1 as it is    2 mirrored    3 turned by 180°    4 upside down
//! 5 transposed  6 turned by 90° clockwise         7 transposed along the other diagonal    8 turned anticlockwise
//! ```

use super::picture::{Picture, PictureSize, n_bytes};

/// The tag of the orientation, and the type of its value: a 16-bit number.
const TAG: u16 = 274;
const SHORT: u16 = 3;
/// Bytes of an entry: tag u16, type u16, count u32, value.
const ENTRY: usize = 12;

/// The orientation, from 1 to 8, in Exif data, which have the form of a TIFF file; 1 if they are damaged or do not
/// tell.
pub(super) fn of_exif(exif: &[u8]) -> u8 {
    orientation(exif).filter(|value| (1..=8).contains(value)).map_or(1, |value| value as u8)
}

fn orientation(exif: &[u8]) -> Option<u16> {
    let is_little = match exif.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes = exif.get(at..)?.first_chunk::<2>()?;
        Some(if is_little { u16::from_le_bytes(*bytes) } else { u16::from_be_bytes(*bytes) })
    };
    let first = exif.get(4..)?.first_chunk::<4>()?;
    let first = if is_little { u32::from_le_bytes(*first) } else { u32::from_be_bytes(*first) };
    let first = first as usize;
    let n_entries = usize::from(u16_at(first)?);
    let mut entries = (0..n_entries).map(|n| first.saturating_add(2 + n * ENTRY));
    let entry = entries.find(|&at| u16_at(at) == Some(TAG))?;
    let is_number = u16_at(entry.saturating_add(2))? == SHORT;
    u16_at(entry.saturating_add(8)).filter(|_| is_number)
}

/// The picture as it is to be seen.
pub(super) fn applied(picture: Picture, orientation: u8) -> Picture {
    if !(2..=8).contains(&orientation) {
        return picture;
    }
    let PictureSize { height, width, channels } = picture.size;
    let is_turned = orientation >= 5;
    let size = if is_turned {
        PictureSize { height: width, width: height, channels }
    } else {
        picture.size
    };
    // Where the pixel of a row and column comes from.
    let (bottom, right) = (height - 1, width - 1);
    let source = |row: usize, column: usize| match orientation {
        2 => (row, right - column),
        3 => (bottom - row, right - column),
        4 => (bottom - row, column),
        5 => (column, row),
        6 => (bottom - column, row),
        7 => (bottom - column, right - row),
        _ => (column, right - row),
    };
    let mut pixels = Vec::with_capacity(n_bytes(size));
    for row in 0..size.height {
        for column in 0..size.width {
            let (from_row, from_column) = source(row, column);
            let at = (from_row * width + from_column) * channels;
            pixels.extend_from_slice(&picture.pixels[at..at + channels]);
        }
    }
    Picture::new(size, pixels)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Exif data with an orientation, after another entry.
    pub(in crate::data::images) fn exif(is_little: bool, orientation: u16) -> Vec<u8> {
        let u16s = |value: u16| {
            if is_little { value.to_le_bytes() } else { value.to_be_bytes() }
        };
        let u32s = |value: u32| {
            if is_little { value.to_le_bytes() } else { value.to_be_bytes() }
        };
        let mut bytes = if is_little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        bytes.extend(u32s(8));
        bytes.extend(u16s(2));
        for (tag, value) in [(256, 17), (TAG, orientation)] {
            bytes.extend([u16s(tag), u16s(SHORT)].concat());
            bytes.extend(u32s(1));
            bytes.extend([u16s(value), u16s(0)].concat());
        }
        bytes.extend(u32s(0));
        bytes
    }

    #[test]
    fn the_orientation_is_read_in_both_byte_orders_and_damaged_data_have_none() {
        for is_little in [true, false] {
            for value in 1..=8 {
                assert_eq!(of_exif(&exif(is_little, value)), value as u8);
            }
            let whole = exif(is_little, 6);
            assert_eq!([of_exif(&exif(is_little, 0)), of_exif(&exif(is_little, 9))], [1, 1]);
            for cut in 0..whole.len() - 8 {
                assert_eq!(of_exif(&whole[..cut]), 1, "{cut}");
            }
            let mut far = whole.clone();
            far[4..8].fill(0xFF);
            assert_eq!(of_exif(&far), 1);
        }
    }

    #[test]
    fn pictures_are_turned_as_pillow_turns_them() {
        // Values of Pillow 13.0: ImageOps.exif_transpose of the rows 1 2 3 and 4 5 6.
        let size = PictureSize { height: 2, width: 3, channels: 1 };
        let picture = Picture::new(size, vec![1, 2, 3, 4, 5, 6]);
        let turned = |orientation| {
            let Picture { size, pixels } = applied(picture.clone(), orientation);
            (size.height, pixels)
        };
        assert_eq!(turned(1), (2, vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(turned(2), (2, vec![3, 2, 1, 6, 5, 4]));
        assert_eq!(turned(3), (2, vec![6, 5, 4, 3, 2, 1]));
        assert_eq!(turned(4), (2, vec![4, 5, 6, 1, 2, 3]));
        assert_eq!(turned(5), (3, vec![1, 4, 2, 5, 3, 6]));
        assert_eq!(turned(6), (3, vec![4, 1, 5, 2, 6, 3]));
        assert_eq!(turned(7), (3, vec![6, 3, 5, 2, 4, 1]));
        assert_eq!(turned(8), (3, vec![3, 6, 2, 5, 1, 4]));
        let colour =
            Picture::new(PictureSize { height: 1, width: 2, channels: 3 }, vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(applied(colour, 2).pixels, [4, 5, 6, 1, 2, 3]);
    }
}
