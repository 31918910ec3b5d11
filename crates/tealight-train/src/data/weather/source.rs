//! The choice between the rules that draw weather and a file of weather.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tealight_model::choice;

use super::generator::{Generator, dotmod, markov, n_days, one_four_eight};
use crate::error::Result;

choice! {
    /// `[task.source]`: where the weather comes from.
    pub enum SourceConfig {
        /// Tomorrow depends on today alone.
        "markov" => Markov(markov::Config),
        /// Day 11 depends on days 1, 4 and 8, through a table.
        "one_four_eight" => OneFourEight(one_four_eight::Config),
        /// What was rare in the last 10 days is likely.
        "ten_days" => TenDays(n_days::TenDays),
        /// What was rare in the last 15 days is likely.
        "fifteen_days" => FifteenDays(n_days::FifteenDays),
        /// What was rare in the last n days is likely.
        "n_days" => NDays(n_days::Config),
        /// A weighted count of rainy days, modulo 3.
        "dotmod" => Dotmod(dotmod::Config),
        /// Lines of weather from a file: 🌧️☁️☀️.
        "file" => File(FileConfig),
    }
}

/// `[task.source] kind = "file"`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    /// A sequence on each line, oldest day first; `#` begins a comment. A relative path is relative to the
    /// working directory; a run keeps the absolute one.
    pub path: PathBuf,
}

impl SourceConfig {
    /// Builds the generator; `None` if the weather comes from a file.
    pub fn build(&self) -> Result<Option<Box<dyn Generator>>> {
        let generator: Box<dyn Generator> = match self {
            Self::Markov(config) => Box::new(config.build()?),
            Self::OneFourEight(config) => Box::new(config.build()?),
            Self::TenDays(preset) => Box::new(preset.build()),
            Self::FifteenDays(preset) => Box::new(preset.build()),
            Self::NDays(config) => Box::new(config.build()?),
            Self::Dotmod(config) => Box::new(config.build()?),
            Self::File(_) => return Ok(None),
        };
        Ok(Some(generator))
    }
}
