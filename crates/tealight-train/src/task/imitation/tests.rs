//! The losses beside the values and gradients of their formulas in `tests/golden/text_tasks`.

use std::path::Path;

use candle_core::safetensors::load;
use candle_core::{DType, Device, Tensor, Var};
use serde_json::Value;

use super::*;
use crate::task::classify;

/// Relative, of a loss; and of a gradient, to its largest element. In f32 the formulas differ by up to 3·10⁻⁷.
const TOLERANCE: f64 = 2e-6;

fn teacher(name: &str) -> TeacherConfig {
    let mut config = TeacherConfig { model: "runs/a".into(), weight: 1., ..Default::default() };
    if name.contains("alpha_0.7") {
        config.weight = 0.7;
    }
    config.loss = match name {
        "logits_mse" => LossConfig::LogitsMse(logits_mse::Config {}),
        "embedding_mse" => LossConfig::Embeddings(embeddings::Config::default()),
        "embedding_cosine" => {
            LossConfig::Embeddings(embeddings::Config { distance: embeddings::Distance::Cosine })
        }
        _ => {
            let temperature = name.trim_start_matches(|c: char| !c.is_ascii_digit());
            let temperature = temperature.chars().next().unwrap().to_digit(10).unwrap();
            LossConfig::Logits(logits::Config { temperature: f64::from(temperature) })
        }
    };
    config
}

#[test]
fn losses_and_their_gradients_are_those_of_the_record() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/text_tasks");
    let record = std::fs::read_to_string(folder.join("distillation.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let tensors = load(folder.join("distillation.safetensors"), &Device::Cpu).unwrap();
    for name in [
        "kl_T1",
        "kl_T2",
        "kl_T4",
        "kl_T2_alpha_0.7",
        "kl_tokens_T2",
        "logits_mse",
        "embedding_mse",
        "embedding_cosine",
    ] {
        let tensor = |of: &str| tensors.get(&format!("{name}/{of}"));
        let f32s = |of: &str| tensor(of).map(|x| x.to_dtype(DType::F32).unwrap());
        let student = Var::from_tensor(&f32s("s").unwrap()).unwrap();
        let rows = |x: &Tensor| {
            let x = x.flatten_to(x.rank() - 2).unwrap();
            let Some(mask) = f32s("m") else { return x };
            let mask = mask.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let chosen = (0_u32..).zip(mask).filter(|(_, keep)| *keep != 0.).map(|(row, _)| row);
            let chosen = Tensor::new(chosen.collect::<Vec<_>>(), &Device::Cpu).unwrap();
            x.index_select(&chosen, 0).unwrap()
        };
        let (outputs, of_teacher) = (rows(&student), rows(&f32s("t").unwrap()));
        let config = teacher(name);
        let imitation = config.loss.settings().loss(&outputs, &of_teacher).unwrap();
        let labels = tensor("y").map(|y| y.to_dtype(DType::I64).unwrap());
        let sum = match &labels {
            Some(y) => tealight_ops::cross_entropy::cross_entropy(&outputs, y, 0.).unwrap(),
            None => imitation.zeros_like().unwrap(),
        };
        let n = outputs.dim(0).unwrap() as f64;
        let loss = (config.blend(&sum, &imitation, n).unwrap() / n).unwrap();
        let (found, expected) =
            (f64::from(loss.to_scalar::<f32>().unwrap()), record[name]["loss"].as_f64().unwrap());
        assert!((found - expected).abs() < TOLERANCE * expected, "{name}: {found}, {expected}");
        let gradients = tealight_ops::backward(&loss, [("s", student.as_tensor())]).unwrap();
        let found = gradients.at(0).unwrap().to_dtype(DType::F64).unwrap();
        let expected = tensor("grad_s").unwrap();
        let largest = |x: Tensor| -> f64 {
            x.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
        };
        let (off, size) = (largest((&found - expected).unwrap()), largest(expected.clone()));
        assert!(off < TOLERANCE * size, "{name}: the gradient is off by {off} of {size}");
    }
}

#[test]
fn a_loss_that_the_task_has_no_outputs_for_is_refused() {
    let of_classes = TaskConfig::Classify(classify::Config::default());
    teacher("kl_T2").validate(&of_classes).unwrap();
    let error = teacher("embedding_mse").validate(&of_classes).unwrap_err().to_string();
    assert!(
        error.contains(
            "compares vectors of texts, and models with `task.kind` = \"classify\" have logits"
        ),
        "{error}"
    );
    for weight in [0., 1.5, f64::NAN] {
        let error = TeacherConfig { weight, ..teacher("kl_T2") }.validate(&of_classes).unwrap_err();
        assert!(error.to_string().contains("`teacher.weight`"), "{error}");
    }
}
