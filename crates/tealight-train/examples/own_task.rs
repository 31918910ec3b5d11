//! Trains a transformer on data of one's own, held in memory:
//! `cargo run --release -p tealight-train --example own_task`
//!
//! The data are sequences of digits with a class, the digit that occurs most often. A task says what a batch is, which
//! model it is for, and what its loss is; everything else is settings.

use std::cell::Cell;
use std::path::Path;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use tealight_model::embedding::Input;
use tealight_model::models::classifier::{Classifier, ClassifierSpec};
use tealight_model::models::read_out::ReadOut;
use tealight_model::{Mask, Mode, ModelConfig};
use tealight_ops::cross_entropy::{cross_entropy, hits};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::config::ConfigSource;
use tealight_train::observer::{Event, Observer};
use tealight_train::task::{Inputs, Loss, Split, Task};
use tealight_train::{Measures, Result, RunConfig, Session, fit};

// `[task]` is for the tasks that Tealight brings along, and has no effect on another.
const SETTINGS: &str = r#"
task = "weather"
model = { d_model = 32, n_layers = 2, n_heads = 4, attention = { kind = "softmax" } }
optimizer = { kind = "adamw", lr = 3e-3 }
training = { steps = 300, batch_size = 64, evaluate_every = 100 }
"#;
const SEQ_LEN: usize = 9;
const N_DIGITS: usize = 3;

struct MostFrequent {
    examples: Vec<([u32; SEQ_LEN], u32)>,
    n_train: usize,
    batch_size: usize,
}

/// Digits `(batch, seq_len)` and classes `(batch)`.
struct Batch(Tensor, Tensor);

impl Task for MostFrequent {
    type Model = Classifier;
    type Batch = Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Classifier> {
        let spec = ClassifierSpec {
            vocab_size: N_DIGITS,
            n_token_types: 0,
            pad_id: None,
            seq_len: SEQ_LEN,
            n_classes: N_DIGITS,
            read_out: ReadOut::Mean,
        };
        Ok(Classifier::build(config, &spec, vb)?)
    }

    fn batch(&self, split: Split, index: u64) -> Result<Batch> {
        let (train, validation) = self.examples.split_at(self.n_train);
        let examples = if split == Split::Train { train } else { validation };
        let first = index as usize * self.batch_size;
        let rows = (first..first + self.batch_size).map(|i| &examples[i % examples.len()]);
        let (digits, classes): (Vec<_>, Vec<_>) = rows.copied().unzip();
        let digits = Tensor::new(digits.as_flattened(), &Device::Cpu)?;
        let digits = digits.reshape((self.batch_size, SEQ_LEN))?;
        Ok(Batch(digits, Tensor::new(classes, &Device::Cpu)?))
    }

    fn n_evaluation_batches(&self) -> u64 {
        ((self.examples.len() - self.n_train) / self.batch_size) as u64
    }

    fn seq_len(&self) -> usize {
        SEQ_LEN
    }

    fn inputs<'a>(&self, Batch(digits, classes): &'a Batch) -> Inputs<'a> {
        Inputs { tensors: vec![digits, classes], count: self.batch_size as f64 }
    }

    fn loss(&self, model: &Classifier, Batch(digits, classes): &Batch, mode: Mode) -> Result<Loss> {
        let logits = model.forward(&Input::tokens(digits), &Mask::none(), mode)?;
        let (count, mut metrics) = (self.batch_size as f64, Measures::default());
        metrics.add("accuracy", &hits(&logits, classes)?, count);
        Ok(Loss { sum: cross_entropy(&logits, classes, 0.)?, count, metrics })
    }
}

/// A digit more often than any other, or no example.
fn example(stream: Stream) -> Option<([u32; SEQ_LEN], u32)> {
    let digits = std::array::from_fn(|i| stream.below(i as u64, N_DIGITS as u64) as u32);
    let count = |class: u32| digits.iter().filter(|digit| **digit == class).count();
    let best = (0..N_DIGITS as u32).max_by_key(|class| count(*class))?;
    let is_alone = (0..N_DIGITS as u32).all(|class| class == best || count(class) < count(best));
    is_alone.then_some((digits, best))
}

/// Keeps the accuracy of the last evaluation.
struct Accuracy<'a>(&'a Cell<f64>);

impl Observer for Accuracy<'_> {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        if let Event::Evaluated { metrics, .. } = event {
            self.0.set(metrics["accuracy"]);
        }
        Ok(())
    }
}

/// Trains, and returns the accuracy on examples that were held out.
pub(crate) fn train() -> Result<f64> {
    let source = ConfigSource::parse(Path::new("own_task.toml"), SETTINGS, &[])?;
    let config: RunConfig = source.deserialize()?;
    let stream = Stream::new(config.seed, Purpose::Data);
    let examples: Vec<_> = (0..6000).filter_map(|i| example(stream.fork(i))).collect();
    let n_train = examples.len() * 9 / 10;
    let task = MostFrequent { examples, n_train, batch_size: config.training.batch_size };
    let mut session = Session::new(&config, task, &Device::Cpu)?;
    let accuracy = Cell::new(0.);
    fit(&mut session, config.training.steps, None, &mut [Box::new(Accuracy(&accuracy))])?;
    Ok(accuracy.get())
}

#[expect(clippy::print_stdout, reason = "an example prints its result")]
fn main() -> Result<()> {
    println!("accuracy {:.4}", train()?);
    Ok(())
}
