//! What the suites share.

use candle_core::Device;
use tealight_train::RunConfig;
use tealight_train::task::TaskConfig;
use tealight_train::task::weather::Weather;

/// A result of whatever went wrong.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The task of a run, with its data.
pub(crate) fn weather(config: &RunConfig) -> Result<Weather> {
    let TaskConfig::Weather(weather) = &config.task;
    Ok(Weather::new(weather, config.seed, config.training.batch_size, &Device::Cpu)?)
}
