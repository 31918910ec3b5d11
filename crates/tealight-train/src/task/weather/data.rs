//! The examples of both splits: drawn, or from a file.

use tealight_ops::rng::{Purpose, Stream};

use super::config::{Config, Fixed, Fresh, Regime};
use crate::checks::{at_most, given, positive};
use crate::data::fingerprint::fnv_1a;
use crate::data::weather::source::{FileConfig, SourceConfig};
use crate::data::weather::{self, Examples, Generator};
use crate::data::{DataFile, ShuffledOrder};
use crate::error::{Error, Result};

/// Examples drawn where the settings give no number: as many as were published.
pub(super) const N_EXAMPLES: usize = 5000;

/// The most days in all examples together: 1 GiB.
const MAX_DAYS: u64 = 1 << 30;

/// The weather of a run.
#[derive(Debug)]
pub(super) struct Data {
    /// The rule that draws it; `None` if it comes from a file.
    pub(super) generator: Option<Box<dyn Generator>>,
    pub(super) train: TrainingData,
    pub(super) validation: Examples,
    /// The file that it comes from; `None` if a rule draws it.
    pub(super) file: Option<DataFile>,
}

/// The training split: new samples in every batch, or a fixed set.
#[derive(Debug)]
pub(super) enum TrainingData {
    Fresh(Stream),
    Fixed { examples: Examples, order: ShuffledOrder },
}

impl Data {
    /// Draws or reads the weather of `config`. With `is_test`, all examples of its file are held out.
    pub(super) fn new(config: &Config, seed: u64, is_test: bool) -> Result<Self> {
        let Some(generator) = config.source.build()? else {
            return Self::read(config, seed, is_test);
        };
        let (train, validation) = drawn(config, generator.as_ref(), seed)?;
        Ok(Self { generator: Some(generator), train, validation, file: None })
    }

    /// Reads the weather from a file.
    fn read(config: &Config, seed: u64, is_test: bool) -> Result<Self> {
        let (SourceConfig::File(FileConfig { path }), Regime::Examples(fixed)) =
            (&config.source, &config.regime)
        else {
            unreachable!("invariant: `validate` refuses fresh samples of a file");
        };
        given("task.source.path", path, "the file with the weather")?;
        let sequences = weather::read(path, config.window + 1)?;
        let all = Examples::cut(&sequences, config.window);
        let n = fixed.n.unwrap_or(all.len());
        if n > all.len() {
            let message =
                format!("`task.regime.n` = {n}, but the file holds {} examples", all.len());
            return Err(Error::config(["task.regime.n", "task.source.path"], message));
        }
        let (train, validation) = if is_test {
            let order = ShuffledOrder::new(seed, all.len());
            (TrainingData::Fixed { examples: all.clone(), order }, all)
        } else {
            split(&all.select(0..n), fixed, seed)?
        };
        let file = DataFile::new("task.source.path", path, fingerprint(&sequences));
        Ok(Self { generator: None, train, validation, file: Some(file) })
    }
}

/// Forks of the random stream for both splits.
const TRAIN: u64 = 0;
const VALIDATION: u64 = 1;

fn drawn(
    config: &Config,
    generator: &dyn Generator,
    seed: u64,
) -> Result<(TrainingData, Examples)> {
    generator.check_window(config.window)?;
    let stream = Stream::new(seed, Purpose::Data);
    let max_examples = MAX_DAYS / (config.window as u64 + 1);
    let sample = |n, stream| Examples::sample(generator, config.window, n, stream);
    match &config.regime {
        Regime::Fresh(Fresh { n_validation }) => {
            positive("task.regime.n_validation", *n_validation)?;
            at_most("task.regime.n_validation", *n_validation as u64, max_examples)?;
            let validation = sample(*n_validation, stream.fork(VALIDATION));
            Ok((TrainingData::Fresh(stream.fork(TRAIN)), validation))
        }
        Regime::Examples(fixed) => {
            let n = fixed.n.unwrap_or(N_EXAMPLES);
            at_most("task.regime.n", n as u64, max_examples)?;
            let all = sample(n, stream.fork(TRAIN));
            split(&all, fixed, seed)
        }
    }
}

/// A hash of the days and of the ends of sequences, but not of comments and blank lines.
fn fingerprint(sequences: &[Vec<u8>]) -> u64 {
    const END: u8 = u8::MAX;
    let bytes = sequences.iter().flat_map(|days| days.iter().copied().chain([END]));
    fnv_1a(bytes)
}

fn split(all: &Examples, fixed: &Fixed, seed: u64) -> Result<(TrainingData, Examples)> {
    let (n, n_validation) = (all.len(), fixed.n_validation);
    positive("task.regime.n_validation", n_validation)?;
    if n_validation >= n {
        let message = format!(
            "`task.regime.n_validation` = {n_validation} leaves nothing to train on: \
             there are {n} examples"
        );
        return Err(Error::config(["task.regime.n_validation", "task.regime.n"], message));
    }
    let n_train = n - n_validation;
    let order = ShuffledOrder::new(seed, n_train);
    let examples = all.select(0..n_train);
    Ok((TrainingData::Fixed { examples, order }, all.select(n_train..n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_changed_has_another_fingerprint_unless_only_comments_did() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = Config {
            window: 2,
            source: SourceConfig::File(FileConfig { path: file.path().to_owned() }),
            regime: Regime::Examples(Fixed { n: None, n_validation: 1 }),
            ..Config::default()
        };
        let fingerprint = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            Data::new(&config, 17, false).unwrap().file.unwrap().fingerprint
        };
        let before = fingerprint("RCSRC\n");
        assert_eq!(fingerprint("# the same\n\nRCSRC # days\n"), before);
        assert_ne!(fingerprint("RCSRR\n"), before);
        assert!(Data::new(&Config::default(), 17, false).unwrap().file.is_none());
    }

    #[test]
    fn a_fingerprint_is_fnv_1a_of_the_days_and_where_they_are_split() {
        // FNV-1a of the single byte 255, by hand: (offset ⊕ 255) · prime mod 2⁶⁴.
        let by_hand = (0xcbf2_9ce4_8422_2325_u64 ^ 255).wrapping_mul(1_099_511_628_211);
        assert_eq!(fingerprint(&[vec![]]), by_hand);
        let all = [
            fingerprint(&[vec![0, 1, 2]]),
            fingerprint(&[vec![0, 1], vec![2]]),
            fingerprint(&[vec![0, 1, 1]]),
            fingerprint(&[vec![0, 1, 2], vec![]]),
        ];
        assert!((0..4).all(|i| !all[..i].contains(&all[i])), "{all:?}");
    }
}
