//! Changing one line swaps the attention of any configuration in `configs/`: it then trains, or it is
//! refused with a message that names the line.

use crate::any_task::{ForAnyTask, with_task};
use crate::common::Result;
use crate::configs::{shipped_with, shrink};
use tealight_model::attention::AttentionConfig;
use tealight_ops::testing::device;
use tealight_train::optimizer::schedule::{Constant, ScheduleConfig};
use tealight_train::task::{Task, TaskConfig};
use tealight_train::{Error, RunConfig, Session, fit};

const STEPS: u64 = 2;
/// The width of a head: rotary positions and the kinds with a state need an even one.
const HEAD_DIM: usize = 8;

/// Runs all checks of a run, and trains for a few steps.
struct Train;

impl ForAnyTask for Train {
    type Answer = ();

    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result {
        let mut session = Session::new(config, task, device())?;
        session.check()?;
        fit(&mut session, STEPS, None, &mut [])?;
        assert_eq!(session.progress.step, STEPS);
        Ok(())
    }
}

/// The tables that choose an attention; all but the first in encoder-decoders alone.
const PLACES: [&str; 3] = ["model.attention", "model.encoder_attention", "model.cross_attention"];

fn has(config: &RunConfig, place: &str) -> bool {
    place == PLACES[0] || matches!(config.task, TaskConfig::Seq2Seq(_))
}

/// The same model and data, as small as possible: the test needs to know only whether it trains.
fn shrunk(mut config: RunConfig) -> RunConfig {
    config.training.steps = STEPS;
    config.training.batch_size = 4;
    config.training.micro_batches = 1;
    config.training.evaluate_every = STEPS + 1;
    config.training.early_stopping = None;
    config.schedule = ScheduleConfig::Constant(Constant::default());
    config.model.d_model = HEAD_DIM * config.model.n_heads;
    if config.model.layers.is_empty() {
        config.model.n_layers = config.model.n_layers.min(2);
    }
    if let TaskConfig::ListOps(listops) = &mut config.task {
        listops.n_validation = 4;
        listops.max_length = listops.max_length.min(listops.min_length + 100);
    }
    shrink(&mut config);
    config
}

#[test]
fn every_attention_in_every_configuration_trains_or_is_refused_by_name() -> Result {
    let (mut n_trained, mut n) = (0, 0);
    for kind in AttentionConfig::KINDS {
        for place in PLACES {
            let key = format!("{place}.kind");
            let swapped = shipped_with(&[format!("{key}={}", kind.name)])?;
            for (name, config) in swapped.into_iter().filter(|(_, config)| has(config, place)) {
                let label = format!("{name} --set {key}={}", kind.name);
                n += 1;
                let answer = with_task(&shrunk(config), &Train);
                let Err(error) = answer else {
                    n_trained += 1;
                    continue;
                };
                let Some(Error::Config(fault)) = error.downcast_ref::<Error>() else {
                    panic!("{label}: {error}")
                };
                let is_named = fault.keys.contains(&key) && fault.message.contains(kind.name);
                assert!(is_named, "{label}: {:?}: {fault}", fault.keys);
            }
        }
    }
    // Half of the kinds cannot rotate, or cannot be causal, as many configurations ask for.
    assert!(5 * n_trained > 2 * n, "too many are refused");
    Ok(())
}
