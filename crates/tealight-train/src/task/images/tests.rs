use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tealight_model::patches::PatchesConfig;
use tealight_ops::testing::device;

use super::*;
use crate::data::images::shapes;

fn config() -> Config {
    let data = shapes::Config { n_train: 40, n_validation: 11, ..Default::default() };
    Config { data: SourceConfig::Shapes(data), ..Default::default() }
}

fn model_config() -> ModelConfig {
    let patches = Some(PatchesConfig::default());
    ModelConfig { d_model: 12, n_heads: 3, n_layers: 2, patches, ..Default::default() }
}

fn images(config: &Config) -> Images {
    config.build(&TaskContext::new(17, 7, &model_config(), device())).unwrap()
}

fn model(task: &Images) -> ImageClassifier {
    let params = ParamStore::new(17, DType::F32, device());
    task.build_model(&model_config(), &params.trainable()).unwrap();
    task.build_model(&model_config(), &params.without_gradients()).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_device(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn all_augmentations() -> augment::Config {
    augment::Config {
        crop_padding: 2,
        horizontal_flip: true,
        rand_augment: Some(augment::rand_augment::Config::default()),
        erasing: 0.25,
        mixup: 0.8,
        cutmix: 1.,
        ..Default::default()
    }
}

#[test]
fn a_batch_is_a_function_of_its_index() {
    let augmented = Config { augment: all_augmentations(), ..config() };
    for config in [config(), augmented] {
        let (task, again) = (images(&config), images(&config));
        let of = |task: &Images, index| {
            let batch = task.batch(Split::Train, index).unwrap();
            batch.inputs().tensors.into_iter().map(|x| format!("{x}")).collect::<Vec<_>>()
        };
        assert_eq!(of(&task, 9), of(&again, 9));
        assert_ne!(of(&task, 9), of(&task, 8));
    }
}

#[test]
fn an_example_is_changed_anew_in_each_epoch() {
    let config = Config { augment: all_augmentations(), ..config() };
    // Forty pictures in batches of forty: batch 1 is the second epoch.
    let model_config = model_config();
    let context = TaskContext::new(17, 40, &model_config, device());
    let task = config.build(&context).unwrap();
    let sorted = |index| {
        let batch = task.batch(Split::Train, index).unwrap();
        let mut rows: Vec<Vec<u32>> = numbers(&batch.pictures)
            .chunks(256)
            .map(|row| row.iter().map(|number| number.to_bits()).collect())
            .collect();
        rows.sort();
        rows
    };
    let (first, second) = (sorted(0), sorted(1));
    assert!(first.iter().all(|row| second.binary_search(row).is_err()));
}

#[test]
fn the_targets_of_mixed_pictures_sum_to_one() {
    let config = Config { augment: all_augmentations(), label_smoothing: 0.1, ..config() };
    let task = images(&config);
    let batch = task.batch(Split::Train, 3).unwrap();
    let [_, _, targets] = batch.inputs().tensors[..] else { panic!("no targets") };
    assert_eq!(targets.dims(), [7, 8]);
    for row in numbers(targets).chunks(8) {
        assert!((row.iter().sum::<f32>() - 1.).abs() < 1e-6, "{row:?}");
        assert!(row.iter().filter(|&&share| share > 0.).count() <= 2, "{row:?}");
    }
    // Smoothing at the loss: with equal logits, any targets cost ln 8.
    let logits = Tensor::zeros((7, 8), DType::F32, device()).unwrap();
    let sum = batch.loss(&logits, 0.1).unwrap().sum.to_scalar::<f32>().unwrap();
    assert!((sum - 7. * 8_f32.ln()).abs() < 1e-4, "{sum}");
}

#[test]
fn mixing_nothing_gives_the_loss_of_classes() {
    let mixup = augment::Config { mixup: 1e-3, mix_probability: 0.5, ..Default::default() };
    let (plain, mixed) = (images(&config()), images(&Config { augment: mixup, ..config() }));
    let batches = [&plain, &mixed].map(|task| task.batch(Split::Train, 3).unwrap());
    let [_, _, targets] = batches[1].inputs().tensors[..] else { panic!("no targets") };
    // Under so small an α, λ is 0 or 1: each target is one class.
    assert!(numbers(targets).iter().all(|&share| share == 0. || share == 1.));
    let logits = Tensor::arange(0_f32, 56., device()).unwrap().reshape((7, 8)).unwrap();
    let logits = (logits / 10.).unwrap();
    for smoothing in [0., 0.1] {
        let losses = batches
            .each_ref()
            .map(|batch| batch.loss(&logits, smoothing).unwrap().sum.to_scalar::<f32>().unwrap());
        let own: Vec<f32> = numbers(targets)
            .chunks(8)
            .map(|row| row.iter().position(|&share| share == 1.).unwrap() as f32)
            .collect();
        let classes = Tensor::new(own, device()).unwrap().to_dtype(DType::U32).unwrap();
        let expected =
            tealight_ops::cross_entropy::cross_entropy(&logits, &classes, smoothing).unwrap();
        let expected = expected.to_scalar::<f32>().unwrap();
        assert!((losses[1] - expected).abs() < 1e-4, "{losses:?}, {expected}");
    }
}

#[test]
fn training_pictures_are_normalised() {
    let model_config = model_config();
    let context = TaskContext::new(17, 40, &model_config, device());
    let task = config().build(&context).unwrap();
    let all = numbers(&task.batch(Split::Train, 0).unwrap().pictures);
    let mean = all.iter().sum::<f32>() / all.len() as f32;
    let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / all.len() as f32;
    assert!(mean.abs() < 1e-4 && (variance - 1.).abs() < 1e-3, "{mean} {variance}");
    let given = Config { mean: Some(vec![0.]), deviation: Some(vec![0.5]), ..config() };
    let all = numbers(&images(&given).batch(Split::Validation, 0).unwrap().pictures);
    assert!(all.iter().all(|&x| x == 0. || x == 2.));
    let wrong = Config { mean: Some(vec![0.; 3]), ..config() };
    let error = wrong.build(&context).unwrap_err().to_string();
    assert_eq!(error, "`task.mean` has 3 numbers, and the pictures have 1 channels");
}

#[test]
fn a_trained_model_is_used_without_its_data() {
    let task = images(&config());
    let run = tempfile::tempdir().unwrap();
    for (name, bytes) in task.kept_files().unwrap() {
        std::fs::write(run.path().join(name), bytes).unwrap();
    }
    let (labels, preprocessing) =
        (Labels::read(run.path()).unwrap(), Preprocessing::read(run.path()).unwrap());
    assert_eq!((&labels, &preprocessing), (task.labels(), task.preprocessing()));
    let (picture, name, class) = task.held_out(3).unwrap();
    assert_eq!((name, class < 8), ("validation/3", true));
    // From a file, in colour and of another size.
    let path = run.path().join("picture.png");
    std::fs::write(&path, crate::data::images::encode(&picture.clone().converted(Colour::Rgb)))
        .unwrap();
    assert_eq!(preprocessing.open(&path).unwrap(), picture);
    let (model, pixels) = (model(&task), Pixels::new(&preprocessing, device()));
    let alone = PictureClassifier { model: &model, labels: &labels, pixels: &pixels };
    let classified = alone.classify(&[picture.clone(), picture.clone()]).unwrap();
    assert_eq!((classified.len(), classified[0].scores.len()), (2, 8));
    assert_eq!(classified[0], classified[1]);
    let maps = alone.attention_maps(&picture).unwrap();
    assert_eq!((maps.len(), maps[0].queries.len()), (2, 17));
    assert_eq!(maps[0].keys[..3], ["[CLS]", "0,0", "0,1"]);
    assert!(preprocessing.open(Path::new("nowhere.png")).is_err());
}

#[test]
fn pictures_of_another_size_are_refused() {
    let task = images(&config());
    let (picture, ..) = task.held_out(0).unwrap();
    let model = model(&task);
    let refused = task.classifier(&model).tensor(&[picture.converted(Colour::Rgb)]);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("16 × 16 pixels and 3 channels, and the model reads"), "{message}");
}

#[test]
fn the_report_stands_beside_the_limit() {
    let task = images(&config());
    let report = task.report(&model(&task)).unwrap();
    let values = &report.values;
    let of = |name: &str| values[name].as_f64().unwrap();
    let list = |name: &str| values[name].as_array().unwrap();
    assert_eq!(of("n_pictures"), 11.);
    let counts = list("confusion").iter().flat_map(|row| row.as_array().unwrap());
    let n: u64 = counts.map(|n| n.as_u64().unwrap()).sum();
    assert_eq!((n, list("labels").len(), values.get("top_5_accuracy")), (11, 8, None));
    assert!(of("bayes_accuracy") > 0.6 && of("bayes_nll") < 1.);
    assert_eq!(list("mistakes").len(), 11 - (of("accuracy") * 11.).round() as usize);
    let probabilities = list("mistakes").iter().map(|mistake| mistake["probability"].as_f64());
    assert!(probabilities.is_sorted_by(|a, b| a >= b));
    let shown = report.to_string();
    for part in ["Bayes limit", "over 11 pictures held out", "class ╲ predicted", "validation/"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}
