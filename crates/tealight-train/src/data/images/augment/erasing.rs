//! Random erasing (Zhong et al. 2020, <https://arxiv.org/abs/1708.04896>, algorithm 1).
//!
//! ```text
//! S_e = uniform(.02, .4) S      r_e = uniform(.3, 1 / .3)      H_e = √(S_e r_e)      W_e = √(S_e / r_e)
//! ```
//!
//! The rectangle of that size is drawn again until it fits, here at most 20 times, and filled with random bytes.

use tealight_ops::rng::Stream;

use super::cutmix::Rectangle;
use crate::data::images::picture::{Picture, PictureSize};

/// The smallest and largest share of the picture.
const AREA: [f64; 2] = [0.02, 0.4];
/// The smallest and largest ratio of height to width.
const RATIO: [f64; 2] = [0.3, 1. / 0.3];
const MAX_DRAWS: u64 = 20;

/// Forks of the stream.
const PLACE: u64 = 0;
const NOISE: u64 = 1;

pub(super) fn random(picture: &mut Picture, probability: f64, stream: Stream) {
    if stream.uniform(0) < probability
        && let Some(rectangle) = rectangle(picture.size, stream.fork(PLACE))
    {
        fill(picture, rectangle, stream.fork(NOISE));
    }
}

/// The rectangle that is erased; `None` if none fits.
fn rectangle(size: PictureSize, stream: Stream) -> Option<Rectangle> {
    let between = |index, [least, most]: [f64; 2]| least + stream.uniform(index) * (most - least);
    let (height, width) = (size.height, size.width);
    (0..MAX_DRAWS).find_map(|draw| {
        let area = between(4 * draw, AREA) * (height * width) as f64;
        let ratio = between(4 * draw + 1, RATIO);
        let rows = ((area * ratio).sqrt().round() as usize).max(1);
        let columns = ((area / ratio).sqrt().round() as usize).max(1);
        let top = (stream.uniform(4 * draw + 2) * height as f64) as usize;
        let left = (stream.uniform(4 * draw + 3) * width as f64) as usize;
        let fits = top + rows <= height && left + columns <= width;
        fits.then_some(Rectangle { top, left, rows, columns })
    })
}

fn fill(picture: &mut Picture, rectangle: Rectangle, stream: Stream) {
    let mut noise = (0..).flat_map(|index| stream.block(index)).flat_map(u32::to_le_bytes);
    for row in rectangle.rows_of(picture.size) {
        for byte in &mut picture.pixels[row] {
            *byte = noise.next().expect("invariant: noise does not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use tealight_ops::rng::Purpose;

    use super::*;
    use crate::data::images::picture::n_bytes;

    const SIZE: PictureSize = PictureSize { height: 17, width: 23, channels: 3 };

    #[test]
    fn one_rectangle_becomes_noise_and_the_rest_stays() {
        let stream = Stream::new(17, Purpose::Data);
        let mut share = 0.;
        for index in 0..200 {
            let stream = stream.fork(index);
            let mut picture = Picture::new(SIZE, vec![7; n_bytes(SIZE)]);
            random(&mut picture, 1., stream);
            let rectangle = rectangle(SIZE, stream.fork(PLACE)).unwrap();
            let inside: Vec<usize> = rectangle.rows_of(SIZE).flatten().collect();
            let changed = |at: usize| picture.pixels[at] != 7;
            assert!((0..n_bytes(SIZE)).all(|at| inside.contains(&at) || !changed(at)));
            let n_changed = inside.iter().filter(|&&at| changed(at)).count();
            assert!(n_changed as f64 > 0.9 * inside.len() as f64);
            share += inside.len() as f64 / n_bytes(SIZE) as f64;
        }
        // Uniform in [.02, .4], but large rectangles are more often refused.
        assert!((0.1..0.2).contains(&(share / 200.)), "{share}");
    }

    #[test]
    fn pictures_are_erased_with_the_probability() {
        let stream = Stream::new(17, Purpose::Data);
        let erased = (0..1000).filter(|&index| {
            let mut picture = Picture::new(SIZE, vec![7; n_bytes(SIZE)]);
            random(&mut picture, 0.25, stream.fork(index));
            picture.pixels.iter().any(|&byte| byte != 7)
        });
        let n = erased.count();
        // A standard deviation is 14.
        assert!((200..300).contains(&n), "{n}");
        let mut picture = Picture::new(SIZE, vec![7; n_bytes(SIZE)]);
        random(&mut picture, 0., stream);
        assert_eq!(picture.pixels, vec![7; n_bytes(SIZE)]);
    }
}
