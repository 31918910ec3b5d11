//! `evaluate`: the table of any checkpoint.

use serde_json::{Value, json};

use crate::program::{Folder, Result};

const KEYS: [&str; 16] = [
    "accuracy",
    "nll",
    "bayes_accuracy",
    "bayes_nll",
    "linear_accuracy",
    "linear_nll",
    "lookup_accuracy",
    "lookup_nll",
    "majority_accuracy",
    "majority_nll",
    "exact",
    "n_windows",
    "accuracy_standard_error",
    "nll_standard_error",
    "linear_examples",
    "lookup_examples",
];

#[test]
fn the_table_is_the_one_that_training_ended_with() -> Result {
    let folder = Folder::new()?;
    let trained = folder.succeed(&["train", "tiny.toml"])?.stdout;
    let before = folder.files()?;
    let outcome = folder.succeed(&["evaluate", "runs/tiny"])?;
    assert_eq!(outcome.stdout, trained);
    assert_eq!(outcome.stderr, "");
    let json = folder.succeed(&["evaluate", "runs/tiny", "--json"])?.stdout;
    assert_eq!(json, folder.read("runs/tiny/report.json")?);
    assert!(folder.files()? == before);
    let report: Value = serde_json::from_str(&json)?;
    assert!(report.as_object().ok_or("an object")?.keys().eq(KEYS), "{report}");
    let shown = format!(
        "{:.4}   {:.4}",
        report["accuracy"].as_f64().unwrap(),
        report["nll"].as_f64().unwrap()
    );
    assert!(trained.contains(&shown), "{shown} {trained}");
    Ok(())
}

#[test]
fn a_checkpoint_is_chosen_by_name_by_step_or_by_path() -> Result {
    let folder = Folder::new()?;
    // With this learning rate the loss falls and then rises: the best checkpoint is not the latest.
    let settings = ["--set", "optimizer={kind=\"adamw\",lr=0.3}", "--set", "schedule=constant"];
    folder.succeed(&[&["train", "tiny.toml", "-q"], &settings[..]].concat())?;
    let nll = |args: &[&str]| -> Result<String> {
        let report = folder.succeed(&[&["evaluate", "--json"], args].concat())?.stdout;
        Ok(serde_json::from_str::<Value>(&report)?["nll"].to_string())
    };
    let run = "runs/tiny";
    let steps: Vec<String> = ["2", "4", "6"]
        .into_iter()
        .map(|step| nll(&[run, "--checkpoint", step]))
        .collect::<Result<_>>()?;
    assert!(steps[0] != steps[1] && steps[1] != steps[2], "{steps:?}");
    assert_eq!(nll(&[run])?, steps[2]);
    assert_eq!(nll(&[run, "--checkpoint", "latest"])?, steps[2]);
    assert_eq!(nll(&[run, "--checkpoint", "step-000002"])?, steps[0]);
    let best = folder.read("runs/tiny/checkpoints/best")?;
    assert_eq!(nll(&[run, "--checkpoint", "best"])?, nll(&[run, "--checkpoint", best.trim()])?);
    for (path, step) in [
        ("runs/tiny/checkpoints/step-000004", 1),
        ("runs/tiny/checkpoints/step-000004/", 1),
        ("runs/tiny/checkpoints/step-000004/model.safetensors", 1),
        ("runs/tiny/checkpoints/latest", 2),
        ("runs/tiny/checkpoints", 2),
        ("runs/tiny/", 2),
    ] {
        assert_eq!(nll(&[path])?, steps[step], "{path}");
    }
    assert_eq!(nll(&["runs/tiny/checkpoints/best"])?, nll(&[run, "--checkpoint", "best"])?);
    assert_eq!(nll(&["runs/tiny/checkpoints/step-000004", "--checkpoint", "2"])?, steps[0]);
    Ok(())
}

#[test]
fn the_configuration_says_which_checkpoint_is_used() -> Result {
    let folder = Folder::new()?;
    let settings =
        ["--set", "checkpoint.select=best", "--set", "optimizer={kind=\"adamw\",lr=0.3}"];
    let trained = folder.succeed(&[&["train", "tiny.toml", "-q"], &settings[..]].concat())?.stdout;
    let best = folder.succeed(&["evaluate", "runs/tiny", "--checkpoint", "best"])?.stdout;
    assert_eq!(folder.succeed(&["evaluate", "runs/tiny"])?.stdout, best);
    assert_eq!(trained, best);
    Ok(())
}

#[test]
fn a_run_may_have_the_name_of_a_step_or_of_a_selection() -> Result {
    let folder = Folder::new()?;
    for name in ["500", "best", "latest", "step-000002"] {
        let trained = folder.succeed(&["train", "tiny.toml", "-q", "--name", name])?.stdout;
        for path in [format!("runs/{name}"), format!("runs/{name}/")] {
            assert_eq!(folder.succeed(&["evaluate", &path])?.stdout, trained, "{path}");
        }
    }
    Ok(())
}

#[test]
fn a_long_window_is_sampled_and_says_so() -> Result {
    let folder = Folder::new()?;
    let args = ["train", "tiny.toml", "-q", "--set", "task.window=13"];
    let stdout = folder.succeed(&args)?.stdout;
    assert!(stdout.contains("over 20,000 windows; standard error of the transformer"), "{stdout}");
    Ok(())
}

/// A model is scored on labelled data that it has not seen, from a run and from a folder.
#[test]
fn a_classifier_of_texts_is_scored_on_a_test_file() -> Result {
    let folder = crate::classifying::trained()?;
    folder.succeed(&["export", "runs/texts", "--to", "own", "--format", "tealight"])?;
    folder.write("test.csv", "text,label\naa 1,first\nzz 2,last\nzzz 3,last\n")?;
    // The texts of the training are not needed.
    std::fs::remove_file(folder.path("texts.jsonl"))?;
    let of = |model: &str| folder.json(&["evaluate", model, "--data", "test.csv", "--json"]);
    let scores = of("runs/texts")?;
    assert_eq!((&scores["n_texts"], &scores["accuracy"]), (&json!(3), &json!(1.0)), "{scores}");
    assert_eq!(of("own")?, scores);
    let table = folder.succeed(&["evaluate", "own", "--data", "test.csv"])?;
    assert!(table.stdout.contains("label ╲ predicted"), "{}", table.stdout);
    assert!(table.stderr.contains("scored on all examples of `--data`"), "{}", table.stderr);
    folder.write("other.csv", "text,label\naa 1,first\nzz 2,unheard\nzz 3,unheard\nzz 4,odd\n")?;
    for model in ["runs/texts", "own"] {
        let refused = ["evaluate", model, "--data", "other.csv"];
        let rule = "other.csv`, line 3: the model does not know the label \"unheard\"; unknown labels: \"unheard\" 2, \
                    \"odd\" 1; known ones: \"first\", \"last\"";
        folder.refuse(&refused, &[rule])?;
    }
    // A mistake is shown as the file has it, which the tokenizer does not keep, and with its line.
    folder.write("wrong.csv", "text,label\naa 1,first\naaa~ 2,last\nzz 3,last\n")?;
    let wrong = folder.json(&["evaluate", "own", "--data", "wrong.csv", "--json"])?;
    let mistake = &wrong["mistakes"][0];
    assert_eq!((&mistake["text"], &mistake["place"]), (&json!("aaa~ 2"), &json!("wrong.csv:3")));
    let table = folder.succeed(&["evaluate", "own", "--data", "wrong.csv"])?.stdout;
    assert!(table.contains("aaa~ 2") && table.contains("wrong.csv:3"), "{table}");
    folder.refuse(&["evaluate", "own"], &["`own`"])?;
    folder.refuse(&["evaluate", "own", "--data", "nowhere.csv"], &["nowhere.csv"])
}

/// The table at the end of training has the scores on both: the data that chose the checkpoint, and the test data.
#[test]
fn test_data_of_a_run_are_scored_beside_those_that_are_held_out() -> Result {
    let folder = crate::classifying::folder()?;
    folder.write("test.csv", "text,label\naa 1,first\nzz 2,last\nzzz 3,last\n")?;
    let train = |name: &'static str, more: &[&'static str]| {
        [&["train", "texts.toml", "--name", name], more].concat()
    };
    folder.succeed(&train("without", &["-q"]))?;
    let with = ["--set", "training.test_data=test.csv"];
    let trained = folder.succeed(&train("with", &with))?.stdout;
    let (own, of_test) = trained.split_once("test data, test.csv:").ok_or("no test data")?;
    assert!(
        own.contains("texts held out for validation") && !of_test.contains("held out"),
        "{trained}"
    );
    assert_eq!(folder.succeed(&["evaluate", "runs/with"])?.stdout, trained);
    let report = folder.read_json("runs/with/report.json")?;
    let test = folder.json(&["evaluate", "runs/without", "--data", "test.csv", "--json"])?;
    assert_eq!(report["test"]["accuracy"], test["accuracy"]);
    assert_eq!(
        (&report["test"]["n_texts"], &report["test"]["data"]),
        (&json!(3), &json!("test.csv"))
    );
    let model = "checkpoints/step-000030/model.safetensors";
    folder.assert_same(["runs/with", "runs/without"], &[model])?;
    // The page shows it where it is read first.
    folder.succeed(&["report", "runs/with"])?;
    let page = folder.read("runs/with/report.html")?;
    let (first, _) = page.split_once("id=\"samples\"").ok_or("samples")?;
    assert!(first.contains("transformer on test data, test.csv"), "{first}");
    // Its matrix is one, too.
    assert_eq!(page.matches("<table class=\"confusion\">").count(), 2);
    // A mistake is told before training.
    let same = ["--set", "training.test_data=texts.jsonl"];
    folder.refuse(
        &train("mistaken", &same),
        &["`training.test_data` is the file of `task.data.path`"],
    )?;
    folder.write("test.csv", "text,label\naa 1,first\nzz 2,unheard\n")?;
    let parts = ["`training.test_data`", "test.csv`, line 3: ", "the label \"unheard\""];
    folder.refuse(&train("mistaken", &with), &parts)?;
    assert!(!folder.path("runs/mistaken").exists());
    folder.succeed(&["train", "texts.toml", "--name", "with", "--resume", "-q"])?;
    Ok(())
}

/// A share of one file is scored as a test file is.
#[test]
fn a_share_of_the_texts_is_for_a_test() -> Result {
    let folder = crate::classifying::folder()?;
    let with = ["train", "texts.toml", "--set"];
    let rest = [
        "task.data={path='texts.jsonl',validation=0.2,split='stratified',test=0.25}",
        "--name",
        "with",
    ];
    let trained = folder.succeed(&[&with[..], &rest].concat())?;
    assert!(trained.stdout.contains("test data, a share of 0.25 of texts.jsonl:"), "{trained:?}");
    assert_eq!(folder.succeed(&["evaluate", "runs/with"])?.stdout, trained.stdout);
    let report = folder.read_json("runs/with/report.json")?;
    // Of 40 texts 10 are for the test, and a fifth of the others is held out.
    assert_eq!((&report["test"]["n_texts"], &report["n_texts"]), (&json!(10), &json!(6)));
    // All of the file is scored where it is asked for.
    let all = folder.json(&["evaluate", "runs/with", "--data", "texts.jsonl", "--json"])?;
    assert_eq!(all["n_texts"], 40);
    folder.write("other.csv", "text,label\naa 1,first\nzz 2,last\n")?;
    let two = ["--set", "training.test_data=other.csv"];
    let parts = ["`training.test_data` = ", "`task.data.test` = 0.25 are two tests"];
    folder.refuse(&[&with[..], &["task.data.test=0.25"], &two].concat(), &parts)?;
    let dry = [&with[..], &["task.data.test=0.25", "--dry-run"], &two].concat();
    folder.refuse(&dry, &parts)?;
    for (share, rule) in [
        ("0.99999", "leaves 0 of 40 texts to train on"),
        ("-1", "must be at least 0 and less than 1"),
        ("nan", "must be at least 0 and less than 1"),
    ] {
        let set = format!("task.data.test={share}");
        let parts = ["`task.data.test` = ", rule];
        folder.refuse(&["train", "texts.toml", "--set", &set], &parts)?;
    }
    Ok(())
}

/// A test of all of the file scores each example; that of the share its own examples alone.
#[test]
fn a_share_of_tags_pairs_and_queries_is_for_a_test() -> Result {
    let folder = Folder::new()?;
    let sentence = |n: usize| format!("Anna{n} B-PER\nsleeps O\n\n");
    folder.write("tags.conll", (0..80).map(sentence).collect::<String>())?;
    let pair = |n: usize| format!("question {n},answer {n}\n");
    let pairs = format!("anchor,positive\n{}", (0..80).map(pair).collect::<String>());
    folder.write("pairs.csv", &pairs)?;
    let rows = |n: usize| format!("query {n},good {n},1\nquery {n},bad {n},0\n");
    let rows = format!("query,passage,label\n{}", (0..80).map(rows).collect::<String>());
    folder.write("queries.csv", &rows)?;
    let small =
        "[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\n[training]\nsteps = 2\nbatch_size = 4\n";
    for (kind, file, n, key) in [
        ("tag", "tags.conll", 80, "n_sentences"),
        ("embed", "pairs.csv", 80, "n_queries"),
        ("rerank", "queries.csv", 80, "n_queries"),
    ] {
        let task = format!(
            "[task]\nkind = \"{kind}\"\nseq_len = 24\ntokenizer = {{ kind = \"byte\" }}\n[task.data]\npath = \"{file}\"\n\
             validation = 0.25\ntest = 0.25\n"
        );
        folder.write(&format!("{kind}.toml"), format!("{small}{task}"))?;
        let trained = folder.succeed(&["train", &format!("{kind}.toml")])?;
        let title = format!("test data, a share of 0.25 of {file}:");
        assert!(trained.stdout.contains(&title), "{kind}: {trained:?}");
        assert!(trained.stderr.contains(" are held out for a test"), "{kind}: {trained:?}");
        let report = folder.read_json(&format!("runs/{kind}/report.json"))?;
        let [n_test, n_held_out] = [&report["test"][key], &report[key]].map(Value::as_u64);
        assert!(n_test.is_some_and(|n| (8..36).contains(&n)), "{kind}: {report}");
        assert!(n_held_out.is_some_and(|n| (6..30).contains(&n)), "{kind}: {report}");
        let all = folder.json(&["evaluate", &format!("runs/{kind}"), "--data", file, "--json"])?;
        assert_eq!(all[key], n, "{kind}: {all}");
    }
    Ok(())
}

#[test]
fn weather_and_continued_texts_are_scored_on_other_data() -> Result {
    let folder = Folder::trained()?;
    folder.write("days.txt", "RCSRCSRCSRCSRCSRCS\n".repeat(9))?;
    let scores = folder.json(&["evaluate", "runs/tiny", "--data", "days.txt", "--json"])?;
    assert!(scores["accuracy"].is_number() && scores["nll"].is_number(), "{scores}");
    let told = folder.succeed(&["evaluate", "runs/tiny", "--data", "days.txt"])?.stdout;
    assert!(told.contains(" windows; ") && !told.contains("held out"), "{told}");

    let folder = crate::languages::trained("causal")?;
    folder.write("other.txt", "It was sunny today.\n\nIt rained all day.\n\n".repeat(30))?;
    let scores = folder.json(&["evaluate", "runs/causal", "--data", "other.txt", "--json"])?;
    assert!(scores["loss"].as_f64().is_some_and(|loss| loss > 0.), "{scores}");
    Ok(())
}

#[test]
fn a_language_model_is_scored_on_other_texts() -> Result {
    let folder = crate::languages::trained("masked")?;
    folder.succeed(&["export", "runs/masked", "--to", "own"])?;
    folder.write("other.txt", "It was sunny today.\n\nIt rained all day.\n\n".repeat(30))?;
    let of = |model: &str| folder.json(&["evaluate", model, "--data", "other.txt", "--json"]);
    let (of_run, of_folder) = (of("runs/masked")?, of("own")?);
    assert!(of_run["loss"].as_f64().is_some_and(|loss| loss > 0.), "{of_run}");
    assert!(of_folder["loss"].is_number(), "{of_folder}");
    Ok(())
}

#[test]
fn a_classifier_of_pictures_is_scored_on_class_folders() -> Result {
    let folder = crate::picturing::trained()?;
    let labels = folder.read_json("runs/shapes/labels.json")?;
    for place in [0, 1] {
        let class = labels["labels"][place].as_str().ok_or("a class")?;
        std::fs::create_dir_all(folder.path(&format!("test/{class}")))?;
        let picture = ["a.png", "b.png"][place];
        std::fs::copy(folder.path(picture), folder.path(&format!("test/{class}/{picture}")))?;
    }
    let scores = folder.json(&["evaluate", "runs/shapes", "--data", "test", "--json"])?;
    assert_eq!(scores["n_pictures"], json!(2), "{scores}");
    folder.succeed(&["export", "runs/shapes", "--to", "own", "--format", "tealight"])?;
    assert_eq!(folder.json(&["evaluate", "own", "--data", "test", "--json"])?, scores);
    Ok(())
}

#[test]
fn expressions_of_a_file_are_scored() -> Result {
    let folder = Folder::new()?;
    let rows = "[MAX 2 9 [MIN 4 7 ] 0 ],9\n[SM 5 8 1 ],4\n[MED 3 1 2 ],2\n";
    folder.write("lists.csv", format!("expression,value\n{rows}"))?;
    let short = ["--steps", "1", "--set", "schedule.warmup_steps=1", "-q", "--name", "lists"];
    let test = ["--set", "training.test_data=lists.csv"];
    folder.succeed(&[&["train", "listops/small"], &short[..], &test].concat())?;
    let scores = folder.json(&["evaluate", "runs/lists", "--data", "lists.csv", "--json"])?;
    assert_eq!(scores["n_test"], json!(3), "{scores}");
    assert_eq!(scores["by_depth"][0]["n"], json!(2), "{scores}");
    let report = folder.read_json("runs/lists/report.json")?;
    assert_eq!(report["test"]["nll"], scores["nll"]);
    folder.write("wrong.csv", "expression,value\n[MAX 2 9 ],2\n")?;
    let rule = "wrong.csv`, line 2: the value is \"2\", and that of the expression is 9";
    folder.refuse(&["evaluate", "runs/lists", "--data", "wrong.csv"], &[rule])
}

/// What is wrong with test data is not shown at the setting of the training data.
#[test]
fn a_fault_of_test_data_is_told_as_theirs() -> Result {
    let folder = crate::classifying::folder()?;
    let train = ["train", "texts.toml", "-q"];
    let asks = |path: &str| format!("training.test_data={path}");
    let before = folder.run(&[&train[..], &["--set", &asks("nowhere.csv")]].concat())?.stderr;
    assert!(
        before.contains("`training.test_data`: ") && before.contains("nowhere.csv` cannot be read"),
        "{before}"
    );
    assert!(!before.contains("task.data.path") && !before.contains("-->"), "{before}");
    folder.succeed(&[&train[..], &["--stop-after", "10"]].concat())?;
    // Also of a run that goes on with other test data than before.
    let resume = [&train[..], &["--resume", "--set"]].concat();
    let later = folder.run(&[&resume[..], &[&asks("texts.toml")]].concat())?.stderr;
    assert!(
        later.contains("`training.test_data`: ") && later.contains("texts.toml` is no table"),
        "{later}"
    );
    assert!(!later.contains("task.data.path"), "{later}");
    folder.write("test.csv", "text,label\naa 1,first\nzz 2,last\n")?;
    folder.succeed(&[&resume[..], &[&asks("test.csv")]].concat())?;
    assert_eq!(folder.read_json("runs/texts/report.json")?["test"]["n_texts"], json!(2));
    let evaluated = folder.run(&["evaluate", "runs/texts", "--data", "nowhere.csv"])?.stderr;
    assert!(!evaluated.contains("resolved.toml"), "{evaluated}");
    folder.refuse(&["evaluate", "texts"], &["there is no `texts`; did you mean `runs/texts`?"])?;
    folder.refuse(&["classify", "texts", "a"], &["did you mean `runs/texts`?"])
}
