//! Classifiers: `train`, `evaluate`, `--resume` and `classify`.

use std::fs;

use crate::program::{Folder, Outcome, Result};

/// A short run.
const TEXTS: &str = "\
seed = 7
[task]
kind = \"classify\"
seq_len = 8
read_out = \"mean\"
[task.data]
path = \"texts.jsonl\"
validation = 0.3
[task.tokenizer]
kind = \"char\"
[model]
d_model = 8
n_layers = 1
n_heads = 2
[optimizer]
kind = \"adamw\"
lr = 0.01
[training]
steps = 30
batch_size = 8
evaluate_every = 10
[checkpoint]
every = 10
[log]
every = 10
";

pub(crate) fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("texts.toml", TEXTS)?;
    let line = |n: usize| {
        let (letter, label) = [("a", "first"), ("z", "last")][n % 2];
        let text = letter.repeat(1 + n / 2 % 5);
        format!("{{\"text\": \"{text} {n}\", \"label\": \"{label}\"}}\n")
    };
    folder.write("texts.jsonl", (0..40).map(line).collect::<Vec<_>>().concat())?;
    Ok(folder)
}

pub(crate) fn trained() -> Result<Folder> {
    let folder = folder()?;
    folder.succeed(&["train", "texts.toml", "-q"])?;
    Ok(folder)
}

#[test]
fn a_classifier_is_trained_evaluated_and_resumed_like_any_other_run() -> Result {
    let folder = folder()?;
    let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "texts.toml"])?;
    for text in ["majority", "macro F1", "texts held out", "label ╲ predicted", "precision"] {
        assert!(stdout.contains(text), "{stdout}");
    }
    assert!(stderr.contains("tealight classify runs/texts"), "{stderr}");
    assert_eq!(folder.succeed(&["evaluate", "runs/texts"])?.stdout, stdout);
    let summary = folder.read_json("runs/texts/summary.json")?;
    for metric in ["accuracy", "macro_f1", "nll"] {
        assert!(summary["metrics"][metric].is_number(), "{summary}");
    }
    folder.succeed(&["inspect", "runs/texts"])?;

    folder.succeed(&["train", "texts.toml", "-q", "--name", "halves", "--stop-after", "13"])?;
    folder.succeed(&["train", "texts.toml", "-q", "--name", "halves", "--resume"])?;
    let model = "checkpoints/step-000030/model.safetensors";
    let files = [model, "tokenizer.json", "labels.json", "report.json"];
    folder.assert_same(["runs/texts", "runs/halves"], &files)
}

/// Evaluations read whole texts, and a resumed run leaves out the tokens that it would have left out.
#[test]
fn tokens_are_left_out_in_training_alone_and_the_same_after_a_kill() -> Result {
    let folder = folder()?;
    let rate = ["--set", "task.token_dropout=0.4"];
    let train = |name: &str, more: &[&str]| {
        folder.succeed(&[&["train", "texts.toml", "-q", "--name", name], more].concat())
    };
    train("whole", &rate)?;
    train("halves", &[&rate[..], &["--stop-after", "13"]].concat())?;
    train("halves", &[&rate[..], &["--resume"]].concat())?;
    let model = "checkpoints/step-000030/model.safetensors";
    folder.assert_same(["runs/whole", "runs/halves"], &[model, "report.json"])?;
    train("all_tokens", &[])?;
    let of = |run: &str| fs::read(folder.path(&format!("runs/{run}/{model}")));
    assert_ne!(of("whole")?, of("all_tokens")?);
    // A model that has not learnt yet scores the texts alike, whatever training leaves out.
    let rest = ["--steps", "1", "--set", "optimizer.lr=1e-12"];
    train("first", &[&rate[..], &rest].concat())?;
    train("second", &rest)?;
    let [first, second] = ["first", "second"].map(|run| {
        folder.read_json(&format!("runs/{run}/report.json")).map(|it| it["nll"].as_f64())
    });
    let difference = first?.zip(second?).map(|(first, second)| (first - second).abs());
    assert!(difference.is_some_and(|difference| difference < 1e-6), "{difference:?}");
    for rate in ["1", "-0.1", "nan"] {
        let set = format!("task.token_dropout={rate}");
        let parts = ["`task.token_dropout` = ", "must be at least 0 and less than 1"];
        folder.refuse(&["train", "texts.toml", "--set", &set], &parts)?;
    }
    Ok(())
}

#[test]
fn a_run_classifies_without_its_data() -> Result {
    let folder = trained()?;
    fs::remove_file(folder.path("texts.jsonl"))?;
    let json = folder.json(&["classify", "runs/texts", "aaaa", "zzz", "--json"])?;
    for (at, (text, label)) in [("aaaa", "first"), ("zzz", "last")].into_iter().enumerate() {
        let one = &json["classified"][at];
        assert_eq!((&one["text"], &one["label"]), (&text.into(), &label.into()), "{json}");
        let of = |label: &str| one["probabilities"][label].as_f64().unwrap_or(f64::NAN);
        assert!((of("first") + of("last") - 1.).abs() < 1e-12 && of(label) > 0.5, "{json}");
    }
    let text = folder.succeed(&["classify", "runs/texts", "aaaa", "zzz"])?.stdout;
    assert!(text.starts_with("first   first "), "{text}");
    let args = ["classify", "runs/texts", "aaaa", "-"];
    assert_eq!(folder.run_with_input(&args, "\nzzz\n")?.stdout, text);
    let attended = folder.succeed(&["attend", "runs/texts", "az", "--text"])?.stdout;
    assert!(attended.contains("[CLS]") && attended.contains("layer 1"), "{attended}");
    Ok(())
}

#[test]
fn a_run_keeps_its_tokenizer_and_knows_what_it_was_held_against() -> Result {
    let folder = trained()?;
    let other = fs::read_to_string(folder.path("texts.jsonl"))?;
    folder.write("others.jsonl", other.replace("1\"", "7\""))?;
    folder.write("tokenizer.json", folder.read("runs/texts/tokenizer.json")?)?;
    let settings = [
        "task.data.validation_path=others.jsonl",
        "task.tokenizer={kind=\"file\",path=\"tokenizer.json\"}",
        "--name=other",
    ];
    let [validation, tokenizer, name] = settings;
    let args = ["train", "texts.toml", "-q", "--set", validation, "--set", tokenizer, name];
    folder.succeed(&args)?;
    fs::remove_file(folder.path("tokenizer.json"))?;
    folder.succeed(&["evaluate", "runs/other"])?;
    folder.succeed(&["train", "runs/other", "-q"])?;
    folder.write("others.jsonl", other)?;
    let parts = ["`task.data.validation_path`: `", "others.jsonl` has changed since the run began"];
    folder.refuse(&["evaluate", "runs/other"], &parts)
}

#[test]
fn what_of_a_text_is_not_read_is_said() -> Result {
    let folder = trained()?;
    let said = |texts: &[&str]| -> Result<String> {
        Ok(folder.succeed(&[&["classify", "runs/texts"], texts].concat())?.stderr)
    };
    assert_eq!(said(&["aaaa", "z 3"])?, "");
    let long = "a".repeat(30);
    assert_eq!(said(&[&long, "zz"])?, "1 of 2 texts are longer than 8 tokens and were truncated\n");
    let unknown = "tokens of the text are not in the model's vocabulary, and are read as `[UNK]`\n";
    assert_eq!(said(&["aΩΩ"])?, format!("2 of 3 {unknown}"));
    folder.write("lines.txt", format!("{long}\n{long}\naa\n"))?;
    let stderr = said(&["--file", "lines.txt"])?;
    assert_eq!(stderr, "2 of 3 texts are longer than 8 tokens and were truncated\n");
    Ok(())
}

#[test]
fn what_cannot_be_classified_is_refused() -> Result {
    let folder = trained()?;
    let twice = ["classify", "runs/texts", "a", "--pair", "b", "--pair", "c"];
    folder.refuse(&twice, &["`--pair` is given 2 times for 1 texts"])?;
    folder.refuse(&["classify", "runs/texts"], &["TEXT"])?;
    folder.write("empty.jsonl", "\n")?;
    folder.refuse(&["classify", "runs/texts", "--file", "empty.jsonl"], &["no text given"])?;
    folder.write("odd.txt", b"aa\na\xff\n")?;
    let odd = ["classify", "runs/texts", "--file", "odd.txt"];
    folder.refuse(&odd, &["`odd.txt`, line 2: this is not UTF-8: byte 2 of the line is 0xFF"])?;
    folder.write("program.txt", b"\x7fELF\x02\x01\x01\0")?;
    let program = ["classify", "runs/texts", "--file", "program.txt"];
    folder.refuse(&program, &["`program.txt` is not text: it begins as an ELF program"])?;
    folder.write("bad.csv", "nr\n1\n")?;
    let bad = ["bad.csv`, line 1: there is no column `text` among `nr`"];
    folder.refuse(&["classify", "runs/texts", "--file", "bad.csv"], &bad)?;
    folder.refuse(
        &["translate", "runs/texts", "a"],
        &["is a classifier of texts", "needs an encoder-decoder"],
    )?;
    fs::remove_file(folder.path("runs/texts/labels.json"))?;
    folder.refuse(&["classify", "runs/texts", "a"], &["cannot read", "labels.json"])
}

#[test]
fn what_cannot_be_learnt_from_is_refused_with_its_place() -> Result {
    let folder = folder()?;
    folder.write("bad.jsonl", "{\"text\": \"a\", \"label\": \"b\"}\n{\"text\": \"a\"}\n")?;
    folder.write("same.csv", "text,label\na,b\nc,b\nd,b\ne,b\nf,b\ng,b\nh,b\ni,b\nj,b\n")?;
    for (setting, parts) in [
        ("task.data.path=bad.jsonl", &["bad.jsonl`, line 2: there is no field `label`"][..]),
        ("task.data.path=same.csv", &["all texts to train on are \"b\""]),
        ("task.data.path=texts.txt", &["texts.txt` cannot be read"]),
        ("task.data.text=body", &["line 1: there is no field `body` among `label`, `text`"]),
        ("task.data.validation=1.5", &["`task.data.validation` = 1.5"]),
        ("task.seq_len=2", &["`task.seq_len` = 2 leaves no room"]),
        ("task.read_out=last", &["read_out", "last"]),
        ("task.objective=ranking", &["objective", "ranking", "regression"]),
        (
            "task.objective=regression",
            &["texts.jsonl`, line 1: `label` is \"first\"", "needs a number"],
        ),
        (
            "task.objective=labels",
            &["line 1: the field `label` is \"first\"", "needs a list of labels"],
        ),
        ("task.data.text_pair=other", &["line 1: there is no field `other`"]),
        (
            "task.labels=['first','other']",
            &["`task.labels` does not list the label \"last\"", "unknown labels: \"last\" "],
        ),
        ("task.labels=['first','first']", &["`task.labels`, a list of 2, has a label twice"]),
        ("model.classifier.kind=pooler", &["pooler", "dense"]),
        ("model.classifier={kind='dense',dropout=1.5}", &["`model.classifier.dropout` = 1.5"]),
        ("task.tokenizer.kind=words", &["words", "wordpiece"]),
    ] {
        folder.refuse(&["train", "texts.toml", "--set", setting], parts)?;
    }
    let causal = ["task.read_out=cls", "model.causal=true"];
    let args = ["train", "texts.toml", "--set", causal[0], "--set", causal[1]];
    folder.refuse(&args, &["`task.read_out` = \"cls\" needs `model.causal` = false"])
}

#[test]
fn settings_of_an_output_over_the_vocabulary_are_refused_in_new_runs_only() -> Result {
    let folder = trained()?;
    for (setting, part) in [
        ("model.tied_output=true", "`model.tied_output` = true, but"),
        ("model.lm_head.bias=false", "`model.lm_head` is set, but"),
    ] {
        folder.refuse(&["train", "texts.toml", "--name", "new", "--set", setting], &[part])?;
    }

    // As versions wrote it that ignored these settings.
    folder.succeed(&["train", "texts.toml", "-q", "--name", "old", "--stop-after", "13"])?;
    let resolved = folder.read("runs/old/resolved.toml")?;
    let old = resolved.replace("tied_output = false", "tied_output = true");
    assert_ne!(old, resolved);
    folder.write("runs/old/resolved.toml", old + "\n[model.lm_head]\nbias = false\n")?;
    folder.succeed(&["classify", "runs/old", "aaaa"])?;
    folder.succeed(&["train", "texts.toml", "-q", "--name", "old", "--resume"])?;
    folder.succeed(&["evaluate", "runs/old"])?;
    folder.assert_same(["runs/texts", "runs/old"], &["report.json"])
}

/// The name of a run with another objective, the setting of its data, and that of the objective.
const OTHERS: [[&str; 3]; 3] = [
    ["pairs", "task.data.path=pairs.jsonl", "task.data.text_pair=other"],
    ["numbers", "task.data.path=numbers.jsonl", "task.objective=regression"],
    ["several", "task.data.path=several.jsonl", "task.objective=labels"],
];

/// The arguments that train the run `name` on the data of one of [`OTHERS`].
fn other<'a>(data: &str, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "texts.toml", "-q", "--name", name];
    for [_, path, objective] in OTHERS.iter().filter(|[known, ..]| *known == data) {
        args.extend(["--set", path, "--set", objective]);
    }
    args.extend(more);
    args
}

/// A folder with a trained run of each objective.
fn others() -> Result<Folder> {
    let folder = folder()?;
    for [name, ..] in OTHERS {
        let line = |n: usize| {
            let letter = ["a", "z"][n % 2];
            let text = letter.repeat(1 + n / 2 % 5);
            let label = match name {
                "pairs" => format!(
                    "\"other\": \"{} {n}\", \"label\": \"{}\"",
                    ["a", "z"][n / 2 % 2],
                    n % 2 == n / 2 % 2
                ),
                "numbers" => format!("\"label\": {}", n % 2),
                _ => format!("\"label\": {}", ["[]", "[\"x\"]", "[\"y\", \"x\"]"][n % 3]),
            };
            format!("{{\"text\": \"{text} {n}\", {label}}}\n")
        };
        folder.write(&format!("{name}.jsonl"), (0..40).map(line).collect::<Vec<_>>().concat())?;
        folder.succeed(&other(name, name, &[]))?;
    }
    Ok(folder)
}

#[test]
fn pairs_numbers_and_several_labels_are_learnt_evaluated_and_resumed() -> Result {
    let folder = others()?;
    for (name, metrics, words) in [
        (
            "pairs",
            &[
                "accuracy",
                "balanced_accuracy",
                "f1",
                "macro_f1",
                "matthews_correlation",
                "nll",
                "rarest_f1",
            ][..],
            "Matthews",
        ),
        ("numbers", &["mse", "pearson", "spearmanr"], "Spearman"),
        ("several", &["accuracy", "micro_f1", "macro_f1", "nll", "rarest_f1"], "micro F1"),
    ] {
        let run = format!("runs/{name}");
        let summary = folder.read_json(&format!("{run}/summary.json"))?;
        let named = summary["metrics"].as_object().ok_or("metrics")?;
        assert!(
            named.keys().eq(metrics.iter().copied().collect::<std::collections::BTreeSet<_>>()),
            "{summary}"
        );
        let report = folder.json(&["evaluate", &run, "--json"])?;
        let lines = folder.read(&format!("{run}/metrics.jsonl"))?;
        let evaluated: Vec<serde_json::Value> =
            lines.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
        let last = evaluated.iter().rfind(|line| line["split"] == "validation").ok_or("a line")?;
        for &metric in metrics {
            let value = report[metric].as_f64().ok_or(metric)?;
            assert_eq!(value, named[metric].as_f64().ok_or(metric)?, "{name}, {metric}");
            let logged = if ["nll", "mse"].contains(&metric) { "loss" } else { metric };
            let logged = last[logged].as_f64().ok_or(metric)?;
            assert!((value - logged).abs() < 1e-5, "{name}, {metric}: {value} and {logged}");
        }
        let shown = folder.succeed(&["evaluate", &run])?.stdout;
        assert!(shown.contains(words) && shown.contains("held out"), "{shown}");
        folder.succeed(&other(name, "halves", &["--stop-after", "13"]))?;
        folder.succeed(&other(name, "halves", &["--resume"]))?;
        let model = "checkpoints/step-000030/model.safetensors";
        folder.assert_same([&run, "runs/halves"], &[model, "labels.json", "report.json"])?;
        fs::remove_dir_all(folder.path("runs/halves"))?;
    }
    Ok(())
}

#[test]
fn each_objective_has_its_own_words_for_a_text() -> Result {
    let folder = others()?;
    for [name, ..] in OTHERS {
        fs::remove_file(folder.path(&format!("{name}.jsonl")))?;
    }
    let ask = |name: &str, more: &[&str]| -> Result<serde_json::Value> {
        let run = format!("runs/{name}");
        let json = folder.json(&[&["classify", &run, "aaa", "--json"], more].concat())?;
        Ok(json["classified"][0].clone())
    };
    let pair = ask("pairs", &["--pair", "a 3"])?;
    assert_eq!((&pair["text"], &pair["text_pair"]), (&"aaa".into(), &"a 3".into()));
    assert_ne!(pair["scores"], ask("pairs", &["--pair", "zzz"])?["scores"]);
    folder.write("pairs.csv", "other,text\na 3,aaa\n")?;
    let file = folder.json(&["classify", "runs/pairs", "--file", "pairs.csv", "--json"])?;
    assert_eq!(file["classified"][0], pair);
    let scores = pair["scores"].as_array().ok_or("scores")?;
    assert!(scores[0]["score"].as_f64() >= scores[1]["score"].as_f64(), "{pair}");
    assert_eq!(pair["label"], scores[0]["label"]);

    let number = ask("numbers", &[])?;
    assert_eq!(number["scores"][0]["label"], "label");
    assert_eq!(number["value"], number["scores"][0]["score"]);
    assert!(number.get("probabilities").is_none(), "{number}");
    let shown = folder.succeed(&["classify", "runs/numbers", "aaa"])?.stdout;
    assert!(
        (shown.trim().parse::<f64>()? - number["value"].as_f64().ok_or("a value")?).abs() < 1e-4
    );

    let several = ask("several", &[])?;
    let sum: f64 =
        ["x", "y"].iter().filter_map(|label| several["probabilities"][label].as_f64()).sum();
    assert!((sum - 1.).abs() > 1e-6, "they are no distribution: {several}");
    let above = several["scores"].as_array().ok_or("scores")?.iter();
    let above =
        above.filter(|one| one["score"].as_f64() > Some(0.5)).map(|one| one["label"].clone());
    assert_eq!(several["labels"], serde_json::Value::Array(above.collect()));
    Ok(())
}

/// The form of BERT, as far as a run of the task can have it.
const BERT: [&str; 5] = [
    "model.norm_placement=post",
    "model.embedding.norm=true",
    "model.position.kind=learned",
    "model.classifier={kind='dense',activation='tanh'}",
    "task.read_out=cls",
];

#[test]
fn a_run_in_the_form_of_bert_is_exported_for_transformers_with_its_labels() -> Result {
    let folder = folder()?;
    let sets = BERT.iter().flat_map(|setting| ["--set", setting]);
    let args: Vec<&str> = ["train", "texts.toml", "-q"].into_iter().chain(sets).collect();
    folder.succeed(&args)?;
    folder.succeed(&["export", "runs/texts", "--to", "folder", "--format", "hf"])?;
    let config = folder.read_json("folder/config.json")?;
    assert_eq!(config["architectures"][0], "BertForSequenceClassification");
    assert_eq!(config["id2label"], serde_json::json!({ "0": "first", "1": "last" }));
    assert_eq!(config["label2id"], serde_json::json!({ "first": 0, "last": 1 }));
    assert_eq!(config["problem_type"], "single_label_classification");
    let ask = |model: &str| folder.json(&["classify", model, "aaaa", "zz", "--json"]);
    assert_eq!(ask("folder")?, ask("runs/texts")?);
    // What is exported from the folder is the folder.
    folder.succeed(&["export", "folder", "--to", "again", "--format", "hf"])?;
    folder.assert_same(["folder", "again"], &["config.json", "model.safetensors"])?;

    folder.succeed(&[
        "train",
        "texts.toml",
        "-q",
        "--name",
        "mean",
        "--set",
        "task.read_out=mean",
    ])?;
    folder.refuse(
        &["export", "runs/mean", "--to", "other", "--format", "hf"],
        &["`model.classifier.kind` is \"linear\"", "requires \"dense\""],
    )
}

/// Rare classes are learnt: they count as much as frequent ones, and choose the checkpoint.
#[test]
fn a_file_with_a_rare_class_is_trained_with_weights() -> Result {
    let folder = Folder::new()?;
    let row =
        |n: usize| format!("{n} words,{}\n", if n.is_multiple_of(8) { "spam" } else { "ham" });
    folder.write("mails.csv", format!("text,label\n{}", (0..80).map(row).collect::<String>()))?;
    folder.succeed(&["init", "classify", "--data", "mails.csv"])?;
    let config = folder.read("classify.toml")?;
    for part in ["class_weights = \"balanced\"", "7 times the texts", "select = \"latest\""] {
        assert!(config.contains(part), "{config}");
    }
    let short = ["--steps", "4", "--set", "schedule.warmup_steps=1", "-q"];
    let with = |name: &str, weights: &str| -> Result<String> {
        let set = format!("task.class_weights={weights}");
        let args = ["train", "classify.toml", "--name", name, "--set", &set];
        folder.succeed(&[&args[..], &short].concat())?;
        folder.read(&format!("runs/{name}/metrics.jsonl"))
    };
    assert_ne!(with("equal", "equal")?, with("balanced", "balanced")?);
    let focal = "task.loss={kind='focal',gamma=1.5}";
    let args = ["train", "classify.toml", "--name", "focal", "--set", focal];
    let Outcome { stderr, .. } = folder.succeed(&[&args[..], &short[..4]].concat())?;
    assert!(stderr.contains("class weights: \"ham\" 0.5"), "{stderr}");
    let with_focal = folder.read("runs/focal/metrics.jsonl")?;
    assert_ne!(with_focal, folder.read("runs/balanced/metrics.jsonl")?);
    let listed = with("listed", "{kind='listed',weights=[1,1]}")?;
    assert_ne!(listed, folder.read("runs/balanced/metrics.jsonl")?);

    for (settings, parts) in [
        (
            ["task.objective=regression", "task.class_weights=balanced"],
            ["`task.class_weights` = \"balanced\" needs classes", "regression"],
        ),
        (
            ["task.objective=labels", "task.class_weights=effective"],
            ["`task.class_weights` = \"effective\" needs classes", "labels"],
        ),
        (["task.loss.kind=focal", "task.label_smoothing=0.1"], ["\"focal\"", "label smoothing"]),
        (["task.loss.kind=focal", "task.loss.gamma=-1"], ["`task.loss.gamma` = -1", "negative"]),
        (
            ["task.loss.kind=cross_entropy", "task.class_weights={kind='listed',weights=[1]}"],
            ["is a list of 1", "2 labels: ham, spam"],
        ),
        (
            ["task.loss.kind=cross_entropy", "task.class_weights={kind='listed',weights=[0,1]}"],
            ["`task.class_weights.weights` = 0", "positive"],
        ),
    ] {
        let args = ["train", "classify.toml", "--set", settings[0], "--set", settings[1]];
        folder.refuse(&args, &parts)?;
    }
    Ok(())
}

/// A rare class is trained on and held out; a model that has learnt nothing is told from one that has.
#[test]
fn a_model_that_is_no_better_than_the_majority_is_named() -> Result {
    let folder = Folder::new()?;
    folder.write("texts.toml", TEXTS)?;
    let label = |n: usize| if n < 3 { "rare" } else { "usual" };
    let row = |n: usize| format!("{n} words,{}\n", label(n));
    folder.write("mails.csv", format!("text,label\n{}", (0..60).map(row).collect::<String>()))?;
    let set = |setting: &'static str| ["--set", setting];
    let settings = [
        set("task.data={path='mails.csv',validation=0.1,split='stratified'}"),
        set("training.evaluate_every=1"),
        set("optimizer.lr=1e-9"),
    ];
    let args = [&["train", "texts.toml", "--steps", "3"][..], &settings.concat()].concat();
    let Outcome { stdout, stderr, .. } = folder.succeed(&args)?;
    let remark = "no better than always answering \"usual\": accuracy 0.1429 (0.8571), \
                  balanced_accuracy 0.5000 (0.5000)";
    assert_eq!(stderr.matches("no better than always").count(), 1, "{stderr}");
    assert!(stderr.contains(remark) && stdout.contains(remark), "{stderr}{stdout}");
    let report = folder.json(&["evaluate", "runs/texts", "--json"])?;
    assert_eq!(report["no_better_than_majority"], true);
    for (metric, expected) in [("accuracy", 6. / 7.), ("balanced_accuracy", 0.5), ("rarest_f1", 0.)]
    {
        assert_eq!(report[format!("majority_{metric}")], expected, "{metric}");
    }
    assert!(report["majority_nll"].is_number(), "{report}");

    // A linear model learns from the texts to train on, and so is not scored on these.
    assert!(stdout.contains("linear, TF-IDF (53 texts)"), "{stdout}");
    assert!(stdout.contains("\nthe linear model is better: "), "{stdout}");
    assert!(report["linear_macro_f1"].is_number(), "{report}");
    let on_all = folder.json(&["evaluate", "runs/texts", "--data", "mails.csv", "--json"])?;
    assert!(on_all["majority_nll"].is_number() && on_all["linear_nll"].is_null(), "{on_all}");
    let easy = easy(&folder)?;
    assert_eq!(
        (&easy["no_better_than_majority"], &easy["linear_accuracy"]),
        (&false.into(), &1.0.into())
    );
    Ok(())
}

#[test]
fn what_is_wrong_with_a_table_is_told_as_it_is() -> Result {
    let folder = folder()?;
    let train = |set: &'static str| ["train", "texts.toml", "--steps", "1", "--set", set];
    folder.write("twice.csv", "text,text,label\na,b,first\n")?;
    let parts = ["twice.csv`, line 1: 2 columns are called `text`"];
    folder.refuse(&train("task.data.path=twice.csv"), &parts)?;
    folder.write("empty.csv", "")?;
    let parts = ["empty.csv`, line 1: there is no column `text`, nor any other"];
    folder.refuse(&train("task.data.path=empty.csv"), &parts)?;
    folder.write("long.csv", "text,label\na,first\nb,last,first\n")?;
    let parts = ["long.csv`, line 3: too many cells: 3, and the heading has 2"];
    folder.refuse(&train("task.data.path=long.csv"), &parts)?;
    // Counted in the whole file, not in the part that is held out.
    let parts =
        ["`task.labels` does not list the label", "unknown labels: \"first\" 20, \"last\" 20"];
    folder.refuse(&train("task.labels=['a','b']"), &parts)?;
    folder.write("first.csv", "text,label\nqq,first\n")?;
    let set = "task.data.validation_path=first.csv";
    let told = folder.succeed(&train(set))?.stderr;
    let missing = "labels of no text for validation, which no score is about: \"last\" 20";
    assert!(told.contains(missing), "{told}");
    let row = |n: usize| format!("What is {n}?,It is number {n}.\n");
    folder
        .write("faq.csv", format!("question,answer\n{}", (0..40).map(row).collect::<String>()))?;
    let init = ["init", "classify", "--data", "faq.csv", "--text", "question", "--label", "answer"];
    folder.refuse(&init, &["`answer` has 40 different labels in 40 texts", "`--label NAME`"])
}

/// The report of a run whose data are easy.
fn easy(folder: &Folder) -> Result<serde_json::Value> {
    let row = |n: usize| format!("{} {n},{}\n", ["aaa", "zzz"][n % 2], ["first", "last"][n % 2]);
    folder.write("easy.csv", format!("text,label\n{}", (0..40).map(row).collect::<String>()))?;
    let data = "task.data={path='easy.csv',validation=0.3,split='stratified'}";
    let trained =
        folder.succeed(&["train", "texts.toml", "-q", "--name", "easy", "--set", data])?;
    assert!(!trained.stdout.contains("linear model is better"), "{}", trained.stdout);
    folder.json(&["evaluate", "runs/easy", "--json"])
}

/// A temperature is fitted after training, and is part of the model wherever it is used.
#[test]
fn probabilities_are_calibrated_in_every_use_of_a_run() -> Result {
    let folder = Folder::new()?;
    folder.write("texts.toml", TEXTS)?;
    // A fifth of the labels is wrong.
    let row = |n: usize| {
        let label = ["first", "last"][(n + usize::from(n.is_multiple_of(5))) % 2];
        format!("{} {n},{label}\n", ["aaa", "zzz"][n % 2])
    };
    folder.write("noisy.csv", format!("text,label\n{}", (0..400).map(row).collect::<String>()))?;
    let train = |name: &'static str, calibration: &'static str| {
        let data = "task.data={path='noisy.csv',validation=0.3,split='stratified'}";
        let args = ["train", "texts.toml", "-q", "--name", name, "--set", data, "--set"];
        folder.succeed(&[&args[..], &[calibration]].concat())
    };
    train("plain", "task.calibration=none")?;
    let shown = train("texts", "task.calibration=temperature")?.stdout;
    for part in ["as trained", "calibrated", "confidence up to", "the temperature of the other"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!folder.path("runs/plain/decision.json").exists());
    let kept = folder.read_json("runs/texts/decision.json")?;
    let temperature = kept["temperature"].as_f64().ok_or("a temperature")?;
    assert_eq!(kept["checkpoint"], "step-000030");
    let report = folder.json(&["evaluate", "runs/texts", "--json"])?;
    assert_eq!(report["calibration"]["temperature"], temperature);
    let [before, nll] =
        [&report["calibration"]["before"]["nll"], &report["nll"]].map(serde_json::Value::as_f64);
    // Sums of two orders.
    assert!(before.zip(nll).is_some_and(|(a, b)| (a - b).abs() < 1e-12), "{report}");

    let of = |model: &str, more: &[&str]| -> Result<f64> {
        let args = [&["classify", model, "aaa 7", "--json"], more].concat();
        let json = folder.json(&args)?;
        Ok(json["classified"][0]["probabilities"]["first"].as_f64().ok_or("a probability")?)
    };
    let logit = |p: f64| (p / (1. - p)).ln();
    let (plain, calibrated) = (of("runs/plain", &[])?, of("runs/texts", &[])?);
    assert!((logit(plain) / temperature - logit(calibrated)).abs() < 1e-5, "{plain}, {calibrated}");
    assert!((plain - calibrated).abs() > 1e-3, "the temperature {temperature} is no test");
    folder.succeed(&["export", "runs/texts", "--to", "folder"])?;
    assert!((of("folder", &[])? - calibrated).abs() < 1e-6);
    // It is of the last checkpoint.
    let before = ["--checkpoint", "20"];
    assert_eq!(of("runs/texts", &before)?, of("runs/plain", &before)?);
    let on_other_data = |run: &str| -> Result<f64> {
        let report = folder.json(&["evaluate", run, "--data", "noisy.csv", "--json"])?;
        Ok(report["nll"].as_f64().ok_or("a loss")?)
    };
    assert_eq!(on_other_data("folder")?, on_other_data("runs/texts")?);
    assert_ne!(on_other_data("runs/plain")?, on_other_data("runs/texts")?);

    folder.succeed(&["report", "runs/texts"])?;
    let page = folder.read("runs/texts/report.html")?;
    let (first, rest) = page.split_once("id=\"samples\"").ok_or("samples")?;
    assert!(first.contains("Probabilities are calibrated: temperature"), "{first}");
    assert!(rest.contains("accuracy by confidence, as trained and calibrated"), "a diagram");
    // Training goes on from what was trained, and so does an evaluation that fits a temperature.
    let again = folder.json(&["evaluate", "runs/texts", "--weights", "runs/texts", "--json"])?;
    assert_eq!(again, report);
    let begin = ["--set", "init_from='runs/texts'", "--set", "optimizer.lr=1e-30"];
    let data = "task.data={path='noisy.csv',validation=0.3,split='stratified'}";
    let tune = ["train", "texts.toml", "-q", "--name", "tuned", "--set", data];
    folder.succeed(&[&tune[..], &begin].concat())?;
    let tuned = folder.json(&["evaluate", "runs/tuned", "--json"])?;
    assert_eq!(tuned["nll"], report["nll"]);

    folder.write(
        "runs/texts/decision.json",
        kept.to_string().replace("temperature\":", "temperature\":-"),
    )?;
    folder.refuse(&["classify", "runs/texts", "a"], &["decision.json", "must be positive"])?;
    let several = ["train", "texts.toml", "--set", "task.objective=labels", "--set"];
    folder.refuse(
        &[&several[..], &["task.calibration=temperature"]].concat(),
        &["`task.calibration` = \"temperature\" needs classes"],
    )
}

/// A text that is the path of a file is probably meant as one.
#[test]
fn a_file_given_as_a_text_is_named_with_its_option() -> Result {
    let folder = trained()?;
    let rows = "nr,text\n1,aaa\n2\n3,\n4,zzz\n";
    folder.write("x.csv", rows)?;
    let rule = "`x.csv` is a file: `--file x.csv` classifies the texts in it";
    folder.refuse(&["classify", "runs/texts", "x.csv"], &[rule])?;
    let classify = ["classify", "runs/texts", "--file", "x.csv"];
    folder.refuse(&classify, &["line 3: too few cells: 1", "`--skip-broken` leaves out such"])?;
    let kept = folder.succeed(&[&classify[..], &["--skip-broken", "-o", "out.csv"]].concat())?;
    assert!(kept.stderr.contains("2 broken rows are left out: line 3"), "{}", kept.stderr);
    let written = folder.read("out.csv")?;
    let starts: Vec<_> = written.lines().map(|line| line.get(..6).unwrap_or(line)).collect();
    assert_eq!(starts, ["nr,tex", "1,aaa,", "4,zzz,"]);
    folder.write("lines.txt", "aaa\nzzz\n")?;
    // The same, by gzip.
    let zipped: &[u8] = b"\x1F\x8B\x08\x00\x00\x00\x00\x00\x02\xFF\x4B\x4C\x4C\xE4\xAA\xAA\xAA\xE2\x02\x00\x5F\x29\x5B\xB5\x08\x00\x00\x00";
    folder.write("lines.txt.gz", zipped)?;
    let of = |file: &str| folder.succeed(&["classify", "runs/texts", "--file", file]);
    assert_eq!(of("lines.txt.gz")?.stdout, of("lines.txt")?.stdout);
    let of_lines = ["classify", "runs/texts", "--file", "lines.txt", "--skip-broken"];
    folder.refuse(&of_lines, &["leaves out rows of a table"])
}

/// The best checkpoint by one metric is not the best by another.
#[test]
fn another_metric_chooses_another_best_checkpoint() -> Result {
    let folder = folder()?;
    let train = |metric: &str, more: &[&str]| {
        let metric = format!("checkpoint.metric={metric}");
        folder.succeed(&[&["train", "texts.toml", "-q", "--set", &metric], more].concat())
    };
    train("macro_f1", &["--stop-after", "11"])?;
    let best = folder.path("runs/texts/checkpoints/best");
    assert_eq!(fs::read_to_string(&best)?.trim(), "step-000010");
    train("balanced_accuracy", &["--resume", "--stop-after", "13"])?;
    assert!(!best.exists(), "no evaluation has measured the other metric");
    train("balanced_accuracy", &["--resume"])?;
    assert!(best.exists());
    Ok(())
}

/// The threshold of a label is chosen after training, and decides wherever the model is used.
#[test]
fn a_label_is_given_from_its_threshold_on() -> Result {
    let folder = folder()?;
    let threshold = ["--set", "task.threshold=precision=1.0"];
    let explained = folder.succeed(&["explain", "task.threshold"])?.stdout;
    assert!(explained.contains("threshold = \"f1\""), "{explained}");
    let follows = "`classify` follows the thresholds";
    let args = ["train", "texts.toml", "-q", "--set", "optimizer.lr=1e-3"];
    let shown = folder.succeed(&[&args[..], &threshold].concat())?.stdout;
    assert!(shown.contains("F1 at 0.5") && shown.contains(follows), "{shown}");
    let kept = folder.read_json("runs/texts/decision.json")?;
    let threshold = kept["thresholds"]["last"].as_f64().ok_or("a threshold")?;
    let texts: Vec<String> =
        (0..40).map(|n| format!("{} {n}", ["a", "z"][n % 2].repeat(1 + n / 2 % 5))).collect();
    let ask = |model: &str| -> Result<serde_json::Value> {
        let texts = texts.iter().map(String::as_str);
        let args: Vec<&str> = ["classify", model, "--json"].into_iter().chain(texts).collect();
        Ok(folder.json(&args)?["classified"].clone())
    };
    let answers = ask("runs/texts")?;
    for one in answers.as_array().ok_or("a list")? {
        let p = one["probabilities"]["last"].as_f64().ok_or("a probability")?;
        let is_last = p >= threshold;
        assert_eq!(one["label"], if is_last { "last" } else { "first" }, "{one}");
        for score in one["scores"].as_array().ok_or("scores")? {
            let expected =
                if score["label"] == "last" { is_last.into() } else { serde_json::Value::Null };
            assert_eq!(score["accepted"], expected, "{one}");
        }
    }
    folder.succeed(&["export", "runs/texts", "--to", "folder"])?;
    assert_eq!(folder.read_json("folder/labels.json")?["thresholds"]["last"], threshold);
    assert_eq!(ask("folder")?, answers);

    let folder = others()?;
    folder.succeed(&other("several", "chosen", &["--set", "task.threshold=f1"]))?;
    let kept = folder.read_json("runs/chosen/decision.json")?["thresholds"].clone();
    assert!(kept["x"].is_number() && kept["y"].is_number(), "{kept}");
    let json = folder.json(&["classify", "runs/chosen", "aaa 3", "zz 4", "--json"])?;
    for one in json["classified"].as_array().ok_or("a list")? {
        let scores = one["scores"].as_array().ok_or("scores")?.iter();
        let accepted = scores.filter(|score| score["accepted"] == true);
        let accepted: Vec<_> = accepted.map(|score| score["label"].clone()).collect();
        assert_eq!(one["labels"], serde_json::Value::Array(accepted), "{one}");
    }
    folder.refuse(
        &other("numbers", "wrong", &["--set", "task.threshold=f1"]),
        &["`task.threshold` = \"f1\"", "regression"],
    )?;
    folder.refuse(
        &["train", "texts.toml", "--set", "task.threshold=f2"],
        &["`task.threshold` = \"f2\" must be"],
    )
}

/// The best checkpoint is that of the chosen metric in the chosen direction, also of a run that was interrupted.
#[test]
fn the_best_checkpoint_is_chosen_by_a_metric_of_its_own() -> Result {
    let folder = folder()?;
    let settings = |metric: &'static str, direction: &'static str| {
        ["training.evaluate_every=5", "checkpoint.select=best", metric, direction]
            .map(|setting| ["--set", setting])
            .concat()
    };
    let train = |name: &'static str, settings: &[&str], more: &[&str]| {
        let args = ["train", "texts.toml", "-q", "--name", name];
        folder.succeed(&[&args[..], settings, more].concat())
    };
    let best = |name: &str| folder.read(&format!("runs/{name}/checkpoints/best"));
    let falling = settings("checkpoint.metric=loss", "checkpoint.direction=max");
    train("worst", &falling, &[])?;
    // The loss falls in every evaluation.
    assert_eq!(best("worst")?, "step-000005\n");
    train("best", &settings("checkpoint.metric=loss", "checkpoint.every=10"), &[])?;
    assert_eq!(best("best")?, "step-000030\n");
    train("halves", &falling, &["--stop-after", "13"])?;
    train("halves", &falling, &["--resume"])?;
    let files = ["checkpoints/best", "checkpoints/step-000030/state.json", "report.json"];
    folder.assert_same(["runs/worst", "runs/halves"], &files)?;
    let args = ["train", "texts.toml", "--set", "checkpoint.metric=bleu_accuracy"];
    folder.refuse(&args, &["`checkpoint.metric` = \"bleu_accuracy\": an evaluation gives"])
}

/// Every metric that an evaluation logs can stop a run, also those over all texts.
#[test]
fn a_run_stops_by_any_metric_of_its_evaluations() -> Result {
    let folder = folder()?;
    for metric in ["macro_f1", "matthews_correlation"] {
        let set = format!("training.early_stopping.metric={metric}");
        folder.succeed(&["train", "texts.toml", "--set", &set, "-q", "--name", metric])?;
        assert!(folder.read(&format!("runs/{metric}/metrics.jsonl"))?.contains(metric));
    }
    let unknown = ["train", "texts.toml", "--set", "training.early_stopping.metric=bleu_accuracy"];
    folder.refuse(&unknown, &["\"bleu_accuracy\": an evaluation gives", "`macro_f1`"])
}

/// A table comes back with what the model says of each row, whatever its column of texts is called.
#[test]
fn the_rows_of_a_table_come_back_with_labels_and_probabilities() -> Result {
    let folder = trained()?;
    folder.write("mine.csv", "nr,Remark\n1,\"aaa, 1\"\n2,zz 2\n")?;
    let classify = ["classify", "runs/texts", "--file", "mine.csv", "-o", "out.csv"];
    let log = folder.succeed(&classify)?.stderr;
    assert!(log.contains("wrote out.csv: 2 rows"), "{log}");
    assert!(log.contains("reads texts from the column `Remark`"), "{log}");
    folder.refuse(&classify, &["`out.csv` exists"])?;
    let rows = folder.read("out.csv")?;
    let heading = "nr,Remark,predicted,probability,probability of first,probability of last\n";
    assert!(rows.starts_with(heading) && rows.contains("\n1,\"aaa, 1\",first,0."), "{rows}");
    assert!(rows.contains("\n2,zz 2,last,0."), "{rows}");
    let again = ["classify", "runs/texts", "--file", "out.csv", "-o", "more.csv"];
    folder.refuse(&again, &["out.csv", "it has a column `predicted` already"])?;
    folder.refuse(
        &["classify", "runs/texts", "--file", "mine.csv", "-o", "out.jsonl"],
        &["a file of the same ending"],
    )
}

/// What looks like a mistake in the labels is said before it is learnt.
#[test]
fn labels_are_counted_and_doubtful_rows_are_named() -> Result {
    let folder = Folder::new()?;
    let row = |n: usize| format!("{n} words,{}\n", ["good", "bad", "Good"][n % 3]);
    let rows: String = (0..60).map(row).collect();
    folder.write("rated.csv", format!("Review,Verdict\n{rows}0 words,bad\n"))?;
    let told = folder.succeed(&["init", "classify", "--data", "rated.csv"])?.stderr;
    let expected = [
        "labels: \"bad\" 21, \"Good\" 20, \"good\" 20",
        "the labels \"Good\", \"good\" differ only in case or spaces",
        "1 text occurs more than once (by their letters and digits)",
        "1 text has unlike labels (by their letters and digits), such as \"0 words\" in lines 2 and 62",
    ];
    for part in expected {
        assert!(told.contains(part), "{told}");
    }
    let config = folder.read("classify.toml")?;
    assert!(config.contains("\"Review\"") && config.contains("\"Verdict\""), "{config}");
    let log = folder.succeed(&["train", "classify.toml", "--dry-run"])?.stderr;
    assert!(log.contains(expected[0]), "{log}");
    folder.write("turned.csv", format!("Verdict,Review\n{rows}"))?;
    let columns = ["--text", "Verdict", "--label", "Review", "-o", "turned.toml"];
    folder.succeed(&[&["init", "classify", "--data", "turned.csv"], &columns[..]].concat())?;
    assert!(folder.read("turned.toml")?.contains("label = \"Review\""));
    let twice = ["--text", "Review", "--label", "Review", "-o", "a.toml"];
    folder.refuse(
        &[&["init", "classify", "--data", "rated.csv"], &twice[..]].concat(),
        &["has one column `Review`, and it is named for two purposes"],
    )?;
    folder.refuse(
        &["init", "classify", "--data", "rated.csv", "--text", "Remark", "-o", "a.toml"],
        &["has no column `Remark` among `Review`, `Verdict`"],
    )
}

/// A table in any format trains, is scored, and comes back with labels.
#[test]
fn tables_of_other_formats_are_read_and_what_differs_is_said() -> Result {
    let folder = trained()?;
    let rows = |separator: &str| {
        let row = |n: usize| {
            format!("{} {n}{separator}{}\n", ["aa", "zz"][n % 2], ["first", "last"][n % 2])
        };
        (0..40).map(row).collect::<String>()
    };
    let list: Vec<_> = (0..40)
        .map(|n| {
            format!(
                "{{\"text\": \"{} {n}\", \"label\": \"{}\"}}",
                ["aa", "zz"][n % 2],
                ["first", "last"][n % 2]
            )
        })
        .collect();
    folder.write("a.json", format!("[{}]", list.join(",\n")))?;
    folder.write("a.tsv", format!("text\tlabel\n{}", rows("\t")))?;
    folder.write("german.csv", format!("text;label\n{}", rows(";")))?;
    let wide = format!("\u{FEFF}text,label\n{}", rows(","));
    folder
        .write("wide.csv", wide.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>())?;
    for n in 0..40 {
        let class = folder.path(["classes/first", "classes/last"][n % 2]);
        fs::create_dir_all(&class)?;
        fs::write(class.join(format!("{n}.txt")), format!("{} {n}\n", ["aa", "zz"][n % 2]))?;
    }
    for (data, note) in [
        ("a.json", ""),
        ("a.tsv", ""),
        ("german.csv", "german.csv`: its columns are separated by semicolons"),
        ("wide.csv", "wide.csv`: read as UTF-16"),
        ("classes", ""),
    ] {
        let file = format!("{data}.toml");
        let told = folder.succeed(&["init", "classify", "--data", data, "-o", &file])?.stderr;
        let why = "objective = \"classes\", because the column `label` holds 2 different values";
        assert!(told.contains(note) && told.contains(why), "{told}");
        folder.succeed(&["train", &file, "--dry-run"])?;
        let log = folder.succeed(&["evaluate", "runs/texts", "--data", data])?;
        assert!(log.stderr.contains(note), "{}", log.stderr);
        let scores = folder.json(&["evaluate", "runs/texts", "--data", data, "--json"])?;
        assert_eq!(scores["n_texts"], 40, "{data}");
    }
    folder.succeed(&["classify", "runs/texts", "--file", "german.csv", "-o", "out.csv"])?;
    assert!(folder.read("out.csv")?.starts_with("text;label;predicted;probability;"));
    folder.succeed(&["classify", "runs/texts", "--file", "a.json", "-o", "out.json"])?;
    assert_eq!(folder.read_json("out.json")?[39]["label"], "last");
    Ok(())
}

/// One bad row used to end the reading, and the next was told only when it was mended.
#[test]
fn broken_rows_are_told_all_at_once_and_can_be_left_out() -> Result {
    let folder = folder()?;
    let good = folder.read("texts.jsonl")?;
    let bad = "{\"text\": \"\", \"label\": \"first\", \"id\": 1}\n{\"text\": \"a\"\n{\"label\": \"last\"}\n";
    folder.write("texts.jsonl", format!("{good}{bad}"))?;
    let listed = [
        "texts.jsonl`, line 41: the text is empty; 3 of 43 rows are broken: line 41: the text is empty; line 42: ",
        "line 43: there is no field `text` among `label`",
        "(`--skip-broken`)",
    ];
    folder.refuse(&["train", "texts.toml", "--dry-run"], &listed)?;
    let log = folder.succeed(&["train", "texts.toml", "-q", "--skip-broken"])?;
    let quiet = folder.succeed(&["train", "texts.toml", "--dry-run", "--skip-broken"])?.stderr;
    assert!(
        quiet.contains("3 broken rows are left out: line 41: the text is empty; line 42"),
        "{quiet}"
    );
    assert!(quiet.contains("not used: `id`"), "{quiet}");
    drop(log);
    let warned = folder.succeed(&["init", "classify", "--data", "texts.jsonl", "-o", "a.toml"])?;
    for part in &listed[..2] {
        assert!(warned.stderr.contains(part), "{}", warned.stderr);
    }
    let skip = ["init", "classify", "--data", "texts.jsonl", "-o", "b.toml", "--skip-broken"];
    assert!(folder.succeed(&skip)?.stderr.contains("3 broken rows are left out"));
    folder.succeed(&["train", "b.toml", "--dry-run"])?;
    folder.write("test.csv", "text,label\naa,first\n,last\nzz,last\n")?;
    let evaluate = ["evaluate", "runs/texts", "--data", "test.csv"];
    let log = folder.succeed(&[&evaluate[..], &["--skip-broken"]].concat())?.stderr;
    assert!(log.contains("1 broken row is left out: line 3: the text is empty"), "{log}");
    Ok(())
}
