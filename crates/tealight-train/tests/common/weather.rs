//! The weather task of a configuration.

use tealight_ops::testing::device;
use tealight_train::RunConfig;
use tealight_train::task::TaskKind;
use tealight_train::task::weather::Weather;

use crate::common::Result;

/// Builds the weather task of a configuration, with its data.
pub(crate) fn weather(config: &RunConfig) -> Result<Weather> {
    let weather = config.task.settings().forecaster().ok_or("another task")?;
    Ok(weather.build(&config.task_context(device()))?)
}
