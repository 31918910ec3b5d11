//! The weather task of a configuration.

use tealight_ops::testing::device;
use tealight_train::RunConfig;
use tealight_train::task::weather::Weather;
use tealight_train::task::{TaskConfig, TaskKind};

use crate::common::Result;

/// Builds the weather task of a configuration, with its data.
pub(crate) fn weather(config: &RunConfig) -> Result<Weather> {
    let TaskConfig::Weather(weather) = &config.task else { return Err("another task".into()) };
    Ok(weather.build(&config.task_context(device()))?)
}
