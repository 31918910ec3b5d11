use serde_json::{Value, json};
use tealight_model::patches::PictureSize;

use super::keys::Keys;
use super::write;
use crate::inference::image_classifier::{Preprocessing, Resize};

const SIZE: PictureSize = PictureSize { height: 32, width: 32, channels: 3 };

fn read(value: Value) -> Result<(Preprocessing, Vec<String>), String> {
    let Value::Object(keys) = value else { return Err("is no object".to_owned()) };
    Keys::new(keys).preprocessing(SIZE)
}

fn refusal(value: Value) -> String {
    read(value).unwrap_err()
}

#[test]
fn every_form_of_a_size_is_read() {
    let resize = |value: Value| read(value).unwrap().0.resize;
    for size in [json!(32), json!([32]), json!([32, 32]), json!({ "height": 32, "width": 32 })] {
        assert_eq!(resize(json!({ "size": size })), None, "{size}");
    }
    let crop = json!({ "height": 32, "width": 32 });
    let shorter =
        json!({ "size": { "shortest_edge": 40 }, "do_center_crop": true, "crop_size": crop });
    assert_eq!(resize(shorter), Some(Resize::ShorterSide(40)));
    let old =
        json!({ "feature_extractor_type": "CLIPFeatureExtractor", "size": 40, "crop_size": 32 });
    assert_eq!(resize(old), Some(Resize::ShorterSide(40)));
    let fast =
        json!({ "image_processor_type": "DeiTImageProcessorFast", "size": 36, "crop_size": 32 });
    assert_eq!(resize(fast), Some(Resize::To([36; 2])));
    assert_eq!(resize(json!({ "do_resize": false })), Some(Resize::Never));
}

#[test]
fn rescaling_and_normalisation_become_one_affine_map() {
    let numbers = |value: Value| {
        let (read, _) = read(value).unwrap();
        // The number of the byte 51.
        (0.2 - f64::from(read.mean[0])) / f64::from(read.deviation[0])
    };
    let close = |value: Value, expected: f64| {
        let actual = numbers(value.clone());
        assert!((actual - expected).abs() < 1e-5 * expected.abs().max(1.), "{value} {actual}");
    };
    close(json!({ "size": 32 }), (0.2 - 0.5) / 0.5);
    close(json!({ "size": 32, "image_mean": [0.1, 0., 0.], "image_std": 0.25 }), 0.4);
    close(json!({ "size": 32, "do_normalize": false }), 0.2);
    close(json!({ "size": 32, "do_normalize": false, "do_rescale": false }), 51.);
    close(json!({ "size": 32, "rescale_factor": 0.007_843_137_254_901_96 }), (0.4 - 0.5) / 0.5);
}

#[test]
fn what_is_written_is_read_again() {
    let forms = [
        json!({ "size": 32, "resample": 3 }),
        json!({ "do_resize": false, "image_mean": [0.1, 0.2, 0.3] }),
        json!({ "size": { "shortest_edge": 40 }, "do_center_crop": true, "crop_size": 32 }),
        json!({ "size": [36, 44], "do_center_crop": true, "crop_size": 32 }),
    ];
    for form in forms {
        let (once, notes) = read(form.clone()).unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        let (written, notes) = write(&once);
        assert!(notes.is_empty(), "{notes:?}");
        let (again, notes) = read(Value::Object(written)).unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(once, again, "{form}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_by_key() {
    for (value, part) in [
        (json!({ "size": 24 }), "`size` gives 24 × 24 pixels, and the model reads 32 × 32 pixels"),
        (json!({ "size": { "shortest_edge": 32 } }), "`do_center_crop` is false"),
        (json!({ "size": { "shortest_edge": 32, "longest_edge": 64 } }), "`size` = "),
        (json!({ "size": 32, "do_center_crop": true }), "there is no `crop_size`"),
        (json!({ "size": 32, "resample": 0 }), "`resample` = 0 is not supported"),
        (json!({ "size": 32, "do_pad": true }), "`do_pad` = true"),
        (json!({ "size": 32, "do_rescale": 1 }), "`do_rescale` = 1 must be true or false"),
        (json!({ "size": 32, "rescale_factor": 0 }), "`rescale_factor` = 0"),
        (
            json!({ "size": 32, "image_mean": [0.5] }),
            "`image_mean` must have a number for each of 3",
        ),
        (json!({ "size": 32, "image_std": [1, 0, 1] }), "`image_std` must be positive"),
        (json!({ "size": 0 }), "`size` = 0"),
        (
            json!({ "image_processor_type": "DonutImageProcessor" }),
            "`image_processor_type` = \"Donut",
        ),
    ] {
        let message = refusal(value.clone());
        assert!(message.contains(part), "{value}: {message}");
    }
    let (_, notes) = read(json!({ "size": 32, "crop_margin": 7, "do_pad": null })).unwrap();
    assert_eq!(notes, ["`crop_margin` of the image processor is unknown and ignored"]);
}

#[test]
fn settings_of_what_is_switched_off_are_no_unknown_keys() {
    for form in [
        json!({ "size": 48, "do_resize": false }),
        json!({ "size": 32, "crop_size": 48, "do_center_crop": false }),
    ] {
        assert_eq!(read(form.clone()).unwrap().1, [""; 0], "{form}");
    }
}

#[test]
fn the_image_processor_of_a_processor_with_several_parts_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| {
        std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    let found = || super::read(folder.path(), SIZE);
    assert!(found().unwrap().is_none());
    write("processor_config.json", &json!({ "processor_class": "SomeProcessor" }));
    let message = found().unwrap_err().to_string();
    assert!(message.contains("processor_config.json") && message.contains("no `image_processor`"));
    let part = json!({ "size": 32, "image_mean": [0.1, 0.2, 0.3] });
    write("processor_config.json", &json!({ "image_processor": part }));
    let (preprocessing, notes) = found().unwrap().unwrap();
    assert_eq!((preprocessing.mean, notes), (vec![0.1, 0.2, 0.3], Vec::new()));
    write("preprocessor_config.json", &json!({ "size": 32, "image_mean": 0.5 }));
    assert_eq!(found().unwrap().unwrap().0.mean, [0.5; 3]);
}
