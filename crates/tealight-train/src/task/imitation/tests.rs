//! The losses beside the values and gradients of their formulas in `tests/golden/text_tasks`.

use std::collections::BTreeMap;
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

/// Tensors of a record.
struct Recorded {
    outputs: Vec<Tensor>,
    heads: Option<Heads>,
}

impl Compared for Recorded {
    fn outputs(&self) -> Result<[Tensor; 2]> {
        Ok([self.outputs[0].clone(), self.outputs[1].clone()])
    }

    fn heads(&self, _layer: Option<usize>) -> Result<Vec<Heads>> {
        Ok(self.heads.iter().cloned().collect())
    }
}

/// The losses with their inputs and gradients.
fn record() -> (Value, BTreeMap<String, Tensor>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/text_tasks");
    let record = std::fs::read_to_string(folder.join("distillation.json")).unwrap();
    let tensors = load(folder.join("distillation.safetensors"), &Device::Cpu).unwrap();
    (serde_json::from_str(&record).unwrap(), tensors.into_iter().collect())
}

fn largest(x: &Tensor) -> f64 {
    x.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
}

/// The heads of the record are `(batch, heads, len, head_dim)`; those of the second version `(batch, len, width)`.
#[test]
fn relations_and_their_gradients_are_those_of_the_record() {
    use relations::Relation::{Attention, Keys, Queries, Values};
    let (record, tensors) = record();
    for (name, relations, n_heads, inputs) in [
        ("minilm_attention", vec![Attention], None, "qk"),
        ("minilm_values", vec![Values], None, "v"),
        ("minilm_v2", vec![Queries, Keys, Values], Some(3), "qkv"),
    ] {
        let tensor = |of: &str| tensors.get(&format!("{name}/{of}"));
        let heads_last = |x: &Tensor| match x.rank() {
            4 => x.transpose(1, 2).unwrap().contiguous().unwrap(),
            _ => x.unsqueeze(2).unwrap(),
        };
        let var = |of: char| {
            let x = tensor(&of.to_string()).unwrap().to_dtype(DType::F32).unwrap();
            (of, Var::from_tensor(&x).unwrap())
        };
        let own: Vec<(char, Var)> = inputs.chars().map(var).collect();
        // What a relation does not read is anything.
        let own_of = |of: char| {
            let found = own.iter().find(|(name, _)| *name == of).unwrap_or(&own[0]);
            heads_last(&found.1)
        };
        let of_teacher = |of: char| {
            let given = tensor(&format!("{of}t"))
                .or_else(|| tensor(&format!("{}t", inputs.chars().next()?)));
            heads_last(&given.unwrap().to_dtype(DType::F32).unwrap())
        };
        let padding = (1. - tensor("mask").unwrap().to_dtype(DType::F64).unwrap()).unwrap();
        let mask =
            Mask::none().with_key_padding_mask(&padding.to_dtype(DType::U8).unwrap()).unwrap();
        let heads = Heads {
            own: ['q', 'k', 'v'].map(own_of),
            of_teacher: ['q', 'k', 'v'].map(of_teacher),
            mask,
        };
        let config = relations::Config { relations, n_heads, layer: None };
        let compared = Recorded { outputs: Vec::new(), heads: Some(heads) };
        let loss = config.loss(&compared).unwrap();
        let (found, expected) =
            (f64::from(loss.to_scalar::<f32>().unwrap()), record[name]["loss"].as_f64().unwrap());
        assert!((found - expected).abs() < TOLERANCE * expected, "{name}: {found}, {expected}");
        let leaves: Vec<(String, &Tensor)> =
            own.iter().map(|(of, var)| (of.to_string(), var.as_tensor())).collect();
        let named = leaves.iter().map(|(of, leaf)| (of.as_str(), *leaf));
        let gradients = tealight_ops::backward(&loss, named).unwrap();
        for (at, (of, _)) in leaves.iter().enumerate() {
            let expected = tensor(&format!("grad_{of}")).unwrap();
            let found = gradients.at(at).unwrap().to_dtype(DType::F64).unwrap();
            let (off, size) = (largest(&(&found - expected).unwrap()), largest(expected));
            assert!(
                off < TOLERANCE * size,
                "{name}: the gradient of {of} is off by {off} of {size}"
            );
        }
    }
}

/// Tokens of another document in the row are related to nothing, as padding is.
#[test]
fn relations_stay_within_documents() {
    let vectors = |seed: f32, len: usize| {
        let numbers = (0..len * 6).map(|n| (n as f32 * 1.7 + seed).sin()).collect();
        Tensor::from_vec(numbers, (1, len, 2, 3), &Device::Cpu).unwrap()
    };
    let all = |seed: f32| [0., 1., 2.].map(|of| vectors(seed + of, 5));
    let loss = |from: usize, len: usize, mask: Mask| {
        let cut = |all: [Tensor; 3]| all.map(|x| x.narrow(1, from, len).unwrap());
        let heads = Heads { own: cut(all(0.)), of_teacher: cut(all(5.)), mask };
        let compared = Recorded { outputs: Vec::new(), heads: Some(heads) };
        let loss = relations::Config::default().loss(&compared).unwrap();
        loss.to_scalar::<f32>().unwrap()
    };
    let segments = Tensor::new(&[[0_u32, 0, 1, 1, 1]], &Device::Cpu).unwrap();
    let packed = loss(0, 5, Mask::none().with_segments(&segments).unwrap());
    let apart = (2. * loss(0, 2, Mask::none()) + 3. * loss(2, 3, Mask::none())) / 5.;
    assert!((packed - apart).abs() < 1e-6, "{packed} {apart}");
    assert!((packed - loss(0, 5, Mask::none())).abs() > 1e-3);
}

#[test]
fn relations_that_cannot_be_compared_are_refused() {
    let refused =
        |config: relations::Config, weight| config.validate(weight).unwrap_err().to_string();
    let of = relations::Config::default;
    let twice = vec![relations::Relation::Keys; 2];
    assert!(
        refused(relations::Config { relations: twice, ..of() }, 0.5).contains("a relation twice")
    );
    assert!(refused(relations::Config { relations: Vec::new(), ..of() }, 0.5).contains("is empty"));
    assert!(refused(relations::Config { n_heads: Some(0), ..of() }, 0.5).contains("positive"));
    assert!(refused(of(), 1.).contains("give the labels a share"));
    let vectors = |n_heads: usize| {
        [0; 3].map(|_| Tensor::ones((1, 2, n_heads, 6), DType::F32, &Device::Cpu).unwrap())
    };
    let heads = Heads { own: vectors(2), of_teacher: vectors(3), mask: Mask::none() };
    let compared = Recorded { outputs: Vec::new(), heads: Some(heads) };
    let fault =
        |n_heads| relations::Config { n_heads, ..of() }.loss(&compared).unwrap_err().to_string();
    assert!(fault(None).contains("compares 2 heads of the model with 3"), "{}", fault(None));
    assert!(
        fault(Some(9)).contains("= 9 does not divide vectors of 12 numbers"),
        "{}",
        fault(Some(9))
    );
    assert!(relations::Config { n_heads: Some(6), ..of() }.loss(&compared).is_ok());
}

#[test]
fn losses_and_their_gradients_are_those_of_the_record() {
    let (record, tensors) = record();
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
        let compared = Recorded { outputs: vec![outputs.clone(), of_teacher], heads: None };
        let imitation = config.loss.settings().loss(&compared).unwrap();
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
        let (off, size) = (largest(&(&found - expected).unwrap()), largest(expected));
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
