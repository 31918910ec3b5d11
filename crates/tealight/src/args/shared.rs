//! Arguments and value parsers that several subcommands share.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use tealight_model::names::Named;
use tealight_ops::ProductPrecision;
use tealight_train::config::Precision;
use tealight_train::data::survey::Columns;
use tealight_train::run::Selection;

use super::complete;
use crate::system::device::DeviceName;

/// A configuration file with `--set` overrides.
#[derive(Args, Debug)]
pub(crate) struct ConfigFile {
    /// A TOML file, the name of a shipped configuration (`weather/dotmod`), or `-` for standard input
    #[arg(value_name = "CONFIG", add = ArgValueCompleter::new(complete::config))]
    pub(crate) path: PathBuf,
    /// Override a setting: `--set model.n_heads=1` (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE", add = ArgValueCompleter::new(complete::setting))]
    pub(crate) overrides: Vec<String>,
}

/// The directory of a run.
#[derive(Args, Debug)]
pub(crate) struct RunPath {
    /// The directory of a run
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(complete::run))]
    pub(crate) path: PathBuf,
}

/// A trained run.
#[derive(Args, Debug)]
pub(crate) struct TrainedRun {
    /// The directory of a run
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(complete::run))]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) weights: Weights,
}

/// How a table of texts with labels is read: its columns, where they are not to be found by their names.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TextColumns {
    /// The column or field of the text [default: found by its name or content]
    #[arg(long, value_name = "COLUMN", requires = "data")]
    pub(crate) text: Option<String>,
    /// The column or field of the second text of a pair
    #[arg(long, value_name = "COLUMN", requires = "data")]
    pub(crate) text_pair: Option<String>,
    /// The column or field of the label
    #[arg(long, value_name = "COLUMN", requires = "data")]
    pub(crate) label: Option<String>,
    /// Leave out rows that are no text with its label, and tell which
    #[arg(long, requires = "data")]
    pub(crate) skip_broken: bool,
}

impl TextColumns {
    pub(crate) fn columns(&self) -> Columns {
        let Self { text, text_pair, label, .. } = self.clone();
        Columns { text, text_pair, label }
    }
}

/// A trained model: a run or a folder.
#[derive(Args, Debug)]
pub(crate) struct Model {
    /// A run, a checkpoint, an exported folder, a Hugging Face folder, or the name of a model in Hugging Face's cache
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(complete::run))]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) weights: Weights,
}

/// The weights of a model, and the device that they are loaded to.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// Checkpoint of the run: latest, best, or a step [default: `checkpoint.select` of the run]
    #[arg(long)]
    pub(crate) checkpoint: Option<Selection>,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
}

/// The number format that a trained model computes in.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Computation {
    /// Number format: f32, tf32 (GPUs only), bf16 (GPUs, and CPUs with bf16 instructions), or int8 (CPUs): linear maps on
    /// integers of 8 bits
    #[arg(long, value_parser = product_precision, default_value = "f32")]
    pub(crate) precision: ProductPrecision,
}

/// Parses the number format of a trained model.
pub(crate) fn product_precision(text: &str) -> Result<ProductPrecision, String> {
    one_of(&ProductPrecision::ALL, ProductPrecision::name, text)
}

/// Parses a number format, `training.precision`.
pub(crate) fn precision(text: &str) -> Result<Precision, String> {
    named(text)
}

/// Parses the name of a value.
pub(crate) fn named<T: Named>(text: &str) -> Result<T, String> {
    one_of(T::ALL, T::name, text)
}

/// The value among `all` that has the name `text`.
fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str, text: &str) -> Result<T, String> {
    all.iter().find(|value| name(**value) == text).copied().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|value| name(*value)).collect();
        format!("expected one of: {}", names.join(", "))
    })
}

/// Parses an integer of at least 1.
pub(crate) fn positive<T: FromStr + Default + PartialOrd>(text: &str) -> Result<T, String> {
    let number = text.parse::<T>().ok().filter(|number| *number > T::default());
    number.ok_or_else(|| "expected a positive integer".to_owned())
}

/// Parses a finite number.
pub(crate) fn finite(text: &str) -> Result<f32, String> {
    number(text, f64::is_finite, "a number").map(|number| number as f32)
}

/// Parses a finite number, 0 or more.
pub(crate) fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number.is_finite() && number >= 0., "a number, 0 or more")
}

/// Parses a fraction in (0, 1].
pub(crate) fn positive_share(text: &str) -> Result<f64, String> {
    number(text, |share| share > 0. && share <= 1., "a number above 0 and at most 1")
}

/// Parses a fraction in [0, 1].
pub(crate) fn share(text: &str) -> Result<f64, String> {
    number(text, |share| (0. ..=1.).contains(&share), "a number from 0 to 1")
}

/// Parses a number that `is_valid` accepts; the error describes this rule by `what`.
pub(crate) fn number(
    text: &str,
    is_valid: impl FnOnce(f64) -> bool,
    what: &str,
) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| is_valid(*number));
    number.ok_or_else(|| format!("expected {what}"))
}

/// The most repeats of a measurement. The limit keeps a typing error from exhausting memory.
const MAX_REPEATS: usize = 1_000_000;

/// Parses a number of repeats.
pub(crate) fn repeats(text: &str) -> Result<usize, String> {
    integer(text, 1..=MAX_REPEATS)
}

/// Parses a number of steps before a measurement.
pub(crate) fn warm_up_steps(text: &str) -> Result<usize, String> {
    integer(text, 0..=MAX_REPEATS)
}

/// Parses a number of threads or of parallel texts. The upper limit keeps a typing error from exhausting the machine.
pub(crate) fn parallelism(text: &str) -> Result<usize, String> {
    integer(text, 1..=1024)
}

/// Parses an integer within these limits.
fn integer(text: &str, limits: RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| limits.contains(number));
    let (first, last) = limits.into_inner();
    number.ok_or_else(|| format!("expected an integer from {first} to {last}"))
}

/// Parses a finite number of seconds, 0 or more.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    number(text, |seconds| seconds.is_finite() && seconds >= 0., "seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_within_their_range() {
        assert_eq!(positive::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(positive::<usize>("1"), Ok(1));
        for text in ["0", "-1", "1.5", "x", "", "18446744073709551616"] {
            let refused = Err("expected a positive integer".to_owned());
            assert_eq!(positive::<u64>(text), refused, "{text}");
        }
        assert_eq!((not_negative("0"), not_negative("2.5")), (Ok(0.), Ok(2.5)));
        for text in ["-1", "nan", "inf", "x"] {
            assert!([not_negative, positive_share, share].iter().all(|parse| parse(text).is_err()));
        }
        assert_eq!((positive_share("1"), share("1")), (Ok(1.), Ok(1.)));
        assert!(positive_share("0").is_err() && positive_share("1.1").is_err());
        assert!(share("0").is_ok() && share("1.1").is_err());
        assert_eq!(repeats("1000000"), Ok(1_000_000));
        assert!(repeats("0").is_err() && repeats("1000001").is_err());
    }
}
