//! Operations on the tones of a picture: each byte is looked up in a table.
//!
//! ```text
//! auto_contrast   255 (b − least) / (largest − least)                                     per channel
//! equalize        ⌊(s / 2 + #{bytes below b}) / s⌋,   s = ⌊(n − #{largest bytes}) / 255⌋   per channel
//! solarize        b below the threshold, 255 − b from it on
//! posterize       the highest bits of b
//! ```

use std::array::from_fn;

use crate::data::images::picture::Picture;

pub(super) fn auto_contrast(picture: &mut Picture) {
    by_channel(picture, |counts| {
        let least = counts.iter().position(|&n| n > 0).unwrap_or(0);
        let largest = counts.iter().rposition(|&n| n > 0).unwrap_or(0);
        if least == largest {
            return from_fn(|byte| byte as u8);
        }
        from_fn(|byte| {
            let above = byte.clamp(least, largest) - least;
            ((255 * above + (largest - least) / 2) / (largest - least)) as u8
        })
    });
}

pub(super) fn equalize(picture: &mut Picture) {
    by_channel(picture, |counts| {
        let n: u32 = counts.iter().sum();
        let n_largest = counts.iter().rev().find(|&&n| n > 0).copied().unwrap_or(0);
        let step = (n - n_largest) / 255;
        if step == 0 {
            return from_fn(|byte| byte as u8);
        }
        let mut below = step / 2;
        from_fn(|byte| {
            let tone = (below / step).min(255) as u8;
            below += counts[byte];
            tone
        })
    });
}

pub(super) fn solarize(picture: &mut Picture, threshold: u16) {
    let table: [u8; 256] =
        from_fn(|byte| if byte < usize::from(threshold) { byte as u8 } else { 255 - byte as u8 });
    look_up(picture, &table);
}

pub(super) fn posterize(picture: &mut Picture, n_bits: u32) {
    let dropped = 8 - n_bits;
    look_up(picture, &from_fn(|byte| ((byte >> dropped) << dropped) as u8));
}

fn look_up(picture: &mut Picture, table: &[u8; 256]) {
    for byte in &mut picture.pixels {
        *byte = table[usize::from(*byte)];
    }
}

/// Looks each channel up in the table that its histogram gives.
fn by_channel(picture: &mut Picture, table: impl Fn(&[u32; 256]) -> [u8; 256]) {
    let channels = picture.size.channels;
    for channel in 0..channels {
        let mut counts = [0; 256];
        for byte in picture.pixels.iter().skip(channel).step_by(channels) {
            counts[usize::from(*byte)] += 1;
        }
        let table = table(&counts);
        for byte in picture.pixels.iter_mut().skip(channel).step_by(channels) {
            *byte = table[usize::from(*byte)];
        }
    }
}
