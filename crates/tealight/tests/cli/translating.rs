//! Sequence-to-sequence models: `train`, `evaluate`, `--resume` and `translate`.

use std::fs;

use serde_json::Value;

use crate::program::{Folder, Outcome, Result, SMALL};

/// The task of a short run.
const PAIRS: &str = "\
seed = 7
[task]
kind = \"seq2seq\"
n_validation = 20
n_decoded = 7
[task.source]
kind = \"reverse\"
n_symbols = 5
length = 5
";

fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("pairs.toml", format!("{PAIRS}{SMALL}"))?;
    Ok(folder)
}

pub(crate) fn trained() -> Result<Folder> {
    let folder = folder()?;
    folder.succeed(&["train", "pairs.toml", "-q"])?;
    Ok(folder)
}

fn translate(folder: &Folder, args: &[&str]) -> Result<String> {
    let outcome = folder.succeed(&[&["translate", "runs/pairs"], args].concat())?;
    assert_eq!(outcome.stderr, "");
    Ok(outcome.stdout)
}

fn refuse(settings: &[&str], parts: &[&str]) -> Result {
    let overrides = settings.iter().flat_map(|setting| ["--set", setting]);
    let args: Vec<&str> = ["train", "pairs.toml"].into_iter().chain(overrides).collect();
    folder()?.refuse(&args, parts)
}

#[test]
fn a_run_of_pairs_is_trained_evaluated_and_resumed_like_any_other() -> Result {
    let folder = folder()?;
    let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "pairs.toml"])?;
    for text in ["exact match", "token accuracy", "over 20 pairs held out", " → "] {
        assert!(stdout.contains(text), "{stdout}");
    }
    assert!(stderr.contains("exact_match") && stderr.contains("tealight translate runs/pairs"));
    assert_eq!(folder.succeed(&["evaluate", "runs/pairs"])?.stdout, stdout);
    let json = folder.succeed(&["evaluate", "runs/pairs", "--json"])?.stdout;
    assert_eq!(json, folder.read("runs/pairs/report.json")?);
    let summary = folder.read_json("runs/pairs/summary.json")?;
    for metric in ["exact_match", "token_accuracy", "loss"] {
        assert!(summary["metrics"][metric].is_number(), "{summary}");
    }
    let manifest = folder.read_json("runs/pairs/manifest.json")?;
    assert_eq!(manifest["sizes"]["vocab_size"], 8);
    folder.succeed(&["inspect", "runs/pairs"])?;

    folder.succeed(&["train", "pairs.toml", "-q", "--name", "halves", "--stop-after", "3"])?;
    folder.succeed(&["train", "pairs.toml", "-q", "--name", "halves", "--resume"])?;
    let model = "checkpoints/step-000006/model.safetensors";
    folder.assert_same(["runs/pairs", "runs/halves"], &[model, "vocabulary.json", "report.json"])
}

/// Pairs of one's own are scored with the vocabulary and the lengths of the run.
#[test]
fn a_run_of_pairs_is_scored_on_a_file_of_pairs() -> Result {
    let folder = trained()?;
    folder.write("pairs.tsv", "abc\tcba\nab\tba\n")?;
    let evaluate = ["evaluate", "runs/pairs", "--data", "pairs.tsv"];
    let scores = folder.json(&[&evaluate[..], &["--json"]].concat())?;
    assert_eq!(scores["n_pairs"], 2, "{scores}");
    for (line, rule) in [
        (
            "abcabc\tcba",
            "line 2: the source has 6 characters, and the model is built for at most 5",
        ),
        ("ab\tbz", "line 2: `z` in \"bz\" is not in the model's vocabulary"),
    ] {
        folder.write("pairs.tsv", format!("abc\tcba\n{line}\n"))?;
        folder.refuse(&evaluate, &["pairs.tsv`, ", rule])?;
    }
    folder.write("pairs.tsv", "\n")?;
    folder.refuse(&evaluate, &["pairs.tsv` holds no pair"])
}

#[test]
fn texts_come_from_the_command_line_or_from_standard_input() -> Result {
    let folder = trained()?;
    let together = translate(&folder, &["abc", "b", "ccb"])?;
    assert_eq!(together.lines().count(), 3);
    let args = ["translate", "runs/pairs", "abc", "-"];
    assert_eq!(folder.run_with_input(&args, "b\n\nccb\n")?.stdout, together);
    Ok(())
}

#[test]
fn one_beam_is_the_likeliest_and_beams_come_best_first() -> Result {
    let folder = trained()?;
    let greedy = translate(&folder, &["abcab", "b"])?;
    for args in [
        &["--beams", "1"][..],
        &["--temperature", "0", "--seed", "3"],
        &["--top-k", "1"],
        &["--temperature", "1e-300"],
    ] {
        assert_eq!(translate(&folder, &[&["abcab", "b"], args].concat())?, greedy, "{args:?}");
    }
    let json = translate(&folder, &["abcab", "--beams", "4", "--length-penalty", "1", "--json"])?;
    let json: Value = serde_json::from_str(&json)?;
    let translation = &json["translations"][0];
    assert_eq!(translation["source"], "abcab");
    let outputs = translation["outputs"].as_array().ok_or("an array")?;
    let score = |output: &Value| output["score"].as_f64().unwrap_or(f64::NAN);
    assert!(outputs.len() == 4 && outputs.is_sorted_by(|a, b| score(a) >= score(b)), "{json}");
    assert!(outputs[0]["text"].is_string() && outputs[0]["has_ended"].is_boolean());
    Ok(())
}

#[test]
fn the_seed_decides_what_is_drawn() -> Result {
    let folder = trained()?;
    let drawn = |seed| translate(&folder, &["abcab", "abc", "--seed", seed]);
    assert_eq!(drawn("1")?, drawn("1")?);
    let all = ["1", "2", "3", "4"].map(|seed| drawn(seed).unwrap_or_default());
    assert!(all.iter().any(|one| *one != all[0]), "{all:?}");
    assert!(translate(&folder, &["abcab", "--seed", "1", "--max-len", "2"])?.trim().len() <= 2);
    Ok(())
}

#[test]
fn what_cannot_be_translated_is_refused() -> Result {
    let folder = trained()?;
    let cases: [(&[&str], &[&str]); 10] = [
        (&["xyz"], &["`x` in \"xyz\" is not in the model's vocabulary"]),
        (&["abcabc"], &["has 6 characters, and this model reads at most 5"]),
        (&[" "], &["a text is empty"]),
        (&["a", "--beams", "0"], &["--beams", "expected a positive integer"]),
        (&["a", "--beams", "1001"], &["`--beams` = 1001 must be at most 1000"]),
        (
            &["a", "--beams", "2", "--length-penalty", "-1"],
            &["--length-penalty", "expected a number, 0 or more"],
        ),
        (&["a", "--temperature", "-1"], &["--temperature", "expected a number, 0 or more"]),
        (&["a", "--top-k", "0"], &["--top-k", "expected a positive integer"]),
        (&["a", "--max-len", "0"], &["--max-len", "expected a positive integer"]),
        (&["a", "--max-len", "6"], &["`--max-len` = 6", "at most 5"]),
    ];
    for (args, parts) in cases {
        folder.refuse(&[&["translate", "runs/pairs"], args].concat(), parts)?;
    }
    let both = ["translate", "runs/pairs", "a", "--beams", "2", "--seed", "1"];
    assert_ne!(folder.run(&both)?.code, Some(0));
    fs::remove_file(folder.path("runs/pairs/vocabulary.json"))?;
    folder.refuse(&["translate", "runs/pairs", "a"], &["cannot read", "vocabulary.json"])
}

#[test]
fn what_both_sides_read_can_be_seen() -> Result {
    let folder = trained()?;
    let json = folder.json(&["attend", "runs/pairs", "abc", "--json"])?;
    assert_eq!(json["source"], "abc");
    let layers = json["layers"].as_array().ok_or("an array")?;
    let names: Vec<_> = layers.iter().filter_map(|layer| layer["name"].as_str()).collect();
    assert_eq!(names, ["encoder layer 1", "decoder layer 1", "decoder layer 1 across"]);
    assert_eq!(layers[2]["keys"], serde_json::json!(["a", "b", "c", "<end>"]));
    assert_eq!(layers[2]["queries"][0], "<begin>");
    let text = folder.succeed(&["attend", "runs/pairs", "abc", "--text"])?.stdout;
    assert!(text.contains("decoder layer 1 across"), "{text}");
    folder.succeed(&["attend", "runs/pairs", "abc"])?;
    folder.refuse(&["attend", "runs/pairs", "xyz"], &["`x` in \"xyz\" is not in the model's"])
}

#[test]
fn an_exported_folder_translates_and_attends_like_its_run() -> Result {
    let folder = trained()?;
    folder.succeed(&["export", "runs/pairs", "--to", "exported"])?;
    folder.succeed(&["export", "exported", "--to", "again"])?;
    let of = |model: &str| -> Result<[String; 2]> {
        let beams = ["translate", model, "abcab", "b", "--beams", "3", "--json"];
        let maps = ["attend", model, "abc", "--text"];
        Ok([folder.succeed(&beams)?.stdout, folder.succeed(&maps)?.stdout])
    };
    for exported in ["exported", "again"] {
        assert_eq!(of(exported)?, of("runs/pairs")?);
    }
    assert!(folder.read("exported/README.md")?.contains("tealight translate FOLDER"));
    folder.refuse(&["translate", "exported", "xyz"], &["`x` in \"xyz\" is not in the model's"])?;
    let fewer = folder.read("exported/vocabulary.json")?.replace("\"a\",", "");
    folder.write("exported/vocabulary.json", fewer)?;
    let parts = ["`exported`: it has a vocabulary of 7 tokens, and its model has 8"];
    folder.refuse(&["translate", "exported", "b"], &parts)?;
    fs::remove_file(folder.path("exported/vocabulary.json"))?;
    folder.refuse(&["translate", "exported", "b"], &["`exported` has no tokenizer", "vocabulary"])
}

/// A run with TensorBoard once failed while its model did not generate an end token.
#[test]
fn a_model_that_comes_to_no_end_is_seen_as_far_as_it_reads() -> Result {
    let folder = folder()?;
    let settings = ["--set", "training.steps=1", "--set", "log.tensorboard=true"];
    folder.succeed(&[&["train", "pairs.toml", "-q"], &settings[..]].concat())?;
    let json: Value = serde_json::from_str(&translate(&folder, &["abcab", "--json"])?)?;
    assert_eq!(json["translations"][0]["outputs"][0]["has_ended"], false, "{json}");
    let json = folder.json(&["attend", "runs/pairs", "abcab", "--json"])?;
    let queries = json["layers"][1]["queries"].as_array().ok_or("an array")?;
    assert_eq!(queries.len(), 1 + 5);
    Ok(())
}

#[test]
fn a_command_for_another_task_says_so() -> Result {
    let folder = trained()?;
    folder.refuse(
        &["forecast", "runs/pairs", "--start", "RCS"],
        &["is a model of the task \"seq2seq\"", "this needs a run of the task \"weather\""],
    )?;
    folder.succeed(&["train", "tiny.toml", "-q"])?;
    folder.refuse(
        &["translate", "runs/tiny", "a"],
        &["is a model of the task \"weather\"", "this needs an encoder-decoder"],
    )
}

#[test]
fn a_run_from_a_file_is_used_without_the_file_and_evaluated_with_the_same_only() -> Result {
    let folder = folder()?;
    let line = |n: usize| format!("{n}\t{}\n", n + 1);
    let text: String = (10..60).map(line).collect();
    folder.write("my.tsv", &text)?;
    let source = "task.source={kind=\"file\",path=\"my.tsv\",max_len=4}";
    folder.succeed(&["train", "pairs.toml", "-q", "--set", source])?;
    let before = translate(&folder, &["17"])?;
    folder.succeed(&["evaluate", "runs/pairs"])?;
    folder.write("my.tsv", text.replace("17\t18", "17\t81"))?;
    folder.refuse(&["evaluate", "runs/pairs"], &["my.tsv` has changed since the run began"])?;
    fs::remove_file(folder.path("my.tsv"))?;
    assert_eq!(translate(&folder, &["17"])?, before);
    Ok(())
}

#[test]
fn files_that_hold_no_pairs_are_refused_with_their_line() -> Result {
    let refuse_file = |content: &[u8], parts: &[&str]| -> Result {
        let folder = folder()?;
        folder.write("my.tsv", content)?;
        let source = "task.source={kind=\"file\",path=\"my.tsv\",max_len=4}";
        folder.refuse(&["train", "pairs.toml", "--set", source], parts)
    };
    refuse_file(b"a\tb\n\na b\n", &["my.tsv`, line 3: there is no tab"])?;
    refuse_file(b"a\tb\tc\n", &["my.tsv`, line 1: there is more than one tab"])?;
    refuse_file(b"a\t\n", &["my.tsv`, line 1: the target is empty"])?;
    refuse_file(b"abcde\tb\n", &["line 1: the source has 5 characters", "max_len` = 4"])?;
    refuse_file(b"a\tb\n\xff\tb\n", &["my.tsv`, line 2: this is not UTF-8"])?;
    refuse_file(b"a\tb\n", &["`task.n_validation` = 20 leaves nothing", "1 different"])?;
    refuse_file(b"", &["leaves nothing", "0 different"])?;
    refuse(&["task.source={kind=\"file\",path=\"my.tsv\"}"], &["my.tsv", "No such file"])?;
    refuse(&["task.source=file"], &["`task.source.path` is missing"])
}

#[test]
fn settings_that_no_run_of_pairs_can_have_are_refused_by_name() -> Result {
    let cases: [(&[&str], &[&str]); 20] = [
        (&["model.causal=true"], &["`model.causal` = true", "causal in its decoder"]),
        (&["model.max_seq_len=5"], &["`model.max_seq_len` = 5 is less than the 6 positions"]),
        (&["task.n_validation=0"], &["`task.n_validation` = 0 must be positive"]),
        (&["task.n_validation=10000000"], &["`task.n_validation` = 10000000 must be at most"]),
        (&["task.n_validation=1000"], &["`task.source` has too few different pairs"]),
        (&["task.label_smoothing=1.0"], &["`task.label_smoothing` = 1 must be"]),
        (&["task.label_smoothing=nan"], &["`task.label_smoothing` = NaN must be"]),
        (&["task.source.n_symbols=0"], &["`task.source.n_symbols` = 0 must be from 1 to 62"]),
        (&["task.source.n_symbols=63"], &["`task.source.n_symbols` = 63 must be from 1 to 62"]),
        (&["task.source.length=0"], &["`task.source.length` = 0 must be positive"]),
        (&["task.source.length=5000"], &["`task.source.length` = 5000 must be at most 4096"]),
        (&["task.source.min_length=0"], &["`task.source.min_length` = 0 must be positive"]),
        (&["task.source.min_length=6"], &["`task.source.min_length` = 6 is above"]),
        (&["task.source={kind=\"sort\",n_symbols=63}"], &["`task.source.n_symbols` = 63"]),
        (&["task.source={kind=\"file\",max_len=0}"], &["`task.source.max_len` = 0"]),
        (&["task.source={kind=\"file\",level=\"letters\"}"], &["letters", "characters"]),
        (&["task.source={kind=\"dates\",n=3}"], &["n"]),
        (&["task.source.kind=copy"], &["`copy`", "`reverse`", "`dates`"]),
        (&["task.window=3"], &["unknown key `window`"]),
        (
            &["training.early_stopping.metric=accuracy"],
            &["an evaluation gives `exact_match`, `loss`, `token_accuracy`"],
        ),
    ];
    cases.iter().try_for_each(|(settings, parts)| refuse(settings, parts))?;
    let huge = "18446744073709551615";
    for key in ["task.n_validation", "task.source.length", "task.source.n_symbols"] {
        refuse(&[&format!("{key}={huge}")], &[&format!("`{key}` = {huge} must be")])?;
    }
    let batch = ["training.batch_size=1000000", "model.d_model=2048", "task.source.length=4096"];
    refuse(&batch, &["`training.batch_size` = 1000000", "GiB of memory"])
}

#[test]
fn exact_match_may_decide_when_a_run_stops() -> Result {
    let folder = folder()?;
    let args = ["train", "pairs.toml", "-q", "--set", "training.early_stopping.metric=exact_match"];
    folder.succeed(&args)?;
    Ok(())
}

/// The error names the table in which the kind is not supported.
#[test]
fn an_attention_in_the_wrong_place_is_named_with_its_table() -> Result {
    let nystrom = "{kind=\"nystrom\",n_landmarks=2}";
    refuse(
        &[&format!("model.attention={nystrom}")],
        &["`model.attention.kind` = \"nystrom\" cannot be causal", "decoder", "encoder_attention"],
    )?;
    refuse(
        &[&format!("model.cross_attention={nystrom}")],
        &["`model.cross_attention.kind` = \"nystrom\" cannot read another sequence"],
    )?;
    refuse(
        &["model.attention=rwkv"],
        &["`model.attention.kind` = \"rwkv\" must be causal", "[model.encoder_attention]"],
    )?;
    let folder = folder()?;
    let settings = ["--set", "model.attention=linear", "--set", "model.encoder_attention=softmax"];
    folder.succeed(&[&["train", "pairs.toml", "-q"], &settings[..]].concat())?;
    translate(&folder, &["abc", "--beams", "2"])?;
    Ok(())
}
