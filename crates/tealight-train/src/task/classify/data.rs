//! The texts of both splits as token ids, each with its target.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;
use tealight_ops::rng::Stream;

use super::config::{Config, DataConfig};
use super::file::{Example, Label, read};
use super::linear::Texts;
use super::remarks::{counted, counts, remarks};
use crate::data::DataFile;
use crate::data::fingerprint::fnv_1a;
use crate::data::shown::on_one_line;
use crate::data::table::listed;
use crate::error::{Error, Result};
use crate::inference::labels::{Labels, Objective};
use crate::inference::text_classifier::encoder::{Encoder, Tokens};
use crate::task::parts::{Files, PATH, Parts, Read, Source, parts, test_parts};
use crate::task::table::thousands;
use crate::task::text::{kept_or_trained, tokenizer_file};

/// What the model should predict for a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    Class(u32),
    /// For each label whether the text has it.
    Labels(Vec<bool>),
    Number(f64),
}

/// A text and its target.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) tokens: Tokens,
    pub(super) target: Target,
}

/// The items of both splits, their labels and the tokenizer.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) train: Vec<Item>,
    /// Longest first, so that a batch holds little padding.
    pub(super) validation: Vec<Item>,
    /// The texts of the latter, in the same order.
    pub(super) held_out: Vec<Example>,
    pub(super) labels: Labels,
    pub(super) encoder: Encoder,
    /// The files of the texts and of the tokenizer.
    pub(super) files: Vec<DataFile>,
    /// What a user should know about the texts, a line each.
    pub(super) remarks: Vec<String>,
    /// What the linear baseline reads, if it is trained on other texts than it is scored on, and learns classes.
    pub(super) texts: Option<Texts>,
}

impl Data {
    /// Reads the files, and the tokenizer in `kept` or trains it. Texts are cut off to `seq_len` tokens.
    pub(super) fn new(
        config: &Config,
        seq_len: usize,
        seed: u64,
        kept: Option<&Path>,
    ) -> Result<Self> {
        let Parts { train, validation, files, mut notes, .. } = parts(config, seed)?;
        let both = train.iter().chain(&validation);
        let labels = labels(config, &train)?;
        let unknown = if config.labels.is_some() { NOT_LISTED } else { NOT_TRAINED };
        check_labels(&labels, both, unknown)?;
        notes.extend(remarks(&train, &validation));
        let learns_classes = config.objective == Objective::Classes;
        let texts = learns_classes.then(|| Texts::new(&train));
        let parts = Examples { train, validation, is_test: false };
        let data = Self::encoded(config, seq_len, kept, labels, parts, files)?;
        notes.extend(data.remarks);
        Ok(Self { remarks: notes, texts, ..data })
    }

    /// Reads the texts to test a trained model on: [`test_parts`]. Their labels and the tokenizer are those in `kept` or in the
    /// settings.
    pub(super) fn to_test(
        config: &Config,
        seq_len: usize,
        seed: u64,
        kept: Option<&Path>,
    ) -> Result<Self> {
        let Parts { train, validation, files, mut notes, .. } = test_parts(config, seed)?;
        let labels = match (kept, &config.labels) {
            (Some(run), None) => Labels::read(run)?,
            _ => labels(config, &train)?,
        };
        check_labels(&labels, validation.iter(), "the model does not know the label")?;
        let has_share = config.data.test > 0.;
        let learns_classes = config.objective == Objective::Classes && has_share;
        let texts = learns_classes.then(|| Texts::new(&train));
        let parts = Examples { train, validation, is_test: true };
        let data = Self::encoded(config, seq_len, kept, labels, parts, files)?;
        notes.extend(data.remarks);
        Ok(Self { remarks: notes, texts, ..data })
    }

    /// Encodes the texts of both splits, whose labels are known. The only remark is on texts that are truncated.
    fn encoded(
        config: &Config,
        seq_len: usize,
        kept: Option<&Path>,
        labels: Labels,
        Examples { train, validation, is_test }: Examples,
        mut files: Vec<DataFile>,
    ) -> Result<Self> {
        let texts =
            train.iter().flat_map(|one| [Some(&one.text.text), one.text.text_pair.as_ref()]);
        let texts = texts.flatten().map(|text| Ok(text.clone()));
        let tokenizer = kept_or_trained(kept, &config.tokenizer, || Ok(texts))?;
        files.push(tokenizer_file(&tokenizer)?);
        let encoder = Encoder::new(tokenizer, seq_len, config.n_token_types)?;
        if config.data.text_pair.is_some() {
            encoder.check_pairs()?;
        }
        let classes = labels.by_name();
        let items = |examples: &[Example]| -> Result<Vec<Item>> {
            let items = examples.par_iter().map(|one| item(one, &classes, &encoder));
            // The first fault of the file, whichever thread finds one first.
            items.collect::<Vec<_>>().into_iter().collect()
        };
        let of_train = items(&train)?;
        let mut held_out: Vec<_> = items(&validation)?.into_iter().zip(validation).collect();
        let of_held_out = held_out.iter().map(|(item, one)| (item, one));
        // In a test, both are the same texts.
        let others = of_train.iter().zip(&train).filter(|_| !is_test);
        let remarks = truncated(&encoder, &others.chain(of_held_out).collect::<Vec<_>>());
        let remarks = remarks.into_iter().collect();
        held_out.sort_by_key(|(item, _)| std::cmp::Reverse(item.tokens.ids.len()));
        let (validation, held_out) = held_out.into_iter().unzip();
        let train = of_train;
        Ok(Self { train, validation, held_out, labels, encoder, files, remarks, texts: None })
    }
}

/// How many texts lose tokens.
fn truncated(encoder: &Encoder, all: &[(&Item, &Example)]) -> Option<String> {
    let loses = |(item, one): &&(&Item, &Example)| {
        // No other text can have lost some.
        let is_full = item.tokens.ids.len() == encoder.seq_len;
        is_full && encoder.truncates(&one.text).unwrap_or_default()
    };
    let n = all.par_iter().filter(loses).count();
    (n > 0).then(|| {
        format!(
            "{} of {} texts are longer than `task.seq_len` = {} tokens, and lose their ends",
            thousands(n as u64),
            thousands(all.len() as u64),
            encoder.seq_len
        )
    })
}

/// The examples of both splits.
struct Examples {
    train: Vec<Example>,
    validation: Vec<Example>,
    /// Whether the latter are those of a test.
    is_test: bool,
}

/// The labels that the settings list, or those of the texts to train on.
fn labels(config: &Config, train: &[Example]) -> Result<Labels> {
    let objective = config.objective;
    if let Some(listed) = &config.labels {
        return Ok(Labels::new(objective, listed.clone()));
    }
    let DataConfig { path, label, .. } = &config.data;
    if objective == Objective::Regression {
        return Ok(Labels::new(objective, vec![label.clone()]));
    }
    let given = train.iter().flat_map(|one| one.label.names());
    let labels = Labels::from_given(objective, given.map(String::as_str));
    let fault = match labels.names() {
        [only] if objective == Objective::Classes => {
            format!("all texts to train on are \"{only}\", and there is nothing to tell apart")
        }
        [] => "no text to train on has a label".to_owned(),
        _ => return Ok(labels),
    };
    Err(Error::config([PATH], format!("`{}`: {fault}", path.display())))
}

impl Source for Config {
    const TASK: &'static str = "classify";
    const EXAMPLES: &'static str = "texts";
    type Example = Example;
    type Form = ();

    fn files(&self) -> Files<'_> {
        let DataConfig { path, validation_path, validation, test, .. } = &self.data;
        Files::new(path, validation_path.as_ref(), *validation, *test)
    }

    fn read(&self, key: &'static str, path: &Path) -> Result<Read<Example>> {
        read(key, path, self.wanted())
    }

    fn fingerprint(&self, key: &str, path: &Path, examples: &[Example]) -> DataFile {
        let mut bytes = Vec::new();
        let mut add = |part: &[u8]| {
            bytes.extend_from_slice(part);
            bytes.push(0);
        };
        for Example { text, label, .. } in examples {
            add(text.text.as_bytes());
            text.text_pair.iter().for_each(|pair| add(pair.as_bytes()));
            match label {
                Label::Class(class) => add(class.as_bytes()),
                Label::Labels(labels) => add(labels.join("\n").as_bytes()),
                Label::Number(number) => add(&number.to_le_bytes()),
            }
        }
        DataFile::new(key, path, fnv_1a(bytes))
    }

    fn held_out(&self, examples: &[Example], share: f64, stream: Stream) -> Vec<bool> {
        self.data.split.held_out(examples, share, stream)
    }
}

/// What is wrong with a label of which there is no output.
const NOT_LISTED: &str = "`task.labels` does not list the label";
const NOT_TRAINED: &str = "no text to train on has the label";

/// # Errors
/// If a label is not among `labels`: the first with its line, behind what is `unknown` of it; then all such labels with
/// their counts, and those that are known.
fn check_labels<'a>(
    labels: &Labels,
    mut examples: impl Iterator<Item = &'a Example> + Clone,
    unknown: &str,
) -> Result<()> {
    if labels.objective() == Objective::Regression {
        return Ok(());
    }
    let known = labels.by_name();
    let mut others = counts(examples.clone());
    others.retain(|label, _| !known.contains_key(label));
    let is_other =
        |one: &&'a Example| one.label.names().iter().any(|label| others.contains_key(&**label));
    let Some(first) = examples.find(is_other) else { return Ok(()) };
    let label = first.label.names().iter().find(|label| others.contains_key(&***label));
    let label = label.map_or("", String::as_str);
    Err(first.origin.error(format!(
        "{unknown} \"{label}\"; unknown labels: {}; known ones: {}",
        counted(&others),
        listed(labels.names().iter().map(|name| format!("\"{}\"", on_one_line(name))))
    )))
}

/// What the model should predict for a text with this label, which is among `classes`.
fn target(label: &Label, classes: &BTreeMap<&str, u32>) -> Target {
    let class = |name: &String| *classes.get(&**name).expect("invariant: labels are checked");
    match label {
        Label::Class(name) => Target::Class(class(name)),
        Label::Labels(names) => {
            let mut has = vec![false; classes.len()];
            for name in names {
                has[class(name) as usize] = true;
            }
            Target::Labels(has)
        }
        Label::Number(number) => Target::Number(*number),
    }
}

fn item(example: &Example, classes: &BTreeMap<&str, u32>, encoder: &Encoder) -> Result<Item> {
    let Example { text, label, origin } = example;
    let tokens = encoder.encode(text).map_err(|error| origin.error(error.to_string()))?;
    if tokens.ids.is_empty() {
        return Err(origin.error("the tokenizer makes no token of the text"));
    }
    Ok(Item { tokens, target: target(label, classes) })
}

#[cfg(test)]
mod tests {
    use super::super::split::SplitBy;
    use super::*;
    use crate::data::text::tokenizer::{CharConfig, FileConfig, TokenizerConfig};
    use crate::task::parts::VALIDATION_PATH;

    fn data(
        lines: &str,
        validation: Option<&str>,
        change: fn(&mut Config),
    ) -> Result<Data, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("train.csv"), format!("text,label\n{lines}")).unwrap();
        let mut config = Config::default();
        config.data.path = path("train.csv");
        config.tokenizer = TokenizerConfig::Char(CharConfig::default());
        if let Some(lines) = validation {
            std::fs::write(path("validation.csv"), format!("text,label\n{lines}")).unwrap();
            config.data.validation_path = Some(path("validation.csv"));
        }
        change(&mut config);
        Data::new(&config, config.seq_len, 17, None)
            .map_err(|error| error.to_string().replace(&path("").display().to_string(), ""))
    }

    fn many() -> String {
        let line = |n: usize| format!("text {},{}", n / 2, ["good", "bad"][n % 2]);
        (0..200).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_text_is_on_one_side_however_often_it_occurs() {
        let Data { train, validation, labels, .. } = data(&many(), None, |_| {}).unwrap();
        assert_eq!(train.len() + validation.len(), 200);
        assert!((5..60).contains(&validation.len()), "{}", validation.len());
        assert!(validation.iter().all(|held| train.iter().all(|item| item.tokens != held.tokens)));
        assert_eq!(labels.names(), ["bad", "good"]);
    }

    /// Texts of no other part are in the test, and the parts together are the file.
    #[test]
    fn a_share_for_a_test_is_in_no_other_part() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("texts.csv");
        std::fs::write(&path, format!("text,label\n{}", many())).unwrap();
        let mut config = Config { tokenizer: TokenizerConfig::Byte, ..Config::default() };
        (config.data.path, config.data.test) = (path, 0.25);
        for split in [SplitBy::Hashed, SplitBy::Stratified] {
            config.data.split = split;
            let Data { train, validation, .. } = Data::new(&config, 128, 17, None).unwrap();
            let test = Data::to_test(&config, 128, 17, None).unwrap().validation;
            assert!((30..70).contains(&test.len()), "{}", test.len());
            assert_eq!(train.len() + validation.len() + test.len(), 200);
            let others = train.iter().chain(&validation);
            assert!(others.clone().all(|one| test.iter().all(|held| one.tokens != held.tokens)));
            assert!(validation.len() > 5, "{}", validation.len());
        }
    }

    #[test]
    fn a_file_for_validation_is_taken_as_it_is() {
        let held_out = "a,good\nlonger,bad\n";
        let Data { train, validation, .. } = data(&many(), Some(held_out), |_| {}).unwrap();
        assert_eq!(train.len(), 200);
        let classes: Vec<_> = validation.iter().map(|item| item.target.clone()).collect();
        assert_eq!(classes, [Target::Class(0), Target::Class(1)], "the long before the short");
    }

    #[test]
    fn all_that_is_read_is_remembered_by_its_content() {
        let files = |train: &str, held_out| data(train, Some(held_out), |_| {}).unwrap().files;
        let then = files(&many(), "a,good\n");
        let keys: Vec<_> = then.iter().map(|file| file.key.as_str()).collect();
        assert_eq!(keys, [PATH, VALIDATION_PATH, "task.tokenizer"]);
        let now = files(&many(), "b,good\n");
        let is_same = |at: usize| then[at].fingerprint == now[at].fingerprint;
        assert_eq!([0, 1, 2].map(is_same), [true, false, true]);
        assert_ne!(then[2].fingerprint, files("ü,good\nx,bad\n", "a,good\n")[2].fingerprint);
    }

    #[test]
    fn a_run_goes_on_with_the_tokenizer_that_it_has_kept() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("texts.csv");
        std::fs::write(&path, format!("text,label\n{}", many())).unwrap();
        let mut config = Config { tokenizer: TokenizerConfig::Byte, ..Config::default() };
        config.data.path = path;
        let Data { encoder, train, .. } = Data::new(&config, 128, 17, None).unwrap();
        encoder.tokenizer.save(&run.path().join("tokenizer.json")).unwrap();
        let gone = FileConfig { path: run.path().join("gone.json") };
        config.tokenizer = TokenizerConfig::File(gone);
        assert_eq!(Data::new(&config, 128, 17, Some(run.path())).unwrap().train, train);
        assert!(Data::new(&config, 128, 17, None).is_err());
    }

    #[test]
    fn what_is_trained_on_is_not_what_is_held_out_by_another_name() {
        let message = data(&many(), Some("a,good\n"), |config| {
            let folder = config.data.path.parent().unwrap();
            config.data.validation_path = Some(folder.join("../").join(folder).join("./train.csv"));
        });
        let expected =
            "`task.data.validation_path` is the file of `task.data.path`: it must be another";
        assert_eq!(message.unwrap_err(), expected);
    }

    #[test]
    fn what_cannot_be_learnt_from_is_refused_by_name() {
        for (lines, validation, rule) in [
            ("a,x\n", None, "`task.data.validation` = 0.1 leaves"),
            ("a,x\nb,x\n", Some("c,x\n"), "`train.csv`: all texts to train on are \"x\""),
            (
                "a,x\nb,y\n",
                Some("c,x\nc,z\n"),
                "`validation.csv`, line 3: no text to train on has the label \"z\"",
            ),
        ] {
            let message = data(lines, validation, |_| {}).unwrap_err();
            assert!(message.starts_with(rule), "{message}");
        }
        let message = data(&many(), None, |config| config.seq_len = 2).unwrap_err();
        assert!(message.contains("adds 2 special tokens"), "{message}");
    }

    fn pairs(change: impl Fn(&mut Config)) -> Result<Data, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pairs.csv");
        let line = |n: usize| format!("abc {n},defghijk {n},{}", ["no", "yes"][n % 2]);
        let lines: Vec<_> = (0..40).map(line).collect();
        std::fs::write(&path, format!("text,other,label\n{}\n", lines.join("\n"))).unwrap();
        let mut config = Config { n_token_types: 2, ..Config::default() };
        config.data.path = path;
        config.data.text_pair = Some("other".to_owned());
        config.tokenizer = TokenizerConfig::Char(CharConfig::default());
        change(&mut config);
        Data::new(&config, config.seq_len, 17, None).map_err(|error| error.to_string())
    }

    #[test]
    fn a_pair_for_which_there_is_no_room_is_refused() {
        let message = pairs(|config| config.seq_len = 4).unwrap_err();
        assert!(message.contains("no room for two texts: the tokenizer adds 3"), "{message}");
    }

    #[test]
    fn listed_labels_have_their_order_and_no_others() {
        let listed = |labels: [&str; 2]| {
            let labels: Vec<_> = labels.map(str::to_owned).into();
            pairs(move |config| config.labels = Some(labels.clone()))
        };
        assert_eq!(listed(["yes", "no"]).unwrap().labels.names(), ["yes", "no"]);
        let message = listed(["yes", "maybe"]).unwrap_err();
        let rule = "`task.labels` does not list the label \"no\"; unknown labels: \"no\"";
        assert!(message.contains(rule), "{message}");
        assert!(message.ends_with("known ones: \"yes\", \"maybe\""), "{message}");
    }

    #[test]
    fn several_labels_and_numbers_are_learnt() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("texts.csv");
        let line = |n: usize| format!("text {n},{}", ["", "a", "b", "a;b"][n % 4]);
        let lines: Vec<_> = (0..40).map(line).collect();
        std::fs::write(&path, format!("text,label\n{}\n", lines.join("\n"))).unwrap();
        let mut config = Config { objective: Objective::Labels, ..Config::default() };
        config.data.path.clone_from(&path);
        config.tokenizer = TokenizerConfig::Byte;
        let Data { train, labels, .. } = Data::new(&config, 128, 17, None).unwrap();
        assert_eq!(
            (labels.names(), labels.objective()),
            (&["a".to_owned(), "b".to_owned()][..], Objective::Labels)
        );
        for has in [[false, false], [true, false], [false, true], [true, true]] {
            assert!(train.iter().any(|item| item.target == Target::Labels(has.into())), "{has:?}");
        }
        std::fs::write(
            &path,
            "text,label\n".to_owned()
                + &(0..40).map(|n| format!("text {n},\n")).collect::<Vec<_>>().concat(),
        )
        .unwrap();
        config.data.validation = 0.3;
        let error = Data::new(&config, 128, 17, None).unwrap_err().to_string();
        assert!(error.ends_with("no text to train on has a label"), "{error}");

        let lines: Vec<_> = (0..40).map(|n| format!("text {n},{}.5", n % 5)).collect();
        std::fs::write(&path, format!("text,label\n{}\n", lines.join("\n"))).unwrap();
        config.objective = Objective::Regression;
        let Data { train, labels, .. } = Data::new(&config, 128, 17, None).unwrap();
        assert_eq!(labels.names(), ["label"]);
        assert!(train.iter().any(|item| item.target == Target::Number(4.5)));
    }
}
