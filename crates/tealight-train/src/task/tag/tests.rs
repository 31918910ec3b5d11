use std::path::{Path, PathBuf};

use candle_core::Device;
use serde_json::Value;
use tealight_model::ModelConfig;

use super::data::Data;
use super::rows::Target;
use super::*;
use crate::data::tags::scheme::Scheme;
use crate::data::text::tokenizer::{CharConfig, FileConfig, TokenizerConfig};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models").join(name)
}

/// The settings of a task on the file at `path`, with the tokenizer of a recorded folder.
fn config(path: &Path, folder: &str, sub_words: SubWords, labels: &[String]) -> Config {
    let data = DataConfig { path: path.to_owned(), validation: 0.5, ..DataConfig::default() };
    let tokenizer = TokenizerConfig::File(FileConfig { path: golden(folder) });
    Config {
        labels: Some(labels.to_vec()),
        sub_words,
        seq_len: 20,
        data,
        tokenizer,
        ..Config::default()
    }
}

fn labels(folder: &str) -> Vec<String> {
    let config = std::fs::read_to_string(golden(folder).join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let named = config["id2label"].as_object().unwrap();
    (0..named.len()).map(|id| named[&id.to_string()].as_str().unwrap().to_owned()).collect()
}

/// The labels of a row in the form of transformers: -100 where there is no loss.
fn in_full(ids: &[u32], targets: &[Target]) -> Vec<i64> {
    let mut all = vec![-100; ids.len()];
    for target in targets {
        all[target.position as usize] = target.class;
    }
    all
}

#[test]
fn labels_stand_on_sub_words_as_run_ner_puts_them() {
    for folder in ["bert_ner", "roberta_ner", "distilbert_ner"] {
        let expected = std::fs::read_to_string(golden(folder).join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let alignment = &expected["alignment"];
        let labels = labels(folder);
        let numbers =
            |value: &Value| -> Vec<i64> { serde_json::from_value(value.clone()).unwrap() };
        for sentence in alignment["sentences"].as_array().unwrap() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.jsonl");
            let line =
                serde_json::json!({ "tokens": sentence["words"], "ner_tags": sentence["tags"] });
            std::fs::write(&path, format!("{line}\n")).unwrap();
            for (sub_words, key) in
                [(SubWords::First, "labels_first"), (SubWords::All, "labels_all")]
            {
                let seq_len = alignment["max_length"].as_u64().unwrap() as usize;
                let mut config = config(&path, folder, sub_words, &labels);
                // As they are in the file.
                config.scheme =
                    Some(if folder == "distilbert_ner" { Scheme::None } else { Scheme::Iob2 });
                config.data.scheme = config.scheme;
                let data = Data::to_test(&config, seq_len, 17, None).unwrap();
                let row = &data.train[0];
                let ids: Vec<i64> = row.ids.iter().map(|&id| i64::from(id)).collect();
                let recorded = numbers(&sentence["input_ids"]);
                let label = format!("{folder}, {:?}, {key}", sentence["words"]);
                // A piece of a longer sentence owns all of its tokens, as pieces share none.
                assert_eq!(ids, recorded, "{label}");
                assert_eq!(in_full(&row.ids, &row.targets), numbers(&sentence[key]), "{label}");
            }
        }
    }
}

fn task(text: &str, name: &str, change: impl FnOnce(&mut Config)) -> Result<Tag> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    let data = DataConfig { path, validation: 0.4, ..DataConfig::default() };
    let mut config = Config { data, seq_len: 8, ..Config::default() };
    change(&mut config);
    let model = ModelConfig { tied_output: false, ..ModelConfig::default() };
    let model = ModelConfig { lm_head: None, ..model };
    config.build(&TaskContext::new(5, 2, &model, &Device::Cpu))
}

const NAMES: &str = "Anna B-PER\nMüller I-PER\nlives O\nin O\nKöln B-LOC\n. O\n\nRome B-LOC\n\nIt O\nrains O\n\n\
                     Omar B-PER\n\nOslo B-LOC\nis O\ncold O\n\nMia B-PER\nsleeps O\n";

#[test]
fn long_sentences_are_read_in_pieces_and_every_word_is_scored() {
    let long = format!("{}\n{}", "Anna B-PER\nsaid O\n".repeat(40), NAMES);
    let listed = ["O", "B-PER", "I-PER", "B-LOC"].map(str::to_owned).to_vec();
    let task = task(&long, "a.conll", |config| config.labels = Some(listed)).unwrap();
    let data = &task.data;
    let n_words: usize = data.held_out.iter().map(|one| one.words.len()).sum();
    let mut words: Vec<usize> =
        data.validation.iter().flat_map(|row| row.targets.iter().map(|one| one.word)).collect();
    words.sort_unstable();
    assert_eq!(words, (0..n_words).collect::<Vec<_>>());
    assert!(data.train.iter().chain(&data.validation).all(|row| row.ids.len() <= 8));
    // Right tags for each word give the best scores.
    let scores = task.score(&right(&task)).means();
    assert_eq!((scores["f1"], scores["strict_f1"], scores["accuracy"]), (1., 1., 1.));
}

#[test]
fn entities_by_characters_become_words_and_those_within_a_word_are_counted() {
    let lines = [
        r#"{"text":"Anna lives in New York.","entities":[[0,4,"PER"],[14,22,"LOC"]]}"#,
        r#"{"text":"明日は京都で会う","entities":[[3,5,"LOC"]]}"#,
        r#"{"text":"Yorkshire","entities":[[0,4,"LOC"]]}"#,
        r#"{"text":"a b c","entities":[]}"#,
        r#"{"text":"Omar sleeps","entities":[[0,4,"PER"]]}"#,
    ];
    let task = task(&lines.join("\n"), "a.jsonl", |config| config.seq_len = 32).unwrap();
    let all: Vec<String> = task
        .data
        .held_out
        .iter()
        .map(|one| report::spans(task.data.scheme, one, &one.tags))
        .collect();
    assert!(!all.is_empty());
    let notes = task.notes().join("\n");
    assert!(notes.contains("entities that begin or end within a word: 1"), "{notes}");
    assert!(notes.contains("entities: \"LOC\" 3, \"PER\" 2"), "{notes}");
}

/// The predicted classes of a tagger that is always right, in the order of rows and targets.
fn right(task: &Tag) -> Vec<f64> {
    let targets = task.data.validation.iter().flat_map(|row| &row.targets);
    targets.map(|one| one.class as f64).collect()
}

#[test]
fn each_file_has_a_scheme_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let held_out = directory.path().join("dev.conll");
    std::fs::write(&held_out, "Rome U-LOC\n. O\n\nAnna B-PER\nMüller L-PER\nsleeps O\n").unwrap();
    let path = held_out.clone();
    let task = task(NAMES, "a.conll", move |config| config.data.validation_path = Some(path));
    let task = task.unwrap();
    let tags: Vec<_> = task.data.held_out.iter().map(|one| one.tags.join(" ")).collect();
    assert_eq!(tags, ["B-LOC O", "B-PER I-PER O"]);
    let scores = task.score(&right(&task)).means();
    assert_eq!((scores["f1"], scores["strict_f1"], scores["accuracy"]), (1., 1., 1.));
}

#[test]
fn the_scheme_is_that_of_the_labels_and_tags_without_a_label_are_counted() {
    let io = ["O", "I-PER", "I-LOC"].map(str::to_owned).to_vec();
    let learnt = |labels: &[String], scheme| {
        let labels = Some(labels.to_vec());
        task(NAMES, "a.conll", |config| (config.labels, config.scheme) = (labels, scheme)).unwrap()
    };
    let of_labels = learnt(&io, None);
    let notes = of_labels.notes().join("\n");
    assert_eq!(of_labels.data.scheme, Scheme::Iob1);
    assert!(!notes.contains("They have no loss"), "{notes}");
    let notes = learnt(&io, Some(Scheme::Iob2)).notes().join("\n");
    assert!(notes.contains("`task.labels` does not have, such as \"B-"), "{notes}");
}

/// Such a tokenizer splits no texts into words.
#[test]
fn words_of_a_tokenizer_of_characters_end_at_blanks() {
    let line = |name: &str| {
        format!(
            r#"{{"text":"{name} met  Omar in Oslo","entities":[[0,4,"PER"],[10,14,"PER"],[18,22,"LOC"]]}}"#
        )
    };
    let text = ["Anna", "Mary", "Eric", "Vera", "Otto"].map(line).join("\n");
    let task = task(&text, "a.jsonl", |config| {
        config.seq_len = 32;
        config.tokenizer = TokenizerConfig::Char(CharConfig::default());
        config.data.validation = 0.5;
    });
    let task = task.unwrap();
    let words: Vec<&String> = task.data.held_out.iter().flat_map(|one| &one.words).collect();
    assert!(words.iter().all(|word| !word.is_empty() && !word.contains(' ')), "{words:?}");
    assert!(!task.notes().join("\n").contains("within a word"), "{:?}", task.notes());
    assert_eq!(task.score(&right(&task)).means()["f1"], 1.);
}

#[test]
fn what_cannot_be_learnt_is_refused_by_name() {
    let refused = |text: &str, name: &str, change: fn(&mut Config)| {
        task(text, name, change).unwrap_err().to_string()
    };
    let nothing = refused("a O\n\nb O\n\nc O\n\nd O\n", "a.conll", |_| {});
    assert!(nothing.contains("nothing to tell apart"), "{nothing}");
    let scheme = refused("a NOUN\n\nb VERB\n", "a.conll", |config| {
        config.scheme = Some(Scheme::Iob2);
    });
    assert!(scheme.contains("`task.scheme` = \"none\" learns them as they are"), "{scheme}");
    let unknown = refused(NAMES, "a.conll", |config| {
        config.labels = Some(["O", "B-PER", "I-PER"].map(str::to_owned).to_vec());
    });
    assert!(unknown.contains("line ") && unknown.contains("\"B-LOC\", whose type"), "{unknown}");
    let room = refused(NAMES, "a.conll", |config| config.seq_len = 2);
    assert!(room.contains("leaves no room for a word"), "{room}");
    let both = refused(NAMES, "a.conll", |config| config.data.generated = Some(Generated::Visits));
    assert!(both.contains("are both set"), "{both}");
}

#[test]
fn drawn_sentences_have_a_limit_and_resume_at_any_batch() {
    let model = ModelConfig { tied_output: false, lm_head: None, ..ModelConfig::default() };
    let data = DataConfig {
        generated: Some(Generated::Visits),
        n_generated: 200,
        ..DataConfig::default()
    };
    let config = Config { data, ..Config::default() };
    let task = config.build(&TaskContext::new(5, 4, &model, &Device::Cpu)).unwrap();
    let batch = |index| {
        let batch = task.batch(Split::Train, index).unwrap();
        batch.rows.ids.to_vec2::<u32>().unwrap()
    };
    let first = batch(0);
    let later = batch(40);
    assert_eq!((batch(40), batch(0)), (later, first));
    assert!(task.data.held_out.iter().all(|one| one.best.is_some()));
}
