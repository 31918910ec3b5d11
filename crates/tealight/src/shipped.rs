//! The configurations of `configs/`, which are part of the program: `tealight train weather/dotmod`.

use std::path::{Path, absolute};

use serde_json::Value;
use tealight_train::config::RunConfig;

/// A configuration that is part of the program.
#[derive(Debug)]
pub(crate) struct Shipped {
    /// Its path in `configs/`, without `.toml`.
    pub(crate) name: &'static str,
    /// Its text, the directive for editors on the first line included.
    pub(crate) text: &'static str,
}

macro_rules! shipped {
    ($($name:literal)+) => {
        /// All of them, in alphabetical order.
        pub(crate) const ALL: &[Shipped] = &[$(Shipped {
            name: $name,
            text: include_str!(concat!("../configs/", $name, ".toml")),
        }),+];
    };
}

shipped! {
    "atlas/copy"
    "atlas/markov_1"
    "atlas/markov_2"
    "atlas/mod_3"
    "atlas/parity"
    "atlas/recall"
    "atlas/s3_swaps"
    "atlas/selective"
    "causal_lm/shakespeare_cpu"
    "causal_lm/shakespeare_gpu"
    "causal_lm/shakespeare_nanogpt"
    "classify/my_labels"
    "classify/my_ratings"
    "classify/my_texts"
    "classify/same_weather"
    "embed/paraphrases"
    "images/cifar10_cct"
    "images/cifar10_vit"
    "images/mnist"
    "images/my_pictures"
    "images/shapes"
    "listops/long_range_arena"
    "listops/small"
    "masked_lm/aft_small"
    "masked_lm/bert_mini"
    "masked_lm/bert_small"
    "masked_lm/bert_tiny"
    "masked_lm/diary"
    "masked_lm/modern_small"
    "masked_lm/nystrom_small"
    "rerank/paraphrases"
    "seq2seq/dates"
    "seq2seq/my_pairs"
    "seq2seq/reverse"
    "seq2seq/sort"
    "tag/visits"
    "weather/dotmod"
    "weather/dotmod_5000"
    "weather/fifteen_days"
    "weather/fifteen_days_5000"
    "weather/markov"
    "weather/markov_5000"
    "weather/my_data"
    "weather/one_four_eight"
    "weather/one_four_eight_5000"
    "weather/ten_days"
    "weather/ten_days_5000"
}

/// Where the data of others come from: a path that configurations name, the script of the repository that fetches it,
/// and an address.
const SOURCES: &[(&str, &str, &str)] = &[
    (
        "data/tinyshakespeare.txt",
        "scripts/fetch_tinyshakespeare.sh",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
    (
        "data/cifar-10-batches-bin",
        "scripts/fetch_cifar10.sh",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    ("data/mnist", "scripts/fetch_mnist.sh", "https://storage.googleapis.com/cvdf-datasets/mnist"),
];

/// The configuration of this name: `weather/dotmod`, `weather/dotmod.toml` or `configs/weather/dotmod.toml`.
pub(crate) fn find(typed: &Path) -> Option<&'static Shipped> {
    let typed = bare(typed.to_str()?);
    ALL.iter().find(|shipped| shipped.name == typed)
}

fn bare(typed: &str) -> &str {
    let typed = typed.strip_prefix("./").unwrap_or(typed);
    let typed = typed.strip_prefix("configs/").unwrap_or(typed);
    typed.strip_suffix(".toml").unwrap_or(typed)
}

/// The names most similar to what was typed, at most three: a name without its folder is similar, too.
pub(crate) fn near(typed: &Path) -> Vec<&'static str> {
    const MAX: usize = 3;
    let typed = typed.to_string_lossy();
    let typed = bare(&typed);
    let distance = |name: &str| {
        let short = name.rsplit('/').next().unwrap_or(name);
        strsim::osa_distance(name, typed).min(strsim::osa_distance(short, typed))
    };
    let farthest = typed.chars().count() / 4;
    let mut near: Vec<(usize, &str)> =
        ALL.iter().map(|shipped| (distance(shipped.name), shipped.name)).collect();
    near.retain(|(distance, _)| *distance <= farthest);
    near.sort_unstable();
    let nearest = near.first().map_or(0, |(distance, _)| *distance);
    near.into_iter().filter(|(d, _)| *d == nearest).map(|(_, name)| name).take(MAX).collect()
}

impl Shipped {
    /// Its text without the first line, which names the schema by a path that holds in `configs/` alone.
    pub(crate) fn copy(&self) -> &'static str {
        match self.text.split_once('\n') {
            Some((directive, rest)) if directive.starts_with("#:schema") => rest,
            _ => self.text,
        }
    }

    /// The first sentence of the comment at its head, on one line, without addresses.
    pub(crate) fn summary(&self) -> String {
        let lines = self.copy().lines().map_while(|line| line.strip_prefix('#'));
        let comment: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
        let comment = comment.join(" ");
        let mut ends = comment.match_indices(['.', '?']).map(|(at, _)| at + 1);
        let end = ends.find(|end| {
            let (sentence, rest) = comment.split_at(*end);
            rest.starts_with(' ') && !sentence.ends_with(" al.")
        });
        without_addresses(&comment[..end.unwrap_or(comment.len())])
    }

    /// Data that `config`, read from this configuration, needs and that are not there: what is missing, and how to get
    /// it.
    pub(crate) fn missing_data(&self, config: &RunConfig) -> Option<String> {
        let config_value = serde_json::to_value(config).ok()?;
        let strings = self.text.split('"').skip(1).step_by(2);
        let missing = strings.filter(|text| text.starts_with("data/")).find(|path| {
            let path = absolute(path).unwrap_or_default();
            !path.exists() && holds(&config_value, &path.to_string_lossy())
        })?;
        let get = SOURCES.iter().find(|(data, ..)| missing.starts_with(data)).map_or_else(
            || "it is an example in the repository of Tealight".to_owned(),
            |(_, script, address)| {
                format!("`{script}` of the repository fetches it from <{address}>")
            },
        );
        Some(format!(
            "`{missing}` does not exist in the working directory, and the shipped configuration `{}` reads it; {get}; \
             `tealight init {} --data FILE` writes a configuration for your data",
            self.name,
            config.task.kind()
        ))
    }
}

/// `text` without addresses in parentheses: "(Zhai et al. 2021, https://…)" becomes "(Zhai et al. 2021)".
fn without_addresses(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some(at) = text.find("https://") {
        let length = text[at..].find(')').unwrap_or(text.len() - at);
        let (before, after) = (&text[..at], &text[at + length..]);
        text = match before.strip_suffix(" (") {
            Some(before) => format!("{before}{}", after.strip_prefix(')').unwrap_or(after)),
            None => format!("{}{after}", before.trim_end_matches([',', ' '])),
        };
    }
    text
}

/// Whether a string of `value` is `text`.
fn holds(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string == text,
        Value::Array(items) => items.iter().any(|item| holds(item, text)),
        Value::Object(table) => table.values().any(|item| holds(item, text)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn every_file_of_configs_is_shipped() {
        let mut names = Vec::new();
        for folder in fs::read_dir(repository().join("configs")).unwrap() {
            let folder = folder.unwrap();
            if !folder.file_type().unwrap().is_dir() {
                continue;
            }
            for file in fs::read_dir(folder.path()).unwrap() {
                let (folder, file) = (folder.file_name(), file.unwrap().file_name());
                let name = format!("{}/{}", folder.display(), file.display());
                names.push(name.strip_suffix(".toml").unwrap().to_owned());
            }
        }
        names.sort();
        assert_eq!(names, ALL.iter().map(|shipped| shipped.name).collect::<Vec<_>>());
    }

    #[test]
    fn every_file_names_the_schema_and_a_copy_does_not() {
        for shipped in ALL {
            let directive = shipped.text.lines().next();
            assert_eq!(directive, Some("#:schema ../tealight.schema.json"), "{}", shipped.name);
            assert!(!shipped.copy().contains("#:schema"), "{}", shipped.name);
            assert!(shipped.text.ends_with(shipped.copy()), "{}", shipped.name);
        }
    }

    #[test]
    fn names_are_found_with_and_without_folder_and_extension() {
        for typed in ["weather/dotmod", "weather/dotmod.toml", "configs/weather/dotmod.toml"] {
            assert_eq!(find(Path::new(typed)).map(|shipped| shipped.name), Some("weather/dotmod"));
        }
        assert!(find(Path::new("dotmod")).is_none());
        assert!(find(Path::new("/configs/weather/dotmod.toml")).is_none());
    }

    #[test]
    fn mistyped_names_are_similar_and_others_are_not() {
        assert_eq!(near(Path::new("dotmod")), ["weather/dotmod"]);
        assert_eq!(near(Path::new("configs/wether/markov.toml")), ["weather/markov"]);
        assert_eq!(near(Path::new("bert_mni.toml")), ["masked_lm/bert_mini"]);
        assert_eq!(near(Path::new("my.toml")), [""; 0]);
        assert_eq!(near(Path::new("")), [""; 0]);
    }

    #[test]
    fn every_summary_is_a_sentence() {
        for shipped in ALL {
            let summary = shipped.summary();
            assert!(!summary.contains("http"), "{summary}");
            assert!((20..=200).contains(&summary.chars().count()), "{}: {summary}", shipped.name);
            assert!(summary.ends_with(['.', '?']), "{}: {summary}", shipped.name);
        }
    }

    #[test]
    fn scripts_and_addresses_of_data_are_those_of_the_repository() {
        for (data, script, address) in SOURCES {
            let text = fs::read_to_string(repository().join(script)).unwrap();
            assert!(text.contains(data) && text.contains(address), "{script}");
            assert!(ALL.iter().any(|shipped| shipped.text.contains(data)), "{data}");
        }
        let fetched = ALL.iter().filter(|shipped| shipped.text.contains("scripts/fetch"));
        for shipped in fetched {
            assert!(
                SOURCES.iter().any(|(data, ..)| shipped.text.contains(data)),
                "{}",
                shipped.name
            );
        }
    }
}
