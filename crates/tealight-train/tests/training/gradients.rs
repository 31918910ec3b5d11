//! Every configuration in `configs/` gives every parameter a gradient.

use std::path::Path;
use tealight_ops::testing::device;

use crate::any_task::{ForAnyTask, with_task};
use crate::common::Result;
use crate::configs::{shipped, shrink};
use tealight_model::Mode;
use tealight_ops::backward;
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::config::{ConfigSource, to_resolved_toml};
use tealight_train::monitor::gradient_audit::audit;
use tealight_train::task::{Split, Task};
use tealight_train::{RunConfig, Session};

/// The gradients of the first batch.
struct Audit;

impl ForAnyTask for Audit {
    type Answer = ();

    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result {
        let session = Session::new(config, task, device())?;
        let batch = session.task.batch(Split::Train, 0)?;
        let mode = Mode::train(Stream::new(config.seed, Purpose::Dropout));
        let loss = session.task.loss(&session.model, &batch, mode)?;
        let variables: Vec<_> = session.params.trained().collect();
        let named = variables.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
        let gradients = backward(&loss.sum, named)?;
        assert!(gradients.norm()?.is_finite());
        Ok(audit(&gradients, &config.gradient_audit_exceptions())?)
    }
}

#[test]
fn every_parameter_of_every_configuration_has_a_gradient() -> Result {
    for (name, mut config) in shipped()? {
        shrink(&mut config);
        with_task(&config, &Audit).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

#[test]
fn every_configuration_is_the_same_once_its_defaults_are_written_out() -> Result {
    for (name, config) in shipped()? {
        let resolved = to_resolved_toml(&config)?;
        let source = ConfigSource::parse(Path::new("resolved.toml"), &resolved, &[])?;
        assert_eq!(source.deserialize::<RunConfig>()?, config, "{name}");
    }
    Ok(())
}
