//! Batches of texts with their targets, and the losses.
//!
//! ```text
//! classes      −log softmax(x)_class                        mean over texts
//! labels       −log softmax(0, x_l)_y = −log σ(±x_l)        mean over texts and labels, y = 1 if the text has l
//! regression   (x − y)²                                     mean over texts
//! ```
//!
//! They are those of `…ForSequenceClassification` in `transformers`. In training, classes may have weights or the focal
//! loss ([`super::loss`]).

use candle_core::{D, Device, Tensor};
use tealight_ops::cross_entropy::{cross_entropy, cross_entropy_soft, hits};
use tealight_ops::device::tensor_of;

use super::data::{Item, Target};
use super::loss::{at_least_f32, focal};
use crate::error::Result;
use crate::inference::labels::{Labels, Objective};
use crate::inference::likeliest;
use crate::inference::text_classifier::rows::Rows;
use crate::inference::values;
use crate::task::metrics::Measures;
use crate::task::{Inputs, Loss};

/// A batch of texts with their targets.
#[derive(Debug)]
pub struct Batch {
    pub(super) rows: Rows,
    objective: Objective,
    /// `(batch)` classes or numbers; `(batch · n_labels)` zeros and ones.
    targets: Tensor,
    /// `None`: the cross-entropy without weights.
    asked: Option<Asked>,
}

/// What the training loss asks of the outputs.
#[derive(Debug)]
enum Asked {
    /// `(batch, n_classes)`, or `(batch · n_labels, 2)`: the probabilities that the loss asks for, times weights; and
    /// what the sum over the batch is divided by.
    Soft { targets: Tensor, total: f64 },
    /// `(batch, n_classes)`: the weight of the class of a text, and 0 for all others; 0 for the class, and 1 for
    /// others.
    Focal { targets: Tensor, others: Tensor, gamma: f64 },
}

impl Batch {
    /// Items with the padding of [`Rows::new`].
    pub(super) fn new(
        items: &[Item],
        labels: &Labels,
        width: usize,
        pad: u32,
        device: &Device,
    ) -> Result<Self> {
        let rows: Vec<_> = items.iter().map(|item| &item.tokens).collect();
        let rows = Rows::new(&rows, width, pad, device)?;
        let (mut classes, mut numbers) = (Vec::new(), Vec::new());
        for item in items {
            match &item.target {
                Target::Class(class) => classes.push(*class),
                Target::Labels(has) => classes.extend(has.iter().map(|&has| u32::from(has))),
                Target::Number(number) => numbers.push(*number as f32),
            }
        }
        let objective = labels.objective();
        let targets = if objective == Objective::Regression {
            let n = numbers.len();
            tensor_of(numbers, n, device)?
        } else {
            let n = classes.len();
            tensor_of(classes, n, device)?
        };
        Ok(Self { rows, objective, targets, asked: None })
    }

    /// This batch with the weights of the labels in its loss.
    pub(super) fn weighted(
        mut self,
        items: &[Item],
        by_label: &[f32],
        label_smoothing: f64,
    ) -> Result<Self> {
        let smoothing = label_smoothing as f32;
        let (mut targets, mut total) = (Vec::new(), 0.);
        for item in items {
            match &item.target {
                Target::Class(class) => {
                    let spread = smoothing / by_label.len() as f32;
                    let own = *class as usize;
                    let asked = |c| if c == own { 1. - smoothing + spread } else { spread };
                    targets
                        .extend(by_label.iter().enumerate().map(|(c, weight)| weight * asked(c)));
                    total += f64::from(by_label[own]);
                }
                Target::Labels(has) => {
                    let asked = |has: bool| if has { 1. - smoothing / 2. } else { smoothing / 2. };
                    let both = has.iter().zip(by_label);
                    targets
                        .extend(both.flat_map(|(&has, weight)| [asked(!has), weight * asked(has)]));
                    total += has.len() as f64;
                }
                Target::Number(_) => {}
            }
        }
        let width = if self.objective == Objective::Labels { 2 } else { by_label.len() };
        let shape = (targets.len() / width, width);
        let targets = tensor_of(targets, shape, self.targets.device())?;
        self.asked = Some(Asked::Soft { targets, total });
        Ok(self)
    }

    /// This batch with the focal loss. Its objective is `classes`.
    pub(super) fn focal(mut self, items: &[Item], by_class: &[f32], gamma: f64) -> Result<Self> {
        let device = self.targets.device();
        let of = |value: &dyn Fn(usize, bool) -> f32| -> Result<Tensor> {
            let rows = items.iter().map(|item| item.target.class());
            let values = rows.flat_map(|own| (0..by_class.len()).map(move |c| (c, c == own)));
            let values: Vec<f32> = values.map(|(class, is_own)| value(class, is_own)).collect();
            Ok(tensor_of(values, (items.len(), by_class.len()), device)?)
        };
        let targets = of(&|class, is_own| if is_own { by_class[class] } else { 0. })?;
        let others = of(&|_, is_own| if is_own { 0. } else { 1. })?;
        self.asked = Some(Asked::Focal { targets, others, gamma });
        Ok(self)
    }

    pub(super) fn n_tokens(&self) -> u64 {
        self.rows.n_tokens
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        let Rows { ids, type_ids, mask, .. } = &self.rows;
        let tensors = [ids, &self.targets].into_iter().chain(type_ids).chain(mask.tensors());
        let of_loss = match &self.asked {
            None => vec![],
            Some(Asked::Soft { targets, .. }) => vec![targets],
            Some(Asked::Focal { targets, others, .. }) => vec![targets, others],
        };
        Inputs { tensors: tensors.chain(of_loss).collect(), count: self.count() }
    }

    /// What the summed loss is divided by.
    fn count(&self) -> f64 {
        match self.asked {
            Some(Asked::Soft { total, .. }) => total,
            _ => self.targets.elem_count() as f64,
        }
    }

    /// The loss of `logits (batch, n_classes)`, and the accuracy of classes.
    pub(super) fn loss(&self, logits: &Tensor, label_smoothing: f64) -> Result<Loss> {
        let count = self.count();
        let without_metrics = |sum| Loss { sum, count, metrics: Measures::default() };
        Ok(match self.objective {
            Objective::Classes => {
                let sum = match &self.asked {
                    Some(Asked::Soft { targets, .. }) => cross_entropy_soft(logits, targets)?,
                    Some(Asked::Focal { targets, others, gamma }) => {
                        focal(logits, targets, others, *gamma)?
                    }
                    None => cross_entropy(logits, &self.targets, label_smoothing)?,
                };
                let hits = hits(logits, &self.targets)?;
                let n = self.targets.elem_count();
                Loss { count, ..Loss::with_hits(sum, n, "accuracy", &hits) }
            }
            Objective::Labels => {
                let x = logits.flatten_all()?.unsqueeze(1)?; // (batch · n_labels, 1)
                let both = Tensor::cat(&[&x.zeros_like()?, &x], D::Minus1)?;
                without_metrics(match &self.asked {
                    Some(Asked::Soft { targets, .. }) => cross_entropy_soft(&both, targets)?,
                    _ => cross_entropy(&both, &self.targets, label_smoothing)?,
                })
            }
            Objective::Regression => {
                let x = at_least_f32(&logits.squeeze(1)?)?;
                let off = (&x - self.targets.to_dtype(x.dtype())?)?;
                without_metrics(off.sqr()?.sum_all()?)
            }
        })
    }

    /// The predictions of `logits (batch, n_classes)`, row by row: a class, a 0 or 1 for each label, or a number.
    pub(super) fn predictions(&self, logits: &Tensor) -> Result<Vec<f64>> {
        let rows = values(logits)?;
        Ok(match self.objective {
            Objective::Classes => rows.iter().map(|row| likeliest(row) as f64).collect(),
            Objective::Labels => {
                rows.iter().flatten().map(|&x| if x > 0. { 1. } else { 0. }).collect()
            }
            Objective::Regression => rows.into_iter().flatten().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use tealight_ops::testing::device;

    use super::*;
    use crate::inference::text_classifier::encoder::Tokens;

    fn batch(objective: Objective, targets: &[Target]) -> Batch {
        let labels = Labels::new(objective, vec!["a".to_owned(), "b".to_owned()]);
        Batch::new(&items(targets), &labels, 5, 0, device()).unwrap()
    }

    fn loss(batch: &Batch, logits: &Tensor, smoothing: f64) -> (f64, f64) {
        let Loss { sum, count, .. } = batch.loss(logits, smoothing).unwrap();
        (f64::from(sum.to_scalar::<f32>().unwrap()), count)
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-5 * expected.abs().max(1.), "{value}, {expected}");
    }

    fn items(targets: &[Target]) -> Vec<Item> {
        let tokens = Tokens { ids: vec![1, 2], type_ids: Vec::new() };
        targets
            .iter()
            .map(|target| Item { tokens: tokens.clone(), target: target.clone() })
            .collect()
    }

    /// Values and gradients of PyTorch in f64.
    #[test]
    fn weighted_losses_and_their_gradients_are_those_of_the_record() {
        let text = include_str!("../../../tests/golden/classification.json");
        let record = &serde_json::from_str::<serde_json::Value>(text).unwrap()["losses"];
        for (name, smoothing, gamma) in [
            ("weighted", 0., None),
            ("smoothing_0.1_weighted", 0.1, None),
            ("focal_2", 0., Some(2.)),
            ("focal_0", 0., Some(0.)),
            ("focal_2_alpha", 0., Some(2.)),
            ("bce_pos_weight", 0., None),
        ] {
            let record = &record[name];
            let rows = |key: &str| -> Vec<Vec<f32>> {
                serde_json::from_value(record[key].clone()).unwrap()
            };
            let z = rows("z");
            let weights: Option<Vec<f32>> = serde_json::from_value(record["w"].clone()).unwrap();
            let weights = weights.unwrap_or_else(|| vec![1.; z[0].len()]);
            let (objective, targets): (_, Vec<Target>) = if name == "bce_pos_weight" {
                let has = |row: Vec<f32>| Target::Labels(row.iter().map(|&y| y == 1.).collect());
                (Objective::Labels, rows("y").into_iter().map(has).collect())
            } else {
                let classes: Vec<u32> = serde_json::from_value(record["y"].clone()).unwrap();
                (Objective::Classes, classes.into_iter().map(Target::Class).collect())
            };
            let names = (0..z[0].len()).map(|n| n.to_string()).collect();
            let (labels, all) = (Labels::new(objective, names), items(&targets));
            // A step of two uneven micro-batches, which are added up and divided once.
            let (mut loss, mut count, mut gradient) = (0., 0., Vec::new());
            for part in [0..3, 3..all.len()] {
                let batch = Batch::new(&all[part.clone()], &labels, 0, 0, device()).unwrap();
                let batch = match gamma {
                    Some(gamma) => batch.focal(&all[part.clone()], &weights, gamma),
                    None => batch.weighted(&all[part.clone()], &weights, smoothing),
                };
                let batch = batch.unwrap();
                let logits = candle_core::Var::new(z[part].to_vec(), device()).unwrap();
                let one = batch.loss(&logits, smoothing).unwrap();
                assert_eq!(one.count, batch.inputs().count);
                let gradients = tealight_ops::backward(&one.sum, [("z", logits.as_tensor())]);
                let gradients = gradients.unwrap();
                let of_part = gradients.iter().next().unwrap().1.unwrap();
                gradient.extend(of_part.flatten_all().unwrap().to_vec1::<f32>().unwrap());
                loss += f64::from(one.sum.to_scalar::<f32>().unwrap());
                count += one.count;
            }
            assert_near(loss / count, record["loss"].as_f64().unwrap());
            let expected = rows("grad_z").concat();
            let largest = expected.iter().fold(0_f32, |most, g| most.max(g.abs()));
            for (found, expected) in gradient.iter().zip(&expected) {
                let found = f64::from(*found) / count;
                let difference = (found - f64::from(*expected)).abs();
                assert!(difference < 1e-5 * f64::from(largest), "{name}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn a_certain_text_has_no_focal_loss_and_a_finite_gradient() {
        let all = items(&[Target::Class(0), Target::Class(1)]);
        for gamma in [0., 0.5, 1., 2.] {
            let batch = batch(Objective::Classes, &[Target::Class(0), Target::Class(1)]);
            let batch = batch.focal(&all, &[1., 1.], gamma).unwrap();
            let logits = candle_core::Var::new(&[[200_f32, 0.], [90., -90.]], device()).unwrap();
            let loss = batch.loss(&logits, 0.).unwrap().sum;
            assert_near(loss.to_scalar::<f32>().unwrap().into(), 180.);
            let gradients = tealight_ops::backward(&loss, [("z", logits.as_tensor())]).unwrap();
            let gradient = gradients.iter().next().unwrap().1.unwrap();
            let gradient = gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert!(gradient.iter().all(|g| g.is_finite()), "{gamma}: {gradient:?}");
        }
    }

    #[test]
    fn labels_are_scored_one_by_one_without_overflow() {
        let targets = [[true, false], [false, true], [true, true]];
        let targets = targets.map(|has| Target::Labels(has.into()));
        let batch = batch(Objective::Labels, &targets);
        let x = [[0.5_f32, -1.25], [2., 0.], [-200., 90.]];
        let logits = Tensor::new(&x, device()).unwrap();
        let softplus = |x: f64| x.max(0.) + (-x.abs()).exp().ln_1p();
        // −log σ(x) = softplus(−x) of a label that the text has, softplus(x) of another.
        let expected = [-0.5, -1.25, 2., 0., 200., -90.].map(softplus).iter().sum::<f64>();
        let (sum, count) = loss(&batch, &logits, 0.);
        assert_near(sum, expected);
        assert_eq!((count, batch.inputs().count), (6., 6.));
        // ε = 0.2 gives each value of a label a tenth of the probability of the other.
        let other = [0.5, 1.25, -2., 0., -200., 90.].map(softplus).iter().sum::<f64>();
        assert_near(loss(&batch, &logits, 0.2).0, 0.9 * expected + 0.1 * other);
        assert_eq!(batch.predictions(&logits).unwrap(), [1., 0., 1., 0., 0., 1.]);
    }

    #[test]
    fn numbers_have_squared_errors_and_a_gradient() {
        let targets = [1.5, -2.].map(Target::Number);
        let batch = batch(Objective::Regression, &targets);
        let logits = candle_core::Var::new(&[[1_f32], [0.5]], device()).unwrap();
        let (sum, count) = loss(&batch, &logits, 0.);
        assert_near(sum, 0.25 + 6.25);
        assert_eq!(count, 2.);
        assert_eq!(batch.predictions(&logits).unwrap(), [1., 0.5]);
        let loss = batch.loss(&logits, 0.).unwrap().sum;
        let gradients = tealight_ops::backward(&loss, [("x", logits.as_tensor())]).unwrap();
        let (_, gradient) = gradients.iter().next().unwrap();
        let gradient = gradient.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(gradient, [-1., 5.]);
        // One text alone, and half precision.
        let alone = self::batch(Objective::Regression, &[Target::Number(3.)]);
        let logits = Tensor::new(&[[1_f32]], device()).unwrap().to_dtype(DType::BF16).unwrap();
        assert_eq!(loss_of_half(&alone, &logits), 4.);
    }

    fn loss_of_half(batch: &Batch, logits: &Tensor) -> f32 {
        batch.loss(logits, 0.).unwrap().sum.to_scalar().unwrap()
    }

    #[test]
    fn rows_are_padded_to_the_length_that_the_attention_requires() {
        let batch = batch(Objective::Classes, &[Target::Class(1)]);
        assert_eq!((batch.rows.ids.dims(), batch.n_tokens()), (&[1, 5][..], 2));
        let tokens = Tokens { ids: vec![7, 8, 9], type_ids: vec![0, 1, 1] };
        let short = Tokens { ids: vec![7], type_ids: vec![0] };
        let rows = Rows::new(&[&tokens, &short], 0, 3, device()).unwrap();
        assert_eq!(rows.ids.to_vec2::<u32>().unwrap(), [[7, 8, 9], [7, 3, 3]]);
        let types = rows.type_ids.unwrap().to_vec2::<u32>().unwrap();
        assert_eq!(types, [[0, 1, 1], [0, 0, 0]]);
    }
}
