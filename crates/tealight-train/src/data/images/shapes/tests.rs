use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::*;
use crate::data::images::decode::decode;
use crate::data::images::encode;

fn shapes(config: &Config) -> Shapes {
    Shapes::new(config, 17).unwrap()
}

/// P(picture, class) by its definition: a product over pixels for every size and position.
fn joint(shapes: &Shapes, rows: &[u64], class: usize) -> f64 {
    let Config { side, noise, .. } = shapes.config;
    let mut sum = 0.;
    for mask in &shapes.masks[class] {
        let n_places = side - mask.size + 1;
        for place in 0..n_places * n_places {
            let (top, left) = (place / n_places, place % n_places);
            let mut product = 1. / (n_places * n_places) as f64;
            for (y, row) in rows.iter().enumerate() {
                for x in 0..side {
                    let shape = y.checked_sub(top).and_then(|y| mask.rows.get(y)).unwrap_or(&0);
                    let is_white = x >= left && shape >> (x - left) & 1 == 1;
                    let is_equal = (row >> x & 1 == 1) == is_white;
                    product *= if is_equal { 1. - noise } else { noise };
                }
            }
            sum += product;
        }
    }
    sum / shapes.masks[class].len() as f64
}

#[test]
fn the_posterior_is_the_sum_over_sizes_and_positions() {
    let config =
        Config { n_classes: 5, side: 11, smallest: 5, largest: 7, noise: 0.2, ..Config::default() };
    let shapes = shapes(&config);
    for index in 0..7 {
        let (rows, _) = shapes.draw(Split::Validation, index);
        let joint: Vec<f64> = (0..5).map(|class| joint(&shapes, &rows, class)).collect();
        let total: f64 = joint.iter().sum();
        for (posterior, joint) in shapes.posterior(&rows).into_iter().zip(joint) {
            assert!((posterior - joint / total).abs() < 1e-12, "{posterior}, {joint}");
        }
    }
}

#[test]
fn the_posterior_is_calibrated() {
    let shapes = shapes(&Config { noise: 0.2, ..Config::default() });
    let (n, mut expected, mut right) = (2000, 0., 0.);
    for index in 0..n {
        let (rows, class) = shapes.draw(Split::Validation, index);
        let posterior = shapes.posterior(&rows);
        let best = (0..8).max_by(|&a, &b| posterior[a].total_cmp(&posterior[b])).unwrap();
        expected += posterior[best];
        right += f64::from(u8::from(best == class));
    }
    // A standard deviation of the mean is below .011.
    let difference = (expected - right) / n as f64;
    assert!(difference.abs() < 0.03, "{difference}");
}

#[test]
fn noise_flips_its_share_of_the_pixels() {
    let config = Config { noise: 0.1, ..Config::default() };
    let (noisy, clean) = (shapes(&config), shapes(&Config { noise: 1e-9, ..config.clone() }));
    let flipped: u32 = (0..200)
        .map(|index| {
            let (rows, clean) =
                (noisy.draw(Split::Train, index).0, clean.draw(Split::Train, index).0);
            rows.iter().zip(clean).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
        })
        .sum();
    let share = f64::from(flipped) / (200. * 256.);
    assert!((share - 0.1).abs() < 0.01, "{share}");
    let splits = [Split::Train, Split::Validation].map(|split| noisy.draw(split, 3));
    assert_ne!(splits[0].0, splits[1].0);
}

#[test]
fn shapes_differ_at_every_size() {
    for size in 5..=16 {
        let masks: Vec<_> = (0..NAMES.len()).map(|class| Mask::new(class, size)).collect();
        for (i, one) in masks.iter().enumerate() {
            assert!(one.area >= 5, "{}", NAMES[i]);
            assert!(masks[..i].iter().all(|other| other.rows != one.rows), "{} {size}", NAMES[i]);
        }
    }
}

#[test]
fn settings_out_of_range_are_named() {
    let message = |config: Config| config.validate().unwrap_err().to_string();
    let of = Config::default;
    assert!(message(Config { n_classes: 9, ..of() }).starts_with("`task.data.n_classes` = 9"));
    assert!(message(Config { largest: 17, ..of() }).starts_with("`task.data.largest` = 17"));
    assert!(message(Config { smallest: 12, ..of() }).starts_with("`task.data.largest` = 11"));
    assert!(message(Config { noise: 0.5, ..of() }).starts_with("`task.data.noise` = 0.5"));
    assert!(message(Config { n_train: 0, ..of() }).starts_with("`task.data.n_train` = 0"));
}

/// The pictures of `data/pictures`: twenty of each of three classes, by path.
fn shipped() -> BTreeMap<PathBuf, Picture> {
    let config = Config { smallest: 10, largest: 13, noise: 0.03, ..Config::default() };
    let shapes = Shapes::new(&config, 11).unwrap();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/pictures");
    let drawn: Vec<_> = (0..400).map(|index| shapes.picture(Split::Train, index)).collect();
    let of = |class: usize| drawn.iter().filter(move |(_, other)| *other == class).take(20);
    let classes =
        ["cross", "ring", "triangle"].map(|name| (name, NAMES.iter().position(|&n| n == name)));
    let named = classes.into_iter().flat_map(|(name, class)| {
        let folder = root.join(name);
        of(class.unwrap()).zip(1..).map(move |((picture, _), number)| {
            (folder.join(format!("{number:02}.png")), picture.clone())
        })
    });
    named.collect()
}

#[test]
fn the_pictures_of_the_repository_are_drawn_by_this_generator() {
    let shipped = shipped();
    assert_eq!(shipped.len(), 60);
    for (path, picture) in shipped {
        assert_eq!(decode(&fs::read(&path).unwrap()).unwrap(), picture, "{}", path.display());
    }
}

/// `cargo test -p tealight-train --lib writes_the_pictures -- --ignored`
#[test]
#[ignore = "writes data/pictures"]
fn writes_the_pictures_of_the_repository() {
    for (path, picture) in shipped() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, encode(&picture)).unwrap();
    }
}
