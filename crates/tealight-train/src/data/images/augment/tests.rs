use super::*;
use crate::data::images::picture::n_bytes;

const SIZE: PictureSize = PictureSize { height: 17, width: 23, channels: 3 };

fn all() -> Config {
    Config {
        horizontal_flip: true,
        crop_padding: 3,
        rand_augment: Some(rand_augment::Config::default()),
        erasing: 0.5,
        mixup: 0.8,
        cutmix: 1.,
        ..Config::default()
    }
}

fn pixels() -> Vec<u8> {
    (0..n_bytes(SIZE)).map(|at| (at * 7) as u8).collect()
}

#[test]
fn nothing_is_changed_by_default() {
    let augmentation = Augmentation::new(&Config::default(), 17);
    for place in 0..20 {
        assert_eq!(augmentation.picture(&pixels(), SIZE, place).pixels, pixels());
        assert_eq!(augmentation.mix(SIZE, place), None);
    }
}

#[test]
fn a_place_decides_the_picture() {
    let augmentation = Augmentation::new(&all(), 17);
    let (again, other) = (Augmentation::new(&all(), 17), Augmentation::new(&all(), 18));
    let of = |augmentation: &Augmentation, place| {
        (augmentation.picture(&pixels(), SIZE, place), augmentation.mix(SIZE, place))
    };
    assert_eq!(of(&augmentation, 3), of(&again, 3));
    assert_ne!(of(&augmentation, 3), of(&augmentation, 4));
    assert_ne!(of(&augmentation, 3), of(&other, 3));
}

#[test]
fn mixup_and_cutmix_take_turns() {
    let augmentation = Augmentation::new(&all(), 17);
    let mixes: Vec<Mix> = (0..1000).filter_map(|place| augmentation.mix(SIZE, place)).collect();
    assert_eq!(mixes.len(), 1000);
    assert!(mixes.iter().all(|mix| (0. ..=1.).contains(&mix.share(SIZE))));
    let n_means = mixes.iter().filter(|mix| matches!(mix, Mix::Mean(_))).count();
    assert!((430..570).contains(&n_means), "{n_means}");
    for (mixup, cutmix, mean) in [(0.8, 0., true), (0., 1., false)] {
        let augmentation = Augmentation::new(&Config { mixup, cutmix, ..all() }, 17);
        let mixes = (0..50).filter_map(|place| augmentation.mix(SIZE, place));
        assert!(mixes.into_iter().all(|mix| matches!(mix, Mix::Mean(_)) == mean));
    }
    let half = Augmentation::new(&Config { mix_probability: 0.5, ..all() }, 17);
    let n = (0..1000).filter(|&place| half.mix(SIZE, place).is_some()).count();
    assert!((430..570).contains(&n), "{n}");
}

#[test]
fn settings_out_of_range_are_named() {
    let message = |config: Config| config.validate().unwrap_err().to_string();
    let of = Config::default;
    let rand_augment = |n, magnitude| Config {
        rand_augment: Some(rand_augment::Config { n, magnitude }),
        ..Config::default()
    };
    let key = "`task.augment.rand_augment";
    assert!(message(rand_augment(0, 9.)).starts_with(&format!("{key}.n` = 0")));
    assert!(message(rand_augment(2, 11.)).starts_with(&format!("{key}.magnitude` = 11")));
    assert!(message(Config { erasing: 1.5, ..of() }).starts_with("`task.augment.erasing` = 1.5"));
    assert!(message(Config { mixup: -1., ..of() }).starts_with("`task.augment.mixup` = -1"));
    assert!(message(Config { cutmix: f64::NAN, ..of() }).starts_with("`task.augment.cutmix`"));
    assert!(all().validate().is_ok());
}
