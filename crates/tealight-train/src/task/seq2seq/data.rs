//! The pairs of both splits.
//!
//! A drawn pair is assigned to a split by a hash of the part that identifies it (`PairSource::essence`: the date,
//! whatever its written form; otherwise the source). No date or source of the validation split therefore occurs in
//! training. The sources of a file are shuffled with the seed, and the first of them are held out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tealight_ops::rng::{Purpose, Stream};

use super::config::{Config, SourceConfig};
use super::pairs::dates::Dates;
use super::pairs::file::{self, FileConfig, Rule};
use super::pairs::{Pair, PairSource};
use crate::checks::given;
use crate::data::fingerprint::fnv_1a;
use crate::data::{DataFile, ShuffledOrder, Split};
use crate::error::{Error, Result};
use crate::inference::symbols::{Level, Vocabulary};

/// The pairs of a run.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) train: Training,
    pub(super) validation: Vec<Pair>,
    /// The file that the pairs come from; `None` if they are drawn.
    pub(super) file: Option<DataFile>,
    /// What a user should know about it, a line each.
    pub(super) notes: Vec<String>,
}

/// The training split.
#[derive(Debug)]
pub(super) enum Training {
    /// New pairs in every batch.
    Drawn { source: Box<dyn PairSource>, stream: Stream },
    /// The pairs of a file.
    Fixed { pairs: Vec<Pair>, order: ShuffledOrder },
}

/// Forks of the random stream for both splits.
const TRAIN: u64 = 0;
const VALIDATION: u64 = 1;

/// One pair in so many is held out.
const HELD_OUT: u64 = 16;
/// The most draws for one pair of a split. Among many pairs, all fail with probability (15/16)²⁰⁰⁰ < 10⁻⁵⁵.
const MAX_DRAWS: u64 = 2000;

impl Data {
    /// Draws or reads the pairs of `config`, with their vocabulary.
    pub(super) fn new(config: &Config, seed: u64) -> Result<(Self, Vocabulary)> {
        match &config.source {
            SourceConfig::Reverse(reverse) => drawn(config, Box::new(reverse.build()), seed),
            SourceConfig::Sort(sort) => drawn(config, Box::new(sort.build()), seed),
            SourceConfig::Dates => drawn(config, Box::new(Dates), seed),
            SourceConfig::File(file) => read(config, file, seed),
        }
    }

    /// The pairs of the file at `path` as both splits, for a model with this vocabulary.
    pub(super) fn to_test(config: &Config, path: &Path, vocabulary: &Vocabulary) -> Result<Self> {
        let max_lens = config.source.max_lens();
        let limit = "the model is built for at most";
        let skip_broken =
            matches!(&config.source, SourceConfig::File(FileConfig { skip_broken: true, .. }));
        let rule = Rule { level: vocabulary.level, max_lens, limit, skip_broken };
        let (validation, notes) =
            file::read(path, &rule, |text| vocabulary.encode(text).map(drop))?;
        if validation.is_empty() {
            return Err(Error::input(format!("`{}` holds no pair", path.display())));
        }
        let order = ShuffledOrder::new(0, validation.len());
        let train = Training::Fixed { pairs: validation.clone(), order };
        Ok(Self { train, validation, file: None, notes })
    }
}

impl Training {
    /// The pairs at places `start..start + n`, which make batch `index`.
    pub(super) fn pairs(&self, index: u64, n: usize) -> Result<Vec<Pair>> {
        match self {
            Self::Drawn { source, stream } => {
                let stream = stream.fork(index);
                let pair = |row| draw(source.as_ref(), Split::Train, stream.fork(row));
                (0..n as u64).map(pair).collect()
            }
            Self::Fixed { pairs, order } => {
                let chosen = order.examples(index * n as u64, n);
                Ok(chosen.into_iter().map(|at| pairs[at].clone()).collect())
            }
        }
    }
}

/// Draws a pair of a split.
fn draw(source: &dyn PairSource, split: Split, stream: Stream) -> Result<Pair> {
    let of_split = |pair: &Pair| is_held_out(source.essence(pair)) == (split == Split::Validation);
    let mut draws = (0..MAX_DRAWS).map(|attempt| source.draw(stream.fork(attempt)));
    draws.find(of_split).ok_or_else(|| match split {
        Split::Train => too_few("all are held out"),
        Split::Validation => too_few("none is held out"),
    })
}

/// A pure function of the text. A plain FNV-1a would not do: the last bytes of the text determine its lowest
/// bits, so texts with different endings would not be spread evenly.
fn is_held_out(essence: &str) -> bool {
    Stream::new(0, Purpose::Data).fork_name(essence).below(0, HELD_OUT) == 0
}

fn too_few(what: &str) -> Error {
    let message = format!("`task.source` has too few different pairs: {what}");
    Error::config(["task.source"], message)
}

fn drawn(config: &Config, source: Box<dyn PairSource>, seed: u64) -> Result<(Data, Vocabulary)> {
    let stream = Stream::new(seed, Purpose::Data);
    let n = config.n_validation;
    let mut validation = BTreeSet::new();
    let mut in_order = Vec::with_capacity(n);
    for index in 0..4 * n as u64 {
        let pair = draw(source.as_ref(), Split::Validation, stream.fork(VALIDATION).fork(index))?;
        if validation.insert(pair.source.clone()) {
            in_order.push(pair);
        }
        if in_order.len() == n {
            break;
        }
    }
    if in_order.len() < n {
        let held_out = in_order.len();
        return Err(too_few(&format!("{held_out} are held out, and `task.n_validation` = {n}")));
    }
    let alphabet: String = source.alphabet().into_iter().collect();
    let vocabulary = Vocabulary::from_texts(Level::Characters, [alphabet.as_str()]);
    let train = Training::Drawn { source, stream: stream.fork(TRAIN) };
    Ok((Data { train, validation: in_order, file: None, notes: Vec::new() }, vocabulary))
}

fn read(config: &Config, settings: &FileConfig, seed: u64) -> Result<(Data, Vocabulary)> {
    let FileConfig { path, level, max_len, skip_broken } = settings;
    let (level, skip_broken, max_lens) = (*level, *skip_broken, (*max_len, *max_len));
    given("task.source.path", path, "the file with the pairs")?;
    let rule = Rule { level, max_lens, limit: "`task.source.max_len` =", skip_broken };
    let (pairs, notes) = file::read(path, &rule, |_| Ok(()))?;
    let bytes = pairs.iter().flat_map(|Pair { source, target }| {
        source.bytes().chain([b'\t']).chain(target.bytes()).chain([b'\n'])
    });
    let file = DataFile::new("task.source.path", &settings.path, fnv_1a(bytes));
    let texts = pairs.iter().flat_map(|pair| [pair.source.as_str(), pair.target.as_str()]);
    let vocabulary = Vocabulary::from_texts(settings.level, texts);

    let mut by_source: BTreeMap<&str, BTreeSet<&Pair>> = BTreeMap::new();
    for pair in &pairs {
        by_source.entry(&pair.source).or_default().insert(pair);
    }
    let (n, n_validation) = (by_source.len(), config.n_validation);
    if n_validation >= n {
        let message = format!(
            "`task.n_validation` = {n_validation} leaves nothing to train on: `{}` has {n} different \
             sources",
            settings.path.display()
        );
        return Err(Error::config(["task.n_validation", "task.source.path"], message));
    }
    let groups: Vec<_> = by_source.into_values().collect();
    let order = Stream::new(seed, Purpose::Data).permutation(n);
    let of = |places: &[usize]| -> Vec<Pair> {
        places.iter().flat_map(|&at| groups[at].iter().map(|&pair| pair.clone())).collect()
    };
    let (held_out, rest) = order.split_at(n_validation);
    let pairs = of(rest);
    let order = ShuffledOrder::new(seed, pairs.len());
    let train = Training::Fixed { pairs, order };
    Ok((Data { train, validation: of(held_out), file: Some(file), notes }, vocabulary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::seq2seq::pairs::symbols::Reverse;

    fn reverse(reverse: Reverse, n_validation: usize) -> Result<Data> {
        let source = SourceConfig::Reverse(reverse);
        let config = Config { n_validation, source, ..Config::default() };
        Ok(Data::new(&config, 17)?.0)
    }

    #[test]
    fn no_source_that_is_held_out_is_trained_on() {
        for source in [SourceConfig::Dates, SourceConfig::default()] {
            let config = Config { source, n_validation: 300, ..Config::default() };
            let (data, _) = Data::new(&config, 17).unwrap();
            let essence = |pair: &Pair| match config.source {
                SourceConfig::Dates => pair.target.clone(),
                _ => pair.source.clone(),
            };
            let held_out: BTreeSet<String> = data.validation.iter().map(essence).collect();
            let sources: BTreeSet<&str> =
                data.validation.iter().map(|pair| pair.source.as_str()).collect();
            assert_eq!(sources.len(), 300, "no source is asked for twice");
            for index in 0..50 {
                let pairs = data.train.pairs(index, 64).unwrap();
                assert!(pairs.iter().all(|pair| !held_out.contains(&essence(pair))));
            }
        }
    }

    /// Regression test: an earlier hash held out whole months of dates, and no source of three letters.
    #[test]
    fn the_split_does_not_depend_on_how_a_text_begins() {
        for beginning in ["", "2021-03-", "abcdefghij"] {
            let texts = (0..1000).map(|ending| format!("{beginning}{ending:03}"));
            let n = texts.filter(|text| is_held_out(text)).count();
            assert!((40..90).contains(&n), "{n} of 1000 behind {beginning:?}");
        }
    }

    #[test]
    fn a_batch_is_a_function_of_seed_and_index() {
        let first = reverse(Reverse::default(), 10).unwrap();
        let again = reverse(Reverse::default(), 10).unwrap();
        assert_eq!(first.train.pairs(3, 8).unwrap(), again.train.pairs(3, 8).unwrap());
        assert_ne!(first.train.pairs(3, 8).unwrap(), first.train.pairs(4, 8).unwrap());
        assert_eq!(first.validation, again.validation);
    }

    #[test]
    fn a_rule_with_too_few_pairs_is_refused() {
        let few = Reverse { n_symbols: 2, min_length: 1, length: 3 };
        let message = reverse(few, 10).unwrap_err().to_string();
        assert!(message.contains("`task.source` has too few different pairs"), "{message}");
    }

    #[test]
    fn a_source_of_a_file_is_on_one_side_with_all_its_targets() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |n: usize| format!("{}\t{n}\n", n / 2);
        let text: String = (0..40).map(line).chain((0..5).map(line)).collect();
        std::fs::write(file.path(), text).unwrap();
        let source = SourceConfig::File(FileConfig {
            path: file.path().to_owned(),
            ..FileConfig::default()
        });
        let config = Config { source, n_validation: 6, ..Config::default() };
        let data = |seed| Data::new(&config, seed).unwrap();
        let (Data { train, validation, file: hashed, .. }, vocabulary) = data(17);
        let Training::Fixed { pairs, .. } = train else { panic!("a file") };
        assert_eq!((pairs.len(), validation.len()), (28, 12));
        let sources =
            |pairs: &[Pair]| pairs.iter().map(|pair| pair.source.clone()).collect::<BTreeSet<_>>();
        assert!(sources(&pairs).is_disjoint(&sources(&validation)));
        assert_eq!(vocabulary.size(), 3 + 10);
        assert_eq!(hashed, data(18).0.file);
        assert_ne!(validation, data(18).0.validation);
        let all = Config { n_validation: 20, ..config };
        let message = Data::new(&all, 17).unwrap_err().to_string();
        assert!(
            message.contains("leaves nothing to train on") && message.contains("20 different"),
            "{message}"
        );
    }
}
