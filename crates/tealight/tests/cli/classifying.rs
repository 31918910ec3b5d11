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

fn folder() -> Result<Folder> {
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

fn trained() -> Result<Folder> {
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
fn what_cannot_be_classified_is_refused() -> Result {
    let folder = trained()?;
    folder.refuse(&["classify", "runs/texts", " "], &["a text is empty"])?;
    folder.refuse(&["translate", "runs/texts", "a"], &["task \"seq2seq\"", "\"classify\""])?;
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
        ("task.tokenizer.kind=words", &["words", "wordpiece"]),
    ] {
        folder.refuse(&["train", "texts.toml", "--set", setting], parts)?;
    }
    let causal = ["task.read_out=cls", "model.causal=true"];
    let args = ["train", "texts.toml", "--set", causal[0], "--set", causal[1]];
    folder.refuse(&args, &["`task.read_out` = \"cls\" needs `model.causal` = false"])
}
