//! The losses beside the values of their formulas in `tests/golden/text_tasks`, which agree with sentence-transformers to
//! 10⁻⁹.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use serde_json::Value;
use tealight_model::Choice as _;

use super::*;

/// Relative, of a loss; and of a gradient, to its largest element. In f32 the formulas differ by up to 9·10⁻⁷.
const TOLERANCE: f64 = 3e-6;

/// A recorded case.
struct Case<'a> {
    name: &'a str,
    expected: &'a Value,
    tensors: &'a BTreeMap<String, Tensor>,
}

impl Case<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor> {
        let tensor = self.tensors.get(&format!("{}/{name}", self.name))?;
        Some(tensor.to_dtype(DType::F32).unwrap())
    }

    fn has(&self, name: &str) -> bool {
        self.name.contains(name)
    }

    /// The loss that the name of the case says.
    fn config(&self) -> LossConfig {
        let scale =
            [("scale_100", 100.), ("scale_1", 1.)].into_iter().find(|(name, _)| self.has(name));
        let scale = scale.map_or(20., |(_, scale)| scale);
        match self.name.trim_start_matches("matryoshka_").split('_').next().unwrap() {
            "mnrl" | "zero" => LossConfig::MultipleNegatives(multiple_negatives::Config {
                scale,
                symmetric: self.has("symmetric"),
            }),
            "triplet" if self.has("cosine") => LossConfig::Triplet(triplet::Config {
                distance: triplet::Distance::Cosine,
                margin: 0.5,
            }),
            "online" => LossConfig::of_kind("online_contrastive").unwrap(),
            "margin" => LossConfig::of_kind("margin_mse").unwrap(),
            kind => LossConfig::of_kind(kind).unwrap(),
        }
    }

    fn matryoshka(&self) -> MatryoshkaConfig {
        let list = |key: &str| self.expected[key].as_array().cloned().unwrap_or_default();
        MatryoshkaConfig {
            dims: list("dims").iter().map(|dim| dim.as_u64().unwrap() as usize).collect(),
            weights: list("weights").iter().map(|weight| weight.as_f64().unwrap()).collect(),
        }
    }

    fn targets(&self, n: usize) -> Targets {
        let labels = self.tensor("y").or_else(|| self.tensor("b"));
        let mut positives: Vec<u32> = (0..n as u32).collect();
        // The masked candidate of a row has the text of its positive.
        if let Some(mask) = self.tensor("mask") {
            for (row, flags) in mask.to_vec2::<f32>().unwrap().iter().enumerate() {
                for (at, _) in flags.iter().enumerate().filter(|(_, flag)| **flag != 0.) {
                    positives[at.max(row)] = positives[at.min(row)];
                }
            }
        }
        Targets {
            labels: labels.map(|labels| labels.to_vec1().unwrap()).unwrap_or_default(),
            anchors: (1000..1000 + n as u32).collect(),
            groups: vec![None; n],
            positives,
            negatives: (100..100 + 2 * n as u32).collect(),
            masks_duplicates: self.has("masked"),
        }
    }

    fn check(&self) {
        let input = |name| self.tensor(name).map(|tensor| Var::from_tensor(&tensor).unwrap());
        let (a, p, negatives) =
            (input("a").unwrap(), input("p").unwrap(), [input("n"), input("n2")]);
        let all: Vec<&Tensor> = negatives.iter().flatten().map(Var::as_tensor).collect();
        let sides = Sides {
            anchors: a.as_tensor().clone(),
            positives: p.as_tensor().clone(),
            negatives: (!all.is_empty()).then(|| Tensor::cat(&all, 0).unwrap()),
        };
        let (config, targets) = (self.config(), self.targets(a.dim(0).unwrap()));
        config.settings().validate().unwrap();
        let (sum, count) = self.matryoshka().loss(config.settings(), &sides, &targets).unwrap();
        let loss = f64::from(sum.to_scalar::<f32>().unwrap()) / count;
        let expected = self.expected["loss"].as_f64().unwrap();
        assert!(
            (loss - expected).abs() <= TOLERANCE * expected.abs().max(1.),
            "{}: {loss} {expected}",
            self.name
        );
        let named = [
            ("a", Some(&a)),
            ("p", Some(&p)),
            ("n", negatives[0].as_ref()),
            ("n2", negatives[1].as_ref()),
        ];
        let named: Vec<(&str, &Tensor)> =
            named.into_iter().filter_map(|(name, var)| Some((name, var?.as_tensor()))).collect();
        let gradients =
            tealight_ops::backward_scaled(&sum, 1. / count, named.iter().copied()).unwrap();
        for (name, gradient) in gradients.iter() {
            // A vector of zeros has a gradient of 10¹² times the others.
            if self.name == "zero_vector" {
                continue;
            }
            let expected = self.tensor(&format!("grad_{name}")).unwrap();
            let largest = expected.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            let difference = match gradient {
                Some(gradient) => (gradient - &expected).unwrap().abs().unwrap().max_all().unwrap(),
                None => expected.abs().unwrap().max_all().unwrap(),
            };
            let difference = f64::from(difference.to_scalar::<f32>().unwrap());
            let allowed = TOLERANCE * f64::from(largest).max(1e-3);
            assert!(
                difference <= allowed,
                "{}: the gradient of {name} is off by {difference} of {largest}",
                self.name
            );
        }
    }
}

#[test]
fn losses_and_gradients_are_those_of_the_record() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/text_tasks");
    let text = std::fs::read_to_string(folder.join("embedding_losses.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    let tensors = folder.join("embedding_losses.safetensors");
    let tensors = candle_core::safetensors::load(tensors, &Device::Cpu).unwrap();
    let tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
    assert!(expected.len() >= 20);
    for (name, expected) in &expected {
        Case { name, expected, tensors: &tensors }.check();
    }
}

#[test]
fn a_loss_of_margins_is_that_of_its_formula() {
    let tensor = |values: [[f32; 2]; 2]| Tensor::new(&values, &Device::Cpu).unwrap();
    let sides = Sides {
        anchors: tensor([[1., 2.], [0., 1.]]),
        positives: tensor([[3., 0.], [1., 1.]]),
        negatives: Some(tensor([[1., 1.], [5., 0.]])),
    };
    let targets = Targets { labels: vec![2., 0.5], ..Targets::default() };
    let config = LossConfig::of_kind("margin_mse").unwrap();
    let (sum, count) = config.settings().loss(&sides, &targets).unwrap();
    // (3 − 3 − 2)² + (1 − 0 − 0.5)²
    assert_eq!((sum.to_scalar::<f32>().unwrap(), count), (4.25, 2.));
}
