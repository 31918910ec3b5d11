//! The parts of the examples of a file: those to train on, those for validation and those for a test.
//!
//! ```text
//! path ─┬─ test          the share `test` of its examples
//!       ├─ validation    the share `validation` of the rest, or all of `validation_path`
//!       └─ training      the others
//! ```
//!
//! The examples of a test are the same ones however the rest is divided: a model that was trained on the other parts has
//! read none of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tealight_ops::rng::{Purpose, Stream};

use super::settings::must_differ;
use super::table::thousands;
use crate::checks::{check, given, share, share_or_none};
use crate::data::DataFile;
use crate::error::{Error, Result};

/// The setting of the file.
pub(super) const PATH: &str = "task.data.path";
/// The setting of the share for validation.
pub(super) const VALIDATION: &str = "task.data.validation";
/// The setting of the file for validation.
pub(super) const VALIDATION_PATH: &str = "task.data.validation_path";
/// The setting of the share for a test.
pub(super) const TEST: &str = "task.data.test";
/// The setting of the file for a test.
const TEST_DATA: &str = "training.test_data";
const GENERATED: &str = "task.data.generated";
const N_GENERATED: &str = "task.data.n_generated";
/// The fewest and the most examples that are drawn.
const DRAWN: [usize; 2] = [10, 1 << 22];

/// What `[task.data]` says of files and shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    pub(super) path: &'a Path,
    pub(super) validation_path: Option<&'a Path>,
    pub(super) validation: f64,
    /// 0: no test.
    pub(super) test: f64,
}

/// The examples of a file.
#[derive(Clone, Debug)]
pub(super) struct Read<T, F = ()> {
    /// In the order of the file.
    pub(super) all: Vec<T>,
    /// What holds for all of them.
    pub(super) form: F,
    /// What a user should know about how they were read, a line each.
    pub(super) notes: Vec<String>,
}

/// Where a task reads its examples.
pub(super) trait Source {
    /// The name of the task: the examples of shares depend on it.
    const TASK: &'static str;
    /// What the examples are called.
    const EXAMPLES: &'static str;
    /// What decides the part of an example besides chance, where that may leave a part empty.
    const RULE: &'static str = "";
    /// An example.
    type Example: Clone;
    /// What holds for all examples of a file.
    type Form: Copy;

    /// The files and shares.
    fn files(&self) -> Files<'_>;

    /// Reads the file at `path`, which the setting `key` names.
    fn read(&self, key: &'static str, path: &Path) -> Result<Read<Self::Example, Self::Form>>;

    /// The file with the fingerprint of its examples.
    fn fingerprint(&self, key: &str, path: &Path, examples: &[Self::Example]) -> DataFile;

    /// For each example whether it is in the `share` that is held out.
    fn held_out(&self, examples: &[Self::Example], share: f64, stream: Stream) -> Vec<bool>;

    /// What two examples have in common that are copies of each other; `None` if the task finds copies itself.
    fn identity(&self, _example: &Self::Example) -> Option<String> {
        None
    }
}

/// The examples to train on and those that are held out.
#[derive(Debug)]
pub(super) struct Parts<T, F = ()> {
    pub(super) train: Vec<T>,
    pub(super) validation: Vec<T>,
    /// Of the files of both.
    pub(super) forms: [F; 2],
    pub(super) files: Vec<DataFile>,
    /// What a user should know about how they were read, a line each.
    pub(super) notes: Vec<String>,
}

impl<T, F: Copy> Parts<T, F> {
    /// Of examples that are in no file.
    pub(super) fn drawn(train: Vec<T>, validation: Vec<T>, form: F) -> Self {
        let (files, notes) = (Vec::new(), Vec::new());
        Self { train, validation, forms: [form; 2], files, notes }
    }
}

/// Reads the examples of `source` and divides them.
///
/// # Errors
/// If a file cannot be read, or if a part has no example.
pub(super) fn parts<S: Source>(source: &S, seed: u64) -> Result<Parts<S::Example, S::Form>> {
    let Files { path, validation_path, .. } = source.files();
    let Read { all, form, mut notes } = source.read(PATH, path)?;
    let mut files = vec![source.fingerprint(PATH, path, &all)];
    let n = all.len() as u64;
    let [all, tested] = without_test(source, all, seed)?;
    if !tested.is_empty() {
        let (tested, n) = (thousands(tested.len() as u64), thousands(n));
        notes.push(format!("{tested} of {n} {} are held out for a test", S::EXAMPLES));
    }
    let Some(other) = validation_path else {
        let [train, validation] = without_validation(source, all, seed)?;
        return Ok(Parts { train, validation, forms: [form; 2], files, notes });
    };
    must_differ(path, other)?;
    let held_out = source.read(VALIDATION_PATH, other)?;
    files.push(source.fingerprint(VALIDATION_PATH, other, &held_out.all));
    let mut others = held_out.notes;
    others.retain(|note| !notes.contains(note));
    notes.extend(others);
    notes.extend(in_both(source, &all, &held_out.all));
    let forms = [form, held_out.form];
    Ok(Parts { train: all, validation: held_out.all, forms, files, notes })
}

/// Reads the examples to test a trained model on, which are `validation`: those of the share for a test. The baselines learn
/// from `train`, which the model was trained on. Without such a share, both are all examples of the file.
///
/// # Errors
/// If the file cannot be read, or if a share has no example.
pub(super) fn test_parts<S: Source>(source: &S, seed: u64) -> Result<Parts<S::Example, S::Form>> {
    let Files { path, validation_path, test, .. } = source.files();
    let Read { all, form, notes } = source.read(PATH, path)?;
    let files = vec![source.fingerprint(PATH, path, &all)];
    let [train, validation] = if test == 0. {
        [all.clone(), all]
    } else {
        let [rest, tested] = without_test(source, all, seed)?;
        let train = if validation_path.is_some() {
            rest
        } else {
            let [train, _] = without_validation(source, rest, seed)?;
            train
        };
        [train, tested]
    };
    Ok(Parts { train, validation, forms: [form; 2], files, notes })
}

/// The examples to train on and those of the share for validation, of those that are for no test.
fn without_validation<S: Source>(
    source: &S,
    examples: Vec<S::Example>,
    seed: u64,
) -> Result<[Vec<S::Example>; 2]> {
    let share = (VALIDATION, source.files().validation);
    divided(source, examples, share, "validation", stream(S::TASK, seed))
}

/// The examples of no test, and those of the share that is for one.
fn without_test<S: Source>(
    source: &S,
    examples: Vec<S::Example>,
    seed: u64,
) -> Result<[Vec<S::Example>; 2]> {
    let Files { test, .. } = source.files();
    if test == 0. {
        return Ok([examples, Vec::new()]);
    }
    divided(source, examples, (TEST, test), "a test", stream(S::TASK, seed).fork_name("test"))
}

/// The examples to train on and those that the share of the setting `key` holds out for `purpose`, in the order of the
/// file.
fn divided<S: Source>(
    source: &S,
    examples: Vec<S::Example>,
    (key, share): (&str, f64),
    purpose: &str,
    stream: Stream,
) -> Result<[Vec<S::Example>; 2]> {
    let n = examples.len();
    let mut is_held_out = source.held_out(&examples, share, stream).into_iter();
    let (held_out, train): (Vec<_>, Vec<_>) =
        examples.into_iter().partition(|_| is_held_out.next().expect("invariant: one for each"));
    if !train.is_empty() && !held_out.is_empty() {
        return Ok([train, held_out]);
    }
    let other = if key == TEST { TEST_DATA } else { VALIDATION_PATH };
    let test = source.files().test;
    let beside = if key == VALIDATION && test > 0. {
        format!(", beside those of `{TEST}` = {test}")
    } else {
        String::new()
    };
    let message = format!(
        "`{key}` = {share} leaves {} of {n} {} to train on and {} for {purpose}{beside}{}: `{other}` names a file of others",
        train.len(),
        S::EXAMPLES,
        held_out.len(),
        S::RULE
    );
    Err(Error::config([key, other], message))
}

/// By which examples are held out.
fn stream(task: &str, seed: u64) -> Stream {
    Stream::new(seed, Purpose::Data).fork_name(task)
}

/// How many examples of `held_out` are to train on, too.
fn in_both<S: Source>(source: &S, train: &[S::Example], held_out: &[S::Example]) -> Option<String> {
    let identity = |example| source.identity(example);
    let trained: BTreeSet<String> = train.iter().filter_map(identity).collect();
    let n = held_out.iter().filter_map(identity).filter(|one| trained.contains(one)).count();
    (n > 0).then(|| {
        let n = thousands(n as u64);
        format!("{n} {} of `{VALIDATION_PATH}` are in `{PATH}`, too", S::EXAMPLES)
    })
}

impl<'a> Files<'a> {
    /// `path` and `validation_path` with their shares.
    pub(super) fn new(
        path: &'a Path,
        validation_path: Option<&'a PathBuf>,
        validation: f64,
        test: f64,
    ) -> Self {
        Self { path, validation_path: validation_path.map(PathBuf::as_path), validation, test }
    }

    /// The share that is held out for a test, and its file.
    pub(super) fn test_share(&self) -> Option<(&'a Path, f64)> {
        (self.test > 0.).then_some((self.path, self.test))
    }

    /// Checks the shares.
    pub(super) fn check_shares(&self) -> Result<()> {
        share(VALIDATION, self.validation)?;
        share_or_none(TEST, self.test)
    }

    /// Checks the shares and the file, which is `what`.
    pub(super) fn check(&self, what: &str) -> Result<()> {
        given(PATH, self.path, what)?;
        self.check_shares()
    }

    /// Checks the shares, and that either the file, which is `what`, has the `examples`, or they are drawn, as many as
    /// `n_generated`.
    pub(super) fn check_generated(
        &self,
        (is_generated, n_generated): (bool, usize),
        examples: &str,
        what: &str,
    ) -> Result<()> {
        let has_path = !self.path.as_os_str().is_empty();
        if !is_generated {
            given(PATH, self.path, what)?;
        } else if has_path {
            let message = format!(
                "`{PATH}` and `{GENERATED}` are both set: the {examples} come from one of them"
            );
            return Err(Error::config([PATH, GENERATED], message));
        } else if self.validation_path.is_some() || self.test > 0. {
            let key = if self.test > 0. { TEST } else { VALIDATION_PATH };
            let message =
                format!("`{GENERATED}` holds out {examples} of its own: leave out `{key}`");
            return Err(Error::config([key], message));
        }
        let [fewest, most] = DRAWN;
        let is_drawable = |n: usize| (fewest..=most).contains(&n);
        let rule = format!("must be from {fewest} to {most}");
        check(N_GENERATED, n_generated, is_drawable, &rule)?;
        self.check_shares()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred numbers of a file, and twenty others of another one.
    struct Numbers {
        validation_path: Option<PathBuf>,
        validation: f64,
        test: f64,
    }

    impl Source for Numbers {
        const TASK: &'static str = "numbers";
        const EXAMPLES: &'static str = "numbers";
        type Example = u64;
        type Form = ();

        fn files(&self) -> Files<'_> {
            let Self { validation_path, validation, test } = self;
            Files::new(Path::new("numbers"), validation_path.as_ref(), *validation, *test)
        }

        fn read(&self, key: &'static str, _path: &Path) -> Result<Read<u64>> {
            let all = if key == PATH { (0..100).collect() } else { (95..115).collect() };
            Ok(Read { all, form: (), notes: vec!["both files are read".to_owned()] })
        }

        fn fingerprint(&self, key: &str, path: &Path, examples: &[u64]) -> DataFile {
            DataFile::new(key, path, examples.iter().sum())
        }

        fn held_out(&self, examples: &[u64], share: f64, stream: Stream) -> Vec<bool> {
            examples.iter().map(|&number| stream.uniform(number) < share).collect()
        }

        fn identity(&self, number: &u64) -> Option<String> {
            Some(number.to_string())
        }
    }

    fn numbers(validation: f64, test: f64) -> Numbers {
        Numbers { validation_path: None, validation, test }
    }

    #[test]
    fn the_parts_are_the_file_and_the_test_does_not_depend_on_the_rest() {
        let of = |validation: f64| {
            let source = numbers(validation, 0.25);
            let Parts { train, validation, .. } = parts(&source, 17).unwrap();
            let test = test_parts(&source, 17).unwrap();
            assert_eq!(test.train, train, "baselines learn from what the model does");
            let mut all = [&train[..], &validation, &test.validation].concat();
            all.sort_unstable();
            assert_eq!(all, (0..100).collect::<Vec<_>>());
            (test.validation, validation.len())
        };
        let ((test, few), (same, many)) = (of(0.1), of(0.5));
        assert_eq!(test, same);
        assert!((10..40).contains(&test.len()) && few < many, "{} {few} {many}", test.len());
        let without = test_parts(&numbers(0.1, 0.), 17).unwrap();
        assert_eq!(without.validation.len(), 100, "all of a file for a test");
        assert_eq!(without.train, without.validation);
    }

    #[test]
    fn a_file_for_validation_is_whole_and_what_both_have_is_told() {
        let validation_path = Some("others".into());
        let source = Numbers { validation_path, ..numbers(0.1, 0.25) };
        let Parts { train, validation, files, notes, .. } = parts(&source, 17).unwrap();
        let test = test_parts(&source, 17).unwrap().validation;
        assert_eq!((train.len() + test.len(), validation.len(), files.len()), (100, 20, 2));
        let shared = train.iter().filter(|number| **number >= 95).count();
        let told = format!("{shared} numbers of `{VALIDATION_PATH}` are in `{PATH}`, too");
        let tested = format!("{} of 100 numbers are held out for a test", test.len());
        assert_eq!(notes, ["both files are read".to_owned(), tested, told]);
    }

    #[test]
    fn a_part_without_examples_is_refused_with_what_to_do() {
        let fault = |source: Numbers| parts(&source, 17).unwrap_err().to_string();
        let expected = "`task.data.validation` = 0.0001 leaves 100 of 100 numbers to train on and 0 for validation: \
                        `task.data.validation_path` names a file of others";
        assert_eq!(fault(numbers(0.0001, 0.)), expected);
        let message = fault(numbers(0.1, 0.9999));
        assert!(
            message.ends_with("100 for a test: `training.test_data` names a file of others"),
            "{message}"
        );
    }
}
