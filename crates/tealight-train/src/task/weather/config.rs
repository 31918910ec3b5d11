//! `[task]` for the weather.

use serde::{Deserialize, Serialize};
use tealight_model::models::forecaster::ReadOut;
use tealight_model::{choice, names};

use crate::data::weather::generator::markov;
use crate::data::weather::{FileConfig, SourceConfig};
use crate::error::{Error, Result};
use crate::limits::at_most;

/// The longest window, a year: the time that attention and the linear baseline take grows with its
/// square and its cube.
const MAX_WINDOW: u64 = 366;

/// `[task] kind = "weather"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Days that the model sees, oldest first.
    pub window: usize,
    /// How a day is given to the model.
    pub input: InputKind,
    /// Where the forecast is read.
    pub read_out: ReadOut,
    /// Probability mass that the loss spreads over all kinds of weather (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// `[task.source]`: where the weather comes from.
    pub source: SourceConfig,
    /// `[task.regime]`: how much of it there is to learn from.
    pub regime: Regime,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 10,
            input: InputKind::Tokens,
            read_out: ReadOut::Mean,
            label_smoothing: 0.,
            source: SourceConfig::Markov(markov::Config::default()),
            regime: Regime::default(),
        }
    }
}

names! {
    /// How a day is given to the model.
    pub enum InputKind {
        /// An id that is looked up in a table.
        "tokens" => Tokens,
        /// Three numbers, one of them 1, through a linear map.
        "one_hot" => OneHot,
    }
}

choice! {
    /// `[task.regime]`: how much weather there is to learn from.
    pub enum Regime {
        /// New samples in every batch.
        "fresh" => Fresh(Fresh),
        /// A fixed number of examples, some of them held out.
        "examples" => Examples(Fixed),
    }
}

impl Default for Regime {
    fn default() -> Self {
        Self::Fresh(Fresh::default())
    }
}

/// `[task.regime] kind = "fresh"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fresh {
    /// Samples drawn for validation, the same throughout the run.
    pub n_validation: usize,
}

impl Default for Fresh {
    fn default() -> Self {
        Self { n_validation: 2000 }
    }
}

/// `[task.regime] kind = "examples"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fixed {
    /// Examples in all; of a file, all there are when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<usize>,
    /// Of these, the last so many are held out for validation.
    pub n_validation: usize,
}

impl Default for Fixed {
    fn default() -> Self {
        Self { n: None, n_validation: 500 }
    }
}

impl Config {
    /// Makes the path of a file absolute, so that it means the same wherever the run is resumed.
    pub fn absolute_paths(&mut self) -> Result<()> {
        let SourceConfig::File(FileConfig { path }) = &mut self.source else { return Ok(()) };
        // What is missing stays missing: an error says so when the data are read.
        if !path.as_os_str().is_empty() {
            *path = std::path::absolute(&*path).map_err(Error::io("find", path))?;
        }
        Ok(())
    }

    /// Checks what does not depend on the data.
    pub(super) fn validate(&self) -> Result<()> {
        let Self { window, label_smoothing, .. } = *self;
        if window == 0 {
            return Err(Error::config(["task.window"], "`task.window` = 0 must be positive"));
        }
        at_most("task.window", window as u64, MAX_WINDOW)?;
        if !(0. ..1.).contains(&label_smoothing) {
            let key = "task.label_smoothing";
            let message = format!("`{key}` = {label_smoothing} must be at least 0 and less than 1");
            return Err(Error::config([key], message));
        }
        if let (SourceConfig::File(_), Regime::Fresh(_)) = (&self.source, &self.regime) {
            return Err(Error::config(
                ["task.regime.kind", "task.source.kind"],
                "`task.regime.kind` = \"fresh\" draws new samples, which a file cannot; \
             use \"examples\"",
            ));
        }
        Ok(())
    }
}
