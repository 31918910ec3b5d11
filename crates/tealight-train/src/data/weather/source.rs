//! `[task.source]`: the source of the weather.

use std::path::PathBuf;

use tealight_model::choice;

use super::generator::{Generator, dotmod, markov, n_days, one_four_eight};
use crate::error::Result;
use crate::settings::settings;

choice! {
    /// `[task.source]`: the source of the weather.
    pub enum SourceConfig {
        /// A Markov chain: a day depends on the day before.
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

settings! {
    /// `[task.source] kind = "file"`
    pub struct FileConfig {
        /// A sequence on each line, oldest day first; `#` begins a comment. A relative path starts in the
        /// current directory; a run stores the absolute one.
        pub path: PathBuf = PathBuf::new(),
    }
}

impl SourceConfig {
    /// Builds the generator; `None` for a file.
    pub fn build(&self) -> Result<Option<Box<dyn Generator>>> {
        let generator: Box<dyn Generator> = match self {
            Self::Markov(config) => Box::new(config.build()?),
            Self::OneFourEight(config) => Box::new(config.build()?),
            Self::TenDays(_) => Box::new(n_days::Config { n: 10 }),
            Self::FifteenDays(_) => Box::new(n_days::Config { n: 15 }),
            Self::NDays(config) => Box::new(config.build()?),
            Self::Dotmod(config) => Box::new(config.build()?),
            Self::File(_) => return Ok(None),
        };
        Ok(Some(generator))
    }
}
