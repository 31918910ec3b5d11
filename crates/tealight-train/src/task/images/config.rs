//! The settings of `[task] kind = "images"`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tealight_model::models::read_out::ReadOut;
use tealight_model::{ModelSpec, Outputs, SpecRecord};

use crate::checks::{at_most, check, positive};
use crate::data::images::augment;
use crate::data::images::shapes;
use crate::data::images::source::SourceConfig;
use crate::data::images::{Colour, Filter, Fit, Preparation};
use crate::error::{Error, Result};
use crate::inference::image_classifier::MAX_SIZE;
use crate::settings::settings;
use crate::task::calibration::Calibration;
use crate::task::settings::{absolute_path, check_label_smoothing};
use crate::task::{Imitated, TaskSettings};

settings! {
    /// `[task] kind = "images"`
    pub struct Config {
        /// Which positions the class is predicted from: `cls`, `mean` or `attention`.
        pub read_out: ReadOut = ReadOut::Cls,
        /// The classes in the order of the model's outputs; when absent, in ascending order, or as the files number
        /// them.
        pub labels: Option<Vec<String>> = None,
        /// Probability mass that the loss spreads over all classes (Szegedy et al. 2016).
        pub label_smoothing: f64 = 0.,
        /// What corrects the probabilities after training.
        pub calibration: Calibration = Calibration::None,
        /// Rows and columns of the pictures that the model reads; when absent, all must have the same size.
        pub size: Option<usize> = None,
        /// How a picture of other proportions fits.
        pub fit: Fit = Fit::Crop,
        /// How pixels between pixels are computed.
        pub filter: Filter = Filter::Bilinear,
        /// The channels of the pictures; those of the first one when absent.
        pub colour: Option<Colour> = None,
        /// Means of the channels, of pixels from 0 to 1; those of the training pictures when absent.
        pub mean: Option<Vec<f64>> = None,
        /// Their standard deviations; those of the training pictures when absent.
        pub deviation: Option<Vec<f64>> = None,
        /// The folder of decoded pictures; `$TEALIGHT_CACHE` or a folder of the user when absent.
        pub cache: Option<PathBuf> = None,
        /// `[task.data]`: where the pictures come from.
        pub data: SourceConfig = SourceConfig::Shapes(shapes::Config::default()),
        /// `[task.augment]`: changes of the pictures to train on; none by default.
        pub augment: augment::Config = augment::Config::default(),
    }
}

impl Config {
    /// What is done with a decoded picture.
    pub(super) fn preparation(&self) -> Preparation {
        let Self { size, fit, filter, colour, .. } = *self;
        Preparation { size: size.map(|size| [size, size]), fit, filter, colour }
    }

    fn check_labels(&self) -> Result<()> {
        let Some(labels) = &self.labels else { return Ok(()) };
        let different: BTreeSet<_> = labels.iter().collect();
        let rule = match labels.len() {
            n if different.len() < n => "has a label twice",
            _ if labels.iter().any(|label| label.trim().is_empty()) => "has an empty label",
            0 | 1 => "needs two labels at least",
            _ => return Ok(()),
        };
        let message = format!("`task.labels`, a list of {}, {rule}", labels.len());
        Err(Error::config(["task.labels"], message))
    }

    fn check_normalisation(&self) -> Result<()> {
        let is_finite =
            |values: &Option<Vec<f64>>| values.iter().flatten().all(|value| value.is_finite());
        if !is_finite(&self.mean) {
            return Err(Error::config(["task.mean"], "`task.mean` must be finite"));
        }
        let is_positive = self.deviation.iter().flatten().all(|&value| value > 0.);
        if !is_finite(&self.deviation) || !is_positive {
            return Err(Error::config(["task.deviation"], "`task.deviation` must be positive"));
        }
        Ok(())
    }
}

impl TaskSettings for Config {
    fn test_share(&self) -> Option<(&Path, f64)> {
        self.data.test_share()
    }

    fn test_on(&mut self, data: &Path) -> Result<()> {
        self.data = SourceConfig::of_class_folders(data);
        self.absolute_paths()
    }

    fn validate(&self) -> Result<()> {
        check_label_smoothing(self.label_smoothing)?;
        if let Some(size) = self.size {
            positive("task.size", size)?;
            at_most("task.size", size as u64, MAX_SIZE)?;
        }
        self.check_labels()?;
        self.check_normalisation()?;
        self.augment.validate()?;
        let padding = self.augment.crop_padding;
        if let Some(size) = self.size {
            let rule = format!("must be less than `task.size` = {size}");
            check("task.augment.crop_padding", padding, |padding| padding < size, &rule)?;
        }
        self.data.validate()
    }

    fn absolute_paths(&mut self) -> Result<()> {
        self.cache.as_mut().map_or(Ok(()), absolute_path)?;
        self.data.absolute_paths()
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight classify {} picture.png", run.display())
    }

    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Logits)
    }

    fn outputs(&self) -> Option<Outputs> {
        (self.read_out == ReadOut::Cls).then_some(Outputs::First)
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("image-classification")
    }

    fn model_spec(&self, record: SpecRecord, pad_id: Option<u32>) -> Option<ModelSpec> {
        SpecRecord { read_out: Some(self.read_out), ..record }.spec(pad_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let message = |config: Config| config.validate().unwrap_err().to_string();
        let of = Config::default;
        let labels = |labels: &[&str]| Some(labels.iter().map(|&label| label.to_owned()).collect());
        assert!(message(Config { labels: labels(&["a"]), ..of() }).contains("needs two labels"));
        assert!(message(Config { labels: labels(&["a", "a"]), ..of() }).contains("a label twice"));
        assert!(message(Config { size: Some(0), ..of() }).starts_with("`task.size` = 0"));
        assert!(message(Config { size: Some(5000), ..of() }).contains("must be at most 4096"));
        let deviation = Some(vec![0.5, 0.]);
        assert_eq!(message(Config { deviation, ..of() }), "`task.deviation` must be positive");
        let augment = augment::Config { crop_padding: 8, ..Default::default() };
        let message = message(Config { size: Some(8), augment, ..of() });
        assert!(message.ends_with("must be less than `task.size` = 8"), "{message}");
        assert!(of().validate().is_ok());
    }
}
