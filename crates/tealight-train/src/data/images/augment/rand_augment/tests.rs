use tealight_ops::rng::Purpose;

use super::*;
use crate::data::images::picture::{PictureSize, n_bytes};

const SIZE: PictureSize = PictureSize { height: 7, width: 11, channels: 3 };

/// A picture of random bytes.
fn noise(size: PictureSize) -> Picture {
    let stream = Stream::new(17, Purpose::Data);
    let byte = |at: usize| stream.below(at as u64, 256) as u8;
    Picture::new(size, (0..n_bytes(size)).map(byte).collect())
}

fn grey(height: usize, width: usize, pixels: &[u8]) -> Picture {
    Picture::new(PictureSize { height, width, channels: 1 }, pixels.to_vec())
}

#[test]
fn zero_strength_changes_nothing() {
    let before = [noise(SIZE), noise(PictureSize { channels: 1, ..SIZE })];
    for operation in Operation::ALL {
        if [Operation::AutoContrast, Operation::Equalize].contains(&operation) {
            continue;
        }
        for (picture, sign) in before.iter().zip([1., -1.]) {
            assert_eq!(operation.apply(picture.clone(), 0., sign), *picture, "{operation:?}");
        }
    }
}

#[test]
fn full_strength_changes_a_picture_in_colour() {
    let before = noise(SIZE);
    for operation in Operation::ALL {
        let changes = operation.apply(before.clone(), 1., -1.) != before;
        assert!(
            changes || operation == Operation::Identity || operation == Operation::Equalize,
            "{operation:?}"
        );
    }
}

#[test]
fn shifts_move_whole_pixels() {
    let picture = grey(2, 10, &(1..=20).collect::<Vec<u8>>());
    // .45 · 10 · 2/3 = 3 to the right.
    let right = Operation::TranslateX.apply(picture.clone(), 2. / 3., 1.);
    assert_eq!(right.pixels[..10], [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
    let left = Operation::TranslateX.apply(picture.clone(), 2. / 3., -1.);
    assert_eq!(left.pixels[10..], [14, 15, 16, 17, 18, 19, 20, 0, 0, 0]);
    let down = Operation::TranslateY.apply(picture, 1., 1.);
    assert_eq!(down.pixels[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_quarter_turn_is_exact() {
    let picture = grey(3, 3, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let turned = Affine::rotation(90.).apply(&picture);
    assert_eq!(turned.pixels, [3, 6, 9, 2, 5, 8, 1, 4, 7]);
    let back = Affine::rotation(-90.).apply(&turned);
    assert_eq!(back, picture);
}

#[test]
fn a_shear_moves_rows_by_their_distance_from_the_middle() {
    let row = [0, 0, 0, 100, 0, 0, 0];
    let picture = grey(3, 7, &[row, row, row].concat());
    let sheared = Affine::shear_x(1.).apply(&picture);
    let expected = [[0, 0, 0, 0, 100, 0, 0], row, [0, 0, 100, 0, 0, 0, 0]].concat();
    assert_eq!(sheared.pixels, expected);
    // Half a pixel is the mean of two.
    let half = Affine::shear_x(0.5).apply(&picture);
    assert_eq!(half.pixels[..7], [0, 0, 0, 50, 50, 0, 0]);
}

#[test]
fn tones_are_worked_by_hand() {
    let after = |operation: Operation, pixels: &[u8], m| {
        operation.apply(grey(1, pixels.len(), pixels), m, 1.).pixels
    };
    assert_eq!(after(Operation::AutoContrast, &[50, 100, 150], 0.), [0, 128, 255]);
    assert_eq!(after(Operation::AutoContrast, &[7, 7, 7], 0.), [7, 7, 7]);
    assert_eq!(after(Operation::Solarize, &[0, 127, 128, 255], 0.5), [0, 127, 127, 0]);
    assert_eq!(after(Operation::Posterize, &[0, 15, 16, 255], 1.), [0, 0, 16, 240]);
    // 1 + .9 = 1.9.
    assert_eq!(after(Operation::Brightness, &[0, 100, 200], 1.), [0, 190, 255]);
    assert_eq!(after(Operation::Contrast, &[90, 100, 110], 1.), [81, 100, 119]);
    // 510 bytes, half of them 10, a quarter each 20 and 30: a step is ⌊(510 − 127) / 255⌋ = 1.
    let mut pixels = vec![10; 256];
    pixels.extend([20; 127]);
    pixels.extend([30; 127]);
    let equal = after(Operation::Equalize, &pixels, 0.);
    assert_eq!([equal[0], equal[256], equal[509]], [0, 255, 255]);
    let mut pixels: Vec<u8> = (0..255).flat_map(|tone| [tone / 2; 2]).collect();
    pixels.push(255);
    let equal = after(Operation::Equalize, &pixels, 0.);
    // A step is 2: the tone of n bytes below is (1 + n) / 2.
    assert_eq!([equal[0], equal[4], equal[509], equal[510]], [0, 2, 254, 255]);
}

#[test]
fn a_picture_without_colour_is_its_luma() {
    let size = PictureSize { height: 1, width: 1, channels: 3 };
    let picture = Picture::new(size, vec![200, 100, 50]);
    let mut grey = picture.clone();
    filters::colour(&mut grey, 0.);
    assert_eq!(grey.pixels, [124; 3]);
    let less = Operation::Colour.apply(picture, 1., -1.);
    // 124 + .1 (b − 124), rounded.
    assert_eq!(less.pixels, [132, 122, 117]);
}

#[test]
fn sharpening_leaves_the_edge_and_adds_the_difference_to_the_mean() {
    let mut pixels = [13_u8; 9];
    pixels[4] = 26;
    // The smoothed middle is (8 · 13 + 5 · 26) / 13 = 18.
    let sharp = Operation::Sharpness.apply(grey(3, 3, &pixels), 1., 1.);
    let mut expected = pixels;
    expected[4] = 33; // 18 + 1.9 · 8
    assert_eq!(sharp.pixels, expected);
}

#[test]
fn all_operations_are_drawn() {
    let stream = Stream::new(17, Purpose::Data);
    let picture = noise(SIZE);
    let config = Config { n: 1, magnitude: 9. };
    let all: std::collections::BTreeSet<Vec<u8>> =
        (0..400).map(|index| apply(&config, picture.clone(), stream.fork(index)).pixels).collect();
    // Nine operations have a sign, and five have none; equalising so few pixels changes nothing.
    assert_eq!(all.len(), 9 * 2 + 4);
    let none = Config { n: 0, ..config };
    assert_eq!(apply(&none, picture.clone(), stream), picture);
}
