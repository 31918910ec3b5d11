//! The texts of both splits as tokens with classes.

use std::path::Path;

use rayon::prelude::*;
use tealight_ops::rng::{Purpose, Stream};

use super::config::{Config, DataConfig};
use super::file::{Example, read};
use super::labels::Labels;
use crate::data::DataFile;
use crate::data::fingerprint::fnv_1a;
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::task::text::{kept_or_trained, tokenizer_file};

const PATH: &str = "task.data.path";
const VALIDATION: &str = "task.data.validation";
const VALIDATION_PATH: &str = "task.data.validation_path";

/// The tokens of a text, and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) ids: Vec<u32>,
    pub(super) class: u32,
}

/// The items of both splits, their labels and the tokenizer.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) train: Vec<Item>,
    /// Longest first, so that a batch holds little padding.
    pub(super) validation: Vec<Item>,
    pub(super) labels: Labels,
    pub(super) encoder: Encoder,
    /// The files of the texts and of the tokenizer.
    pub(super) files: Vec<DataFile>,
}

impl Data {
    /// Reads the files, and the tokenizer in `kept` or trains it.
    pub(super) fn new(config: &Config, seed: u64, kept: Option<&Path>) -> Result<Self> {
        let DataConfig { path, validation_path, .. } = &config.data;
        let examples = read(PATH, path, &config.data)?;
        let mut files = vec![data_file(PATH, path, &examples)];
        let (train, validation) = match validation_path {
            Some(other) => {
                must_differ(path, other)?;
                let held_out = read(VALIDATION_PATH, other, &config.data)?;
                files.push(data_file(VALIDATION_PATH, other, &held_out));
                (examples, held_out)
            }
            None => split(examples, config.data.validation, seed)?,
        };
        let labels = Labels::of(train.iter().map(|one| one.label.as_str()));
        if let [only] = labels.names() {
            let message = format!(
                "`{}`: all texts to train on are \"{only}\", and there is nothing to tell apart",
                path.display()
            );
            return Err(Error::config([PATH], message));
        }
        let texts = train.iter().map(|one| Ok(one.text.clone()));
        let tokenizer = kept_or_trained(kept, &config.tokenizer, || Ok(texts))?;
        files.push(tokenizer_file(&tokenizer)?);
        let encoder = Encoder::new(tokenizer, config.seq_len)?;
        let of = |examples: &[Example], path: &Path| -> Result<Vec<Item>> {
            let examples = examples.par_iter();
            examples.map(|one| item(one, path, &labels, &encoder)).collect()
        };
        let mut held_out = of(&validation, validation_path.as_ref().unwrap_or(path))?;
        held_out.sort_by_key(|item| std::cmp::Reverse(item.ids.len()));
        let train = of(&train, path)?;
        Ok(Self { train, validation: held_out, labels, encoder, files })
    }
}

/// Refuses one file for both splits, also under two paths.
fn must_differ(path: &Path, other: &Path) -> Result<()> {
    let canonical = |path: &Path| path.canonicalize().map_err(Error::io("find", path));
    if other.exists() && canonical(path)? == canonical(other)? {
        let message = format!("`{VALIDATION_PATH}` is the file of `{PATH}`: it must be another");
        return Err(Error::config([VALIDATION_PATH, PATH], message));
    }
    Ok(())
}

fn data_file(key: &str, path: &Path, examples: &[Example]) -> DataFile {
    let bytes = examples.iter().flat_map(|Example { text, label, .. }| {
        text.bytes().chain([0]).chain(label.bytes()).chain([0])
    });
    DataFile::new(key, path, fnv_1a(bytes))
}

/// Splits by a hash of the text, so that a text is in one split only, however often it occurs.
fn split(examples: Vec<Example>, share: f64, seed: u64) -> Result<(Vec<Example>, Vec<Example>)> {
    let stream = Stream::new(seed, Purpose::Data).fork_name("classify");
    let n = examples.len();
    let is_held_out = |one: &Example| stream.fork_name(&one.text).uniform(0) < share;
    let (validation, train): (Vec<_>, Vec<_>) = examples.into_iter().partition(is_held_out);
    if train.is_empty() || validation.is_empty() {
        let message = format!(
            "`{VALIDATION}` = {share} leaves {} of {n} texts to train on and {} for validation",
            train.len(),
            validation.len()
        );
        return Err(Error::config([VALIDATION], message));
    }
    Ok((train, validation))
}

fn item(example: &Example, path: &Path, labels: &Labels, encoder: &Encoder) -> Result<Item> {
    let Example { text, label, line } = example;
    let wrong = |rule: String| Error::line(path, *line, rule);
    let Some(class) = labels.class(label) else {
        return Err(wrong(format!("no text to train on has the label \"{label}\"")));
    };
    let ids = encoder.encode(text).map_err(|error| wrong(error.to_string()))?;
    if ids.is_empty() {
        return Err(wrong("the tokenizer makes no token of the text".to_owned()));
    }
    Ok(Item { ids, class })
}

/// A tokenizer that truncates texts.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) tokenizer: Tokenizer,
    seq_len: usize,
    /// Special tokens at the end of the template, which truncation keeps.
    n_closing: usize,
}

impl Encoder {
    /// Refuses a `seq_len` without room for a text beside the special tokens.
    pub(super) fn new(tokenizer: Tokenizer, seq_len: usize) -> Result<Self> {
        let (ids, plain) = (tokenizer.encode("a")?.ids, tokenizer.encode_plain("a")?);
        // A template may leave the text out.
        let Some(n_special) = ids.len().checked_sub(plain.len()) else {
            let message = "the template of the tokenizer leaves the text out".to_owned();
            return Err(Error::config(["task.tokenizer.path"], message));
        };
        // Found by its own tokens, not as the ordinary ones: "a" may be the unknown token, a special one.
        let n_opening = ids.windows(plain.len().max(1)).position(|window| window == plain);
        let n_closing = n_special - n_opening.unwrap_or(1).min(n_special);
        if seq_len <= n_special {
            let message = format!(
                "`task.seq_len` = {seq_len} leaves no room for a text: the tokenizer adds {n_special} \
                 special tokens to each"
            );
            return Err(Error::config(["task.seq_len"], message));
        }
        Ok(Self { tokenizer, seq_len, n_closing })
    }

    /// The ids of a text, truncated to `seq_len`.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer.encode(text)?.ids;
        if ids.len() > self.seq_len {
            ids.drain(self.seq_len - self.n_closing..ids.len() - self.n_closing);
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::text::tokenizer::{CharConfig, FileConfig, TokenizerConfig};

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
        Data::new(&config, 17, None)
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
        assert!(validation.iter().all(|held| train.iter().all(|item| item.ids != held.ids)));
        assert_eq!(labels.names(), ["bad", "good"]);
    }

    #[test]
    fn a_file_for_validation_is_taken_as_it_is() {
        let held_out = "a,good\nlonger,bad\n";
        let Data { train, validation, .. } = data(&many(), Some(held_out), |_| {}).unwrap();
        assert_eq!(train.len(), 200);
        let classes: Vec<u32> = validation.iter().map(|item| item.class).collect();
        assert_eq!(classes, [0, 1], "the long before the short");
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
        let Data { encoder, train, .. } = Data::new(&config, 17, None).unwrap();
        encoder.tokenizer.save(&run.path().join("tokenizer.json")).unwrap();
        let gone = FileConfig { path: run.path().join("gone.json") };
        config.tokenizer = TokenizerConfig::File(gone);
        assert_eq!(Data::new(&config, 17, Some(run.path())).unwrap().train, train);
        assert!(Data::new(&config, 17, None).is_err());
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
    fn what_is_too_long_is_cut_off_and_still_closed() {
        let Data { encoder, .. } = data(&many(), None, |config| config.seq_len = 6).unwrap();
        let ids = encoder.encode("text 123").unwrap();
        let tokens: Vec<_> = ids.iter().filter_map(|&id| encoder.tokenizer.token(id)).collect();
        assert_eq!(tokens, ["[CLS]", "t", "e", "x", "t", "[SEP]"]);
        assert_eq!(encoder.encode("te").unwrap().len(), 4);
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
}
