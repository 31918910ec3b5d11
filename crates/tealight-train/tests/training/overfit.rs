//! Every configuration in `configs/` can memorise one batch.
//!
//! The weather is random, so two examples may have the same window and different next days. The lowest
//! possible loss is then the entropy of the labels given the windows.

use std::collections::BTreeMap;
use tealight_ops::testing::device;

use crate::any_task::{ForAnyTask, with_task};
use crate::common::Result;
use crate::configs::{shipped, shrink};
use crate::weather::weather;
use tealight_model::Mode;
use tealight_model::models::forecaster::ReadOut;
use tealight_train::data::images::augment;
use tealight_train::optimizer::OptimizerConfig;
use tealight_train::optimizer::schedule::{Constant, ScheduleConfig};
use tealight_train::task::weather::{Fixed, Regime, Weather};
use tealight_train::task::{Loss, Split, Task, TaskConfig, listops, rerank};
use tealight_train::training::preflight::OneBatch;
use tealight_train::{RunConfig, Session, fit};

const BATCH: usize = 16;
const STEPS: u64 = 150;
/// Allowed distance from the lowest possible loss, in nats; an untrained model is a nat above.
const EXCESS: f64 = 0.05;

/// The same model and optimizer on one batch, without regularisation.
fn shrunk(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    config.model.dropout = 0.;
    config.schedule = ScheduleConfig::Constant(Constant::default());
    config.training.steps = STEPS;
    config.training.batch_size = BATCH;
    config.training.micro_batches = 1;
    config.training.ema_decay = None;
    config.training.early_stopping = None;
    (config.checkpoint.metric, config.checkpoint.direction) = (None, None);
    config.training.evaluate_every = STEPS;
    match &mut config.task {
        TaskConfig::Weather(weather) => {
            weather.label_smoothing = 0.;
            // One batch is the whole training set, so that the lowest possible loss is known.
            weather.regime = Regime::Examples(Fixed { n: Some(BATCH + 1), n_validation: 1 });
        }
        TaskConfig::Seq2Seq(seq2seq) => {
            seq2seq.label_smoothing = 0.;
            seq2seq.n_validation = 1;
        }
        TaskConfig::MaskedLm(_) | TaskConfig::CausalLm(_) => {
            config.training.batch_size = 4;
            // The learning rates of the file are for large models and long runs.
            if let OptimizerConfig::AdamW(adamw) = &mut config.optimizer {
                adamw.lr = 5e-3;
            }
        }
        TaskConfig::ListOps(listops) => short(listops),
        // Of many sentences, equal ones may name the other of two types.
        TaskConfig::Recall(_) | TaskConfig::Copying(_) | TaskConfig::Tag(_) => {
            config.training.batch_size = 4;
        }
        TaskConfig::Embed(_) => config.training.batch_size = 4,
        TaskConfig::Rerank(rerank) => {
            // That of lists is above 0, because it asks for all passages with some probability.
            rerank.loss = rerank::LossConfig::default();
            config.training.batch_size = 4;
        }
        TaskConfig::StateTracking(tracking) => {
            tracking.seq_len = 8;
            config.training.batch_size = 4;
        }
        // Two sequences may begin alike, and one goes on otherwise.
        TaskConfig::MarkovIcl(_) => config.training.batch_size = 1,
        TaskConfig::Classify(classify) => classify.label_smoothing = 0.,
        TaskConfig::Images(images) => {
            images.label_smoothing = 0.;
            images.augment = augment::Config::default();
        }
    }
    shrink(&mut config);
    if let TaskConfig::CausalLm(task) = &mut config.task {
        // The beginning of a text cannot be predicted, the rest is memorised: use a few short texts.
        task.seq_len = 7;
        config.model.d_model *= 2;
    }
    config
}

/// Shorter sequences are faster and memorised just as well.
fn short(listops: &mut listops::Config) {
    *listops = listops::Config {
        n_validation: 1,
        max_depth: 3,
        max_args: 5,
        min_length: 3,
        max_length: 40,
        ..listops.clone()
    };
}

/// The mean loss per item of the memorised batch.
struct Learn;

impl ForAnyTask for Learn {
    type Answer = f64;

    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result<f64> {
        let mut session = Session::new(config, OneBatch(&task), device())?;
        let batch = session.task.batch(Split::Train, 0)?;
        fit(&mut session, STEPS, None, &mut [])?;
        let Loss { sum, count, .. } = session.task.loss(&session.eval_model, &batch, Mode::Eval)?;
        Ok(f64::from(sum.to_scalar::<f32>()?) / count)
    }
}

/// The lowest possible loss, which is above zero if the data are random.
fn least_loss(config: &RunConfig) -> Result<f64> {
    match &config.task {
        TaskConfig::Weather(_) => Ok(least_loss_of_weather(&weather(config)?)),
        // Targets, values and classes are functions of the inputs, and texts are memorised.
        _ => Ok(0.),
    }
}

/// The mean loss of the empirical distribution of the next day given each window of the batch.
fn least_loss_of_weather(task: &Weather) -> f64 {
    let mut counts: BTreeMap<&[u8], BTreeMap<u8, f64>> = BTreeMap::new();
    let examples = task.training_examples().expect("invariant: the regime is `examples`");
    let window = examples.window;
    let first = if task.config.read_out == ReadOut::EveryPosition { 1 } else { window };
    for days in examples.days.chunks_exact(window + 1) {
        for at in first..=window {
            *counts.entry(&days[..at]).or_default().entry(days[at]).or_default() += 1.;
        }
    }
    let (mut sum, mut n_items) = (0., 0.);
    for labels in counts.values() {
        let n: f64 = labels.values().sum();
        sum -= labels.values().map(|count| count * (count / n).ln()).sum::<f64>();
        n_items += n;
    }
    sum / n_items
}

#[test]
fn every_configuration_learns_one_batch_by_heart() -> Result {
    for (name, config) in shipped()? {
        let config = shrunk(&config);
        let (loss, least) = (with_task(&config, &Learn)?, least_loss(&config)?);
        let excess = loss - least;
        assert!(excess < EXCESS, "{name}: {excess:.3} above {least:.3} after {STEPS} steps");
    }
    Ok(())
}
