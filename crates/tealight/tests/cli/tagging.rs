//! Taggers: `init`, `train`, `evaluate`, `--resume`, `export` and `tag`.

use std::fs;

use serde_json::json;

use crate::program::{Folder, Outcome, Result, golden_model};

/// Sentences in which a letter tells the tag.
fn sentences(n: usize) -> String {
    let sentence = |at: usize| {
        let (name, tag) = [("aba", "PER"), ("zoz", "LOC")][at % 2];
        format!("{name}{} B-{tag}\n{name} I-{tag}\nis O\nhere{at} O\n. O\n\n", at % 3)
    };
    (0..n).map(sentence).collect()
}

fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("names.conll", sentences(60))?;
    let told =
        folder.succeed(&["init", "tag", "--data", "names.conll", "-o", "names.toml"])?.stderr;
    assert_eq!(told.matches("the tags are iob2").count(), 1, "{told}");
    Ok(folder)
}

const SHORT: [&str; 8] = [
    "--set",
    "training.steps=60",
    "--set",
    "training.evaluate_every=20",
    "--set",
    "checkpoint.every=20",
    "--set",
    "schedule.warmup_steps=5",
];

fn train(folder: &Folder, more: &[&str]) -> Result<Outcome> {
    folder.succeed(&[&["train", "names.toml"], &SHORT[..], more].concat())
}

#[test]
fn a_tagger_of_ones_own_sentences_is_trained_evaluated_resumed_and_used() -> Result {
    let folder = folder()?;
    let written = folder.read("names.toml")?;
    for line in ["kind = \"tag\"", "scheme = \"iob2\"", "metric = \"f1\""] {
        assert!(written.contains(line), "{written}");
    }
    let Outcome { stdout, stderr, .. } = train(&folder, &[])?;
    for text in
        ["strict F1", "always O", "tag of the word", "type   entities", "sentences held out"]
    {
        assert!(stdout.contains(text), "{stdout}");
    }
    assert!(stderr.contains("the tags are iob2"), "{stderr}");
    assert!(stderr.contains("tealight tag runs/names"), "{stderr}");
    assert_eq!(folder.succeed(&["evaluate", "runs/names"])?.stdout, stdout);
    let summary = folder.read_json("runs/names/summary.json")?;
    assert!(summary["metrics"]["f1"].as_f64().is_some_and(|f1| f1 > 0.9), "{summary}");

    train(&folder, &["-q", "--name", "halves", "--stop-after", "33"])?;
    folder.succeed(&["train", "runs/halves", "-q"])?;
    let last = |run: &str| {
        fs::read(folder.path(&format!("runs/{run}/checkpoints/step-000060/model.safetensors")))
    };
    assert_eq!(last("names")?, last("halves")?);

    let tagged = folder.succeed(&["tag", "runs/names", "aba1 aba is here ."])?.stdout;
    assert!(tagged.starts_with("aba1 aba  PER  0-8  "), "{tagged}");
    let json = folder.json(&["tag", "runs/names", "zoz0 zoz is", "--json"])?;
    assert_eq!(json[0]["entity_group"], "LOC");
    assert_eq!([&json[0]["start"], &json[0]["end"]], [&json!(0), &json!(8)]);
    let words = folder.succeed(&["tag", "runs/names", "--words", "aba1 aba is"])?.stdout;
    assert_eq!(words, "aba1/B-PER aba/I-PER is/O\n");

    // The tags of the file stand between the words and those of the model.
    folder.write("test.conll", "zoz2 B-LOC\nzoz I-LOC\nwas O\n\naba0 B-PER\n")?;
    let conll =
        folder.succeed(&["tag", "runs/names", "--words", "--file", "test.conll", "--conll"])?;
    assert!(
        conll.stdout.starts_with("zoz2 B-LOC B-LOC\nzoz I-LOC I-LOC\nwas O "),
        "{}",
        conll.stdout
    );
    let scored = folder.json(&["evaluate", "runs/names", "--data", "test.conll", "--json"])?;
    assert_eq!(scored["n_entities"], 2);

    folder.succeed(&["export", "runs/names", "--to", "exported"])?;
    let config = folder.read_json("exported/config.json")?;
    assert_eq!(config["architectures"], json!(["ModernBertForTokenClassification"]));
    let card = folder.read("exported/README.md")?;
    assert!(card.contains("pipeline_tag: token-classification"), "{card}");
    let again = folder.json(&["tag", "exported", "zoz0 zoz is", "--json"])?;
    assert_eq!(again[0]["entity_group"], "LOC");
    folder.succeed(&["export", "runs/names", "--to", "graph", "--format", "onnx"])?;
    assert!(fs::metadata(folder.path("graph/onnx/model.onnx"))?.len() > 1000);
    let scored = folder.json(&["evaluate", "exported", "--data", "test.conll", "--json"])?;
    assert_eq!(scored["n_entities"], 2);
    Ok(())
}

#[test]
fn a_tagger_starts_from_an_encoder_or_from_another_tagger() -> Result {
    let folder = folder()?;
    for model in ["bert", "roberta_ner", "modernbert"] {
        let from = golden_model(model);
        let init = [
            "init",
            "tag",
            "--data",
            "names.conll",
            "--from",
            &from,
            "-o",
            "tuned.toml",
            "--force",
        ];
        folder.succeed(&init)?;
        let trained = folder.succeed(&[
            "train",
            "tuned.toml",
            "--set",
            "training.steps=4",
            "--set",
            "schedule.warmup_steps=1",
            "--name",
            model,
        ])?;
        assert!(trained.stderr.contains("initialised"), "{}", trained.stderr);
        folder.succeed(&[
            "export",
            &format!("runs/{model}"),
            "--to",
            &format!("exported-{model}"),
        ])?;
        let config = folder.read_json(&format!("exported-{model}/config.json"))?;
        let class = config["architectures"][0].as_str().unwrap_or_default();
        assert!(class.ends_with("ForTokenClassification"), "{config}");
    }
    // Byte-level tokens of words begin with a blank, which both files of a tokenizer say.
    let config = folder.read_json("exported-roberta_ner/tokenizer_config.json")?;
    assert_eq!(config["add_prefix_space"], true);
    Ok(())
}

#[test]
fn mistakes_in_files_and_arguments_are_named() -> Result {
    let folder = folder()?;
    folder.write("ragged.conll", "a O\nb\n")?;
    let init = ["init", "tag", "--data", "ragged.conll"];
    folder.refuse(&init, &["line 2: there are 1 columns, and the lines before have 2"])?;
    folder.write("outside.conll", "a O\nb O\n")?;
    let init = ["init", "tag", "--data", "outside.conll"];
    folder.refuse(&init, &["no word has another tag than"])?;
    let model = golden_model("bert_ner");
    folder.refuse(&["tag", &model, "a", "--stride", "400"], &["the stride must be less"])?;
    folder.refuse(&["tag", &golden_model("bert_cls"), "a"], &["a tagger of words"])?;
    let both = ["tag", &model, "a", "--words", "--strategy", "max"];
    folder.refuse(&both, &["leave out `--strategy`"])
}
