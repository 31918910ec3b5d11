//! The settings of `[task] kind = "seq2seq"`.

use std::path::Path;

use tealight_model::{ModelConfig, Reads, choice};

use super::pairs::file::FileConfig;
use super::pairs::{dates, symbols};
use crate::checks::{at_most, positive};
use crate::error::Result;
use crate::settings::settings;
use crate::task::TaskSettings;
use crate::task::settings::{absolute_path, check_label_smoothing};

/// The most held-out pairs.
const MAX_VALIDATION: u64 = 1 << 20;

settings! {
    /// `[task] kind = "seq2seq"`
    pub struct Config {
        /// Probability mass that the loss spreads over all tokens (Szegedy et al. 2016).
        pub label_smoothing: f64 = 0.,
        /// Pairs that are held out for validation; of a file, sources with all their targets.
        pub n_validation: usize = 1000,
        /// How many of them are decoded at each evaluation, for `exact_match`; 0 saves the time. The report at
        /// the end decodes all.
        pub n_decoded: usize = 200,
        /// `[task.source]`: where the pairs come from.
        pub source: SourceConfig = SourceConfig::default(),
    }
}

choice! {
    /// `[task.source]`: where the pairs come from.
    pub enum SourceConfig = "reverse" {
        /// Random symbols, and the same in reverse.
        "reverse" => Reverse(symbols::Reverse),
        /// Random symbols, and the same in order.
        "sort" => Sort(symbols::Sort),
        /// Dates as people write them, and as ISO 8601 does.
        "dates" => Dates,
        /// Pairs from a file: a source, a tab and a target on each line.
        "file" => File(FileConfig),
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        positive("task.n_validation", self.n_validation)?;
        at_most("task.n_validation", self.n_validation as u64, MAX_VALIDATION)?;
        check_label_smoothing(self.label_smoothing)?;
        match &self.source {
            SourceConfig::Reverse(reverse) => reverse.build().validate(),
            SourceConfig::Sort(sort) => sort.build().validate(),
            SourceConfig::Dates => Ok(()),
            SourceConfig::File(file) => file.validate(),
        }
    }

    fn absolute_paths(&mut self) -> Result<()> {
        let SourceConfig::File(FileConfig { path, .. }) = &mut self.source else { return Ok(()) };
        absolute_path(path)
    }

    /// The source stays, because it says how long a sequence may be.
    fn test_on(&mut self, _data: &Path) -> Result<()> {
        Ok(())
    }

    /// The positions that the encoder and the decoder read.
    fn reads(&self, _model: &ModelConfig) -> Vec<Reads> {
        vec![Reads::Everything, Reads::Past]
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight translate {} \"…\"", run.display())
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("translation")
    }
}

impl SourceConfig {
    /// The most tokens of a source and of a target, without the marks at their ends.
    pub(super) fn max_lens(&self) -> (usize, usize) {
        match self {
            Self::Reverse(symbols::Reverse { length, .. })
            | Self::Sort(symbols::Sort { length, .. }) => (*length, *length),
            Self::Dates => dates::MAX_LENS,
            Self::File(FileConfig { max_len, .. }) => (*max_len, *max_len),
        }
    }
}
