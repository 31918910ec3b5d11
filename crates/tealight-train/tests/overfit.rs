//! Every configuration that is shipped can learn one batch by heart.
//!
//! The weather is random, so two examples may have the same window and not the same next day. What
//! is left of the loss then is the entropy of the labels given the windows, and no model goes below.

mod common;
#[path = "common/configs.rs"]
mod configs;

use std::collections::BTreeMap;

use candle_core::Device;
use common::{Result, weather};
use configs::shipped;
use tealight_model::Mode;
use tealight_model::models::forecaster::ReadOut;
use tealight_train::schedule::{Constant, ScheduleConfig};
use tealight_train::task::weather::{Fixed, Regime, Weather};
use tealight_train::task::{Split, Task, TaskConfig};
use tealight_train::{RunConfig, Session, fit};

const BATCH: usize = 16;
const STEPS: u64 = 150;
/// Nats above what is possible: an untrained model is a nat above.
const EXCESS: f64 = 0.05;

/// The same model and optimizer; one batch, and nothing that keeps from learning it.
fn shrunk(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    config.model.dropout = 0.;
    config.schedule = ScheduleConfig::Constant(Constant::default());
    config.training.steps = STEPS;
    config.training.batch_size = BATCH;
    config.training.micro_batches = 1;
    config.training.ema_decay = None;
    config.training.early_stopping = None;
    config.training.evaluate_every = STEPS;
    let TaskConfig::Weather(weather) = &mut config.task;
    weather.label_smoothing = 0.;
    // As many examples to train on as a batch holds: every batch is the same but for its order.
    weather.regime = Regime::Examples(Fixed { n: Some(BATCH + 1), n_validation: 1 });
    config
}

/// The mean loss of a model that knows how often each day follows each window of the batch.
fn least_loss(task: &Weather) -> f64 {
    let mut counts: BTreeMap<&[u8], BTreeMap<u8, f64>> = BTreeMap::new();
    let examples = task.training_examples().expect("invariant: the regime is `examples`");
    let window = examples.window();
    let first = if task.config().read_out == ReadOut::EveryPosition { 1 } else { window };
    for days in examples.days().chunks_exact(window + 1) {
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
        let mut session = Session::new(&config, weather(&config)?, &Device::Cpu)?;
        let batch = session.task.batch(Split::Train, 0)?;
        fit(&mut session, STEPS, None, &mut [])?;
        let loss = session.task.loss(&session.twin, &batch, Mode::Eval)?;
        let (loss, least) = (loss.sum.to_scalar::<f32>()?, least_loss(&session.task));
        let excess = f64::from(loss) / BATCH as f64 - least;
        assert!(excess < EXCESS, "{name}: {excess:.3} above {least:.3} after {STEPS} steps");
    }
    Ok(())
}
