//! The settings of `[task] kind = "weather"`.

use std::path::Path;
use std::sync::Arc;

use tealight_model::embedding::InputSpec;
use tealight_model::models::forecaster::{ForecasterSpec, ReadOut};
use tealight_model::{ModelSpec, SpecRecord, choice, names};

use crate::checks::{at_most, positive};
use crate::data::weather::generator::markov;
use crate::data::weather::source::{FileConfig, SourceConfig};
use crate::data::weather::{N_CLASSES, Score};
use crate::error::{Error, Result};
use crate::inference::readers::Readers;
use crate::settings::settings;
use crate::task::TaskSettings;
use crate::task::settings::{absolute_path, check_label_smoothing};

/// The longest window, a year: the times of attention and of the linear baseline grow with its square and its
/// cube.
const MAX_WINDOW: u64 = 366;

settings! {
    /// `[task] kind = "weather"`
    pub struct Config {
        /// Days that the model reads, oldest first.
        pub window: usize = 10,
        /// How a day is encoded for the model.
        pub input: InputKind = InputKind::Tokens,
        /// Which positions the forecast is read from.
        pub read_out: ReadOut = ReadOut::Mean,
        /// Probability mass that the loss spreads over all kinds of weather (Szegedy et al. 2016).
        pub label_smoothing: f64 = 0.,
        /// `[task.source]`: where the weather comes from.
        pub source: SourceConfig = SourceConfig::Markov(markov::Config::default()),
        /// `[task.regime]`: how many examples there are.
        pub regime: Regime = Regime::default(),
    }
}

names! {
    /// How a day is encoded for the model.
    pub enum InputKind {
        /// An id that is looked up in a table.
        "tokens" => Tokens,
        /// Three numbers, one of them 1, through a linear map.
        "one_hot" => OneHot,
    }
}

choice! {
    /// `[task.regime]`: how much weather there is to learn from.
    pub enum Regime = "fresh" {
        /// New samples in every batch.
        "fresh" => Fresh(Fresh),
        /// A fixed number of examples, some of them held out.
        "examples" => Examples(Fixed),
    }
}

settings! {
    /// `[task.regime] kind = "fresh"`
    pub struct Fresh {
        /// Samples drawn for validation, once for the whole run.
        pub n_validation: usize = 2000,
    }

    /// `[task.regime] kind = "examples"`
    pub struct Fixed {
        /// Examples of both splits; when absent, 5,000, or all of a file.
        pub n: Option<usize> = None,
        /// How many of them, the last ones, are held out for validation.
        pub n_validation: usize = 500,
    }
}

impl TaskSettings for Config {
    fn test_on(&mut self, data: &Path) -> Result<()> {
        self.source = SourceConfig::File(FileConfig { path: data.to_owned() });
        self.regime = Regime::Examples(Fixed::default());
        self.absolute_paths()
    }

    fn validate(&self) -> Result<()> {
        positive("task.window", self.window)?;
        at_most("task.window", self.window as u64, MAX_WINDOW)?;
        check_label_smoothing(self.label_smoothing)?;
        if let (SourceConfig::File(_), Regime::Fresh(_)) = (&self.source, &self.regime) {
            return Err(Error::config(
                ["task.regime.kind", "task.source.kind"],
                "`task.regime.kind` = \"fresh\" draws new samples, which a file cannot; \
             use \"examples\"",
            ));
        }
        Ok(())
    }

    fn absolute_paths(&mut self) -> Result<()> {
        let SourceConfig::File(FileConfig { path }) = &mut self.source else { return Ok(()) };
        absolute_path(path)
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight forecast {} --start \"☀️🌧️☁️\" --days 14", run.display())
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("weather-forecast")
    }

    fn model_spec(&self, _: SpecRecord, _: Option<u32>) -> Option<ModelSpec> {
        Some(ModelSpec::Forecaster(self.spec()))
    }

    fn bayes(&self) -> Option<Score> {
        let generator = self.source.build().ok()??;
        // A rule that needs a longer window is refused by the training, too.
        generator.check_window(self.window).ok()?;
        Some(generator.bayes(self.window))
    }

    fn add_readers(&self, readers: &mut Readers) -> Result<()> {
        readers.rule = self.source.build()?.map(Arc::from);
        Ok(())
    }
}

impl Config {
    /// The sizes of a model for these settings.
    pub(super) fn spec(&self) -> ForecasterSpec {
        ForecasterSpec {
            input: match self.input {
                InputKind::Tokens => {
                    InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None }
                }
                InputKind::OneHot => InputSpec::Features { n_features: N_CLASSES },
            },
            seq_len: self.window,
            n_classes: N_CLASSES,
            read_out: self.read_out,
        }
    }
}
