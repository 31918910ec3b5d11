//! Batches of texts with their targets, and the losses.
//!
//! ```text
//! classes      −log softmax(x)_class                        mean over texts
//! labels       −log softmax(0, x_l)_y = −log σ(±x_l)        mean over texts and labels, y = 1 if the text has l
//! regression   (x − y)²                                     mean over texts
//! ```
//!
//! They are those of `…ForSequenceClassification` in `transformers`.

use candle_core::{D, DType, Device, Tensor};
use tealight_ops::cross_entropy::{cross_entropy, cross_entropy_soft, hits};
use tealight_ops::device::tensor_of;

use super::data::{Item, Target};
use crate::error::Result;
use crate::inference::labels::{Labels, Objective};
use crate::inference::text_classifier::rows::Rows;
use crate::inference::values;
use crate::task::batch::likeliest;
use crate::task::metrics::Measures;
use crate::task::{Inputs, Loss};

/// A batch of texts with their targets.
#[derive(Debug)]
pub struct Batch {
    pub(super) rows: Rows,
    objective: Objective,
    /// `(batch)` classes or numbers; `(batch · n_labels)` zeros and ones.
    targets: Tensor,
    /// `(batch, n_classes)`: the probabilities that the loss asks for, times the weight of the class; `None` if all
    /// classes have the weight 1.
    weighted: Option<Tensor>,
}

/// Class weights and label smoothing of the training loss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights<'a> {
    /// By class.
    pub(super) by_class: &'a [f32],
    pub(super) label_smoothing: f64,
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
        Ok(Self { rows, objective, targets, weighted: None })
    }

    /// This batch with class weights in its loss. Its objective is `classes`.
    pub(super) fn weighted(mut self, items: &[Item], weights: Weights<'_>) -> Result<Self> {
        let Weights { by_class, label_smoothing } = weights;
        let n_classes = by_class.len();
        let spread = (label_smoothing / n_classes as f64) as f32;
        let mut targets = Vec::with_capacity(items.len() * n_classes);
        for class in items.iter().map(|item| item.target.class()) {
            let weight = by_class.get(class).copied().unwrap_or(1.);
            let asked = |c| if c == class { 1. - label_smoothing as f32 + spread } else { spread };
            targets.extend((0..n_classes).map(|c| weight * asked(c)));
        }
        let shape = (items.len(), n_classes);
        self.weighted = Some(tensor_of(targets, shape, self.targets.device())?);
        Ok(self)
    }

    pub(super) fn n_tokens(&self) -> u64 {
        self.rows.n_tokens
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        let Rows { ids, type_ids, mask, .. } = &self.rows;
        let tensors = [ids, &self.targets].into_iter().chain(type_ids).chain(mask.tensors());
        let tensors = tensors.chain(&self.weighted);
        Inputs { tensors: tensors.collect(), count: self.targets.elem_count() }
    }

    /// The loss of `logits (batch, n_classes)`, and the accuracy of classes.
    pub(super) fn loss(&self, logits: &Tensor, label_smoothing: f64) -> Result<Loss> {
        let count = self.targets.elem_count();
        let without_metrics = |sum| Loss { sum, count: count as f64, metrics: Measures::default() };
        Ok(match self.objective {
            Objective::Classes => {
                let sum = match &self.weighted {
                    Some(targets) => cross_entropy_soft(logits, targets)?,
                    None => cross_entropy(logits, &self.targets, label_smoothing)?,
                };
                Loss::with_hits(sum, count, "accuracy", &hits(logits, &self.targets)?)
            }
            Objective::Labels => {
                let x = logits.flatten_all()?.unsqueeze(1)?; // (batch · n_labels, 1)
                let both = Tensor::cat(&[&x.zeros_like()?, &x], D::Minus1)?;
                without_metrics(cross_entropy(&both, &self.targets, label_smoothing)?)
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

fn at_least_f32(x: &Tensor) -> Result<Tensor> {
    let is_half = matches!(x.dtype(), DType::F16 | DType::BF16);
    if is_half { Ok(x.to_dtype(DType::F32)?) } else { Ok(x.clone()) }
}

#[cfg(test)]
mod tests {
    use tealight_ops::testing::device;

    use super::*;
    use crate::inference::text_classifier::encoder::Tokens;

    fn batch(objective: Objective, targets: Vec<Target>) -> Batch {
        let tokens = Tokens { ids: vec![1, 2], type_ids: Vec::new() };
        let items: Vec<_> =
            targets.into_iter().map(|target| Item { tokens: tokens.clone(), target }).collect();
        let labels = Labels::new(objective, vec!["a".to_owned(), "b".to_owned()]);
        Batch::new(&items, &labels, 5, 0, device()).unwrap()
    }

    fn loss(batch: &Batch, logits: &Tensor, smoothing: f64) -> (f64, f64) {
        let Loss { sum, count, .. } = batch.loss(logits, smoothing).unwrap();
        (f64::from(sum.to_scalar::<f32>().unwrap()), count)
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-5 * expected.abs().max(1.), "{value}, {expected}");
    }

    #[test]
    fn a_class_counts_as_much_as_its_weight() {
        let targets = [0, 1, 1].map(Target::Class);
        let logits = Tensor::new(&[[0.5_f32, -1.25], [2., 0.], [-0.25, 0.75]], device()).unwrap();
        for smoothing in [0., 0.2] {
            let of = |target: &Target| {
                let row = Batch::new(
                    &[Item {
                        tokens: Tokens { ids: vec![1], type_ids: Vec::new() },
                        target: target.clone(),
                    }],
                    &Labels::new(Objective::Classes, vec!["a".to_owned(), "b".to_owned()]),
                    5,
                    0,
                    device(),
                );
                row.unwrap()
            };
            let rows = targets.iter().enumerate().map(|(at, target)| {
                loss(&of(target), &logits.narrow(0, at, 1).unwrap(), smoothing).0
            });
            let rows: Vec<f64> = rows.collect();
            let whole = batch(Objective::Classes, targets.to_vec());
            let tokens = Tokens { ids: vec![1, 2], type_ids: Vec::new() };
            let items: Vec<_> = targets
                .iter()
                .map(|target| Item { tokens: tokens.clone(), target: target.clone() })
                .collect();
            let weights = Weights { by_class: &[2., 0.5], label_smoothing: smoothing };
            let weighted = whole.weighted(&items, weights).unwrap();
            let (sum, count) = loss(&weighted, &logits, smoothing);
            assert_near(sum, 2. * rows[0] + 0.5 * (rows[1] + rows[2]));
            assert_eq!(count, 3.);
        }
    }

    #[test]
    fn labels_are_scored_one_by_one_without_overflow() {
        let targets = [[true, false], [false, true], [true, true]];
        let targets = targets.map(|has| Target::Labels(has.into()));
        let batch = batch(Objective::Labels, targets.into());
        let x = [[0.5_f32, -1.25], [2., 0.], [-200., 90.]];
        let logits = Tensor::new(&x, device()).unwrap();
        let softplus = |x: f64| x.max(0.) + (-x.abs()).exp().ln_1p();
        // −log σ(x) = softplus(−x) of a label that the text has, softplus(x) of another.
        let expected = [-0.5, -1.25, 2., 0., 200., -90.].map(softplus).iter().sum::<f64>();
        let (sum, count) = loss(&batch, &logits, 0.);
        assert_near(sum, expected);
        assert_eq!((count, batch.inputs().count), (6., 6));
        // ε = 0.2 gives each value of a label a tenth of the probability of the other.
        let other = [0.5, 1.25, -2., 0., -200., 90.].map(softplus).iter().sum::<f64>();
        assert_near(loss(&batch, &logits, 0.2).0, 0.9 * expected + 0.1 * other);
        assert_eq!(batch.predictions(&logits).unwrap(), [1., 0., 1., 0., 0., 1.]);
    }

    #[test]
    fn numbers_have_squared_errors_and_a_gradient() {
        let targets = [1.5, -2.].map(Target::Number);
        let batch = batch(Objective::Regression, targets.into());
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
        let alone = self::batch(Objective::Regression, vec![Target::Number(3.)]);
        let logits = Tensor::new(&[[1_f32]], device()).unwrap().to_dtype(DType::BF16).unwrap();
        assert_eq!(loss_of_half(&alone, &logits), 4.);
    }

    fn loss_of_half(batch: &Batch, logits: &Tensor) -> f32 {
        batch.loss(logits, 0.).unwrap().sum.to_scalar().unwrap()
    }

    #[test]
    fn rows_are_padded_to_the_length_that_the_attention_requires() {
        let batch = batch(Objective::Classes, vec![Target::Class(1)]);
        assert_eq!((batch.rows.ids.dims(), batch.n_tokens()), (&[1, 5][..], 2));
        let tokens = Tokens { ids: vec![7, 8, 9], type_ids: vec![0, 1, 1] };
        let short = Tokens { ids: vec![7], type_ids: vec![0] };
        let rows = Rows::new(&[&tokens, &short], 0, 3, device()).unwrap();
        assert_eq!(rows.ids.to_vec2::<u32>().unwrap(), [[7, 8, 9], [7, 3, 3]]);
        let types = rows.type_ids.unwrap().to_vec2::<u32>().unwrap();
        assert_eq!(types, [[0, 1, 1], [0, 0, 0]]);
    }
}
