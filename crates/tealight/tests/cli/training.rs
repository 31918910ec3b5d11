//! `train`: output and files.

use std::fs;

use serde_json::Value;

use crate::program::{Folder, Outcome, Result, TINY};

#[test]
fn the_table_goes_to_stdout_and_the_log_to_stderr() -> Result {
    let folder = Folder::new()?;
    let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "tiny.toml"])?;
    for row in
        ["majority", "linear (40 examples)", "lookup table (40", "transformer", "Bayes limit"]
    {
        assert!(stdout.lines().any(|line| line.starts_with(row)), "{stdout}");
    }
    assert!(stdout.contains("exact: all 27 possible windows"), "{stdout}");
    assert!(stderr.contains("963 parameters") && stderr.contains("run runs/tiny"), "{stderr}");
    assert!(
        stderr.contains("step 6/6  loss ") && stderr.contains("step 6  validation"),
        "{stderr}"
    );
    assert!(stderr.contains("tealight evaluate runs/tiny"), "{stderr}");
    // Without a terminal there is no progress bar.
    for text in [&stdout, &stderr] {
        assert!(!text.contains(['\u{1b}', '\r', '█']), "{text}");
    }
    Ok(())
}

#[test]
fn quiet_leaves_the_table_alone() -> Result {
    let folder = Folder::new()?;
    for quiet in ["--quiet", "-q"] {
        let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "tiny.toml", quiet])?;
        assert_eq!(stderr, "");
        assert!(stdout.trim_start().starts_with("accuracy"), "{stdout}");
    }
    Ok(())
}

#[test]
fn each_run_has_a_directory_of_its_own_and_nothing_is_overwritten() -> Result {
    let folder = Folder::trained()?;
    let first = folder.files()?;
    let stdout = folder.succeed(&["train", "tiny.toml"])?.stdout;
    assert_eq!(folder.succeed(&["train", "tiny.toml"])?.stdout, stdout);
    folder.succeed(&["train", "tiny.toml", "--name", "another", "--runs", "deep/down"])?;
    for directory in ["runs/tiny", "runs/tiny-2", "runs/tiny-3", "deep/down/another"] {
        assert!(folder.path(directory).join("report.json").is_file(), "{directory}");
    }
    let all = folder.files()?;
    assert!(first.iter().all(|(path, content)| all[path] == *content));
    Ok(())
}

#[test]
fn a_dry_run_builds_everything_and_leaves_nothing() -> Result {
    let folder = Folder::new()?;
    let before = folder.files()?;
    let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "tiny.toml", "--dry-run"])?;
    assert_eq!(stdout, "");
    assert!(stderr.contains("963 parameters") && stderr.contains("dry run"), "{stderr}");
    assert!(folder.files()? == before);
    folder.refuse(
        &["train", "tiny.toml", "--dry-run", "--set", "model.n_heads=3"],
        &["does not divide"],
    )
}

#[test]
fn a_runs_directory_holds_what_the_architecture_says() -> Result {
    let folder = Folder::new()?;
    let args = ["train", "tiny.toml", "-q", "--set", "seed=8", "--set", "training.ema_decay=0.9"];
    folder.succeed(&args)?;
    let names = |directory: &str| -> Result<Vec<String>> {
        let entries = fs::read_dir(folder.path(directory))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    let run =
        [".lock", "checkpoints", "config.toml", "manifest.json", "metrics.jsonl", "report.json"];
    let others = ["resolved.toml", "samples.jsonl", "summary.json"];
    assert_eq!(names("runs/tiny")?, [&run[..], &others].concat());
    let checkpoints = ["best", "latest", "step-000002", "step-000004", "step-000006"];
    assert_eq!(names("runs/tiny/checkpoints")?, checkpoints);
    let tensors = ["ema.safetensors", "model.safetensors", "optimizer.safetensors"];
    let files = [&["SHA256SUMS"], &tensors[..], &["state.json"]].concat();
    assert_eq!(names("runs/tiny/checkpoints/step-000006")?, files);
    assert_eq!(folder.read("runs/tiny/checkpoints/latest")?, "step-000006\n");
    assert_eq!(folder.read("runs/tiny/config.toml")?, TINY);
    let resolved = folder.read("runs/tiny/resolved.toml")?;
    for setting in ["seed = 8\n", "ema_decay = 0.9\n", "beta2 = 0.999\n", "kind = \"softmax\"\n"] {
        assert!(resolved.contains(setting), "{setting} {resolved}");
    }
    let manifest = folder.read_json("runs/tiny/manifest.json")?;
    assert_eq!(manifest["tealight_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["device"], "cpu");
    assert_eq!(manifest["n_parameters"], 963);
    assert_eq!(manifest["sizes"]["n_train"], 40);
    assert!(manifest["threads"].is_u64() && manifest["started"].is_string(), "{manifest}");
    Ok(())
}

#[test]
fn the_summary_holds_the_numbers_that_were_printed() -> Result {
    let folder = Folder::trained()?;
    let summary = folder.read_json("runs/tiny/summary.json")?;
    let report = folder.read_json("runs/tiny/report.json")?;
    assert_eq!(summary["n_parameters"], 963);
    for metric in ["accuracy", "nll"] {
        let number = &summary["metrics"][metric];
        assert!(number.is_number() && *number == report[metric], "{metric}");
    }
    Ok(())
}

#[test]
fn every_line_of_the_metrics_has_its_keys() -> Result {
    let folder = Folder::trained()?;
    let mut steps = Vec::new();
    for line in folder.read("runs/tiny/metrics.jsonl")?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let keys: Vec<&str> =
            line.as_object().ok_or("an object")?.keys().map(String::as_str).collect();
        let split = line["split"].as_str().ok_or("a split")?;
        let expected: &[&str] = match split {
            "train" => &[
                "step",
                "split",
                "loss",
                "lr",
                "grad_norm",
                "examples_per_second",
                "accuracy",
                "nll",
            ],
            _ => &["step", "split", "accuracy", "loss", "nll"],
        };
        assert_eq!(keys, expected);
        assert!(keys.iter().all(|&key| key == "split" || line[key].is_number()), "{line}");
        steps.push(format!("{}{}", line["step"], &split[..1]));
    }
    assert_eq!(steps.concat(), "1t2t2v3t4t4v5t6t6v");
    Ok(())
}

#[test]
fn the_resolved_configuration_makes_the_same_run() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "runs/tiny/resolved.toml", "-q", "--name", "again"])?;
    let model = "checkpoints/step-000006/model.safetensors";
    folder.assert_same(["runs/tiny", "runs/again"], &[model, "resolved.toml", "report.json"])
}

#[test]
fn the_number_of_threads_changes_nothing() -> Result {
    let folder = Folder::new()?;
    for threads in ["1", "3"] {
        let mut command = folder.command(&["train", "tiny.toml", "-q"]);
        Outcome::run(command.env("RAYON_NUM_THREADS", threads))?;
    }
    let checkpoints =
        ["runs/tiny", "runs/tiny-2"].map(|run| format!("{run}/checkpoints/step-000006"));
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
    folder.assert_same(checkpoints.each_ref().map(String::as_str), &files)
}

#[test]
fn names_that_are_no_directory_are_refused() -> Result {
    let folder = Folder::new()?;
    let long = "x".repeat(300);
    for name in ["", ".", "..", "a/b", "/tmp/a", ".hidden", "a\nb", "a/", &long] {
        let parts = ["the name of a run", "must be that of a visible directory"];
        folder.refuse(&["train", "tiny.toml", "--name", name], &parts)?;
        folder.refuse(&["train", "tiny.toml", "--resume", "--name", name], &["name of a run"])?;
    }
    folder.write(".toml", TINY)?;
    folder
        .refuse(&["train", ".toml"], &["`.toml`, must be that of a visible directory", "--name"])?;
    for name in ["a b", "…", "-", "a.b", "500", "best", "step-000002"] {
        let name = format!("--name={name}");
        folder.succeed(&["train", "tiny.toml", "-q", &name, "--stop-after", "1"])?;
    }
    Ok(())
}

#[test]
fn a_place_where_nothing_can_be_written_is_named() -> Result {
    let folder = Folder::new()?;
    folder.write("file", "")?;
    folder.refuse(&["train", "tiny.toml", "--runs", "file"], &["cannot create `file`"])?;
    folder
        .refuse(&["train", "tiny.toml", "--runs", "file/runs"], &["cannot create `file/runs`"])?;
    fs::create_dir(folder.path("locked"))?;
    let mut permissions = fs::metadata(folder.path("locked"))?.permissions();
    permissions.set_readonly(true);
    fs::set_permissions(folder.path("locked"), permissions)?;
    // Permissions do not apply to root.
    if fs::write(folder.path("locked/probe"), "").is_err() {
        folder.refuse(&["train", "tiny.toml", "--runs", "locked"], &["`locked/tiny`", "denied"])?;
        folder.refuse(&["train", "tiny.toml", "--runs", "locked/a"], &["`locked/a`", "denied"])?;
    }
    Ok(())
}

#[test]
fn a_run_that_blows_up_says_so_and_what_to_try() -> Result {
    let folder = Folder::new()?;
    let settings = ["train", "tiny.toml", "-q", "--set", "optimizer={kind=\"sgd\",lr=1e30}"];
    folder.run(&settings)?.assert_refused(&["step ", "Try a lower `optimizer.lr`"]);
    let settings = ["train", "tiny.toml", "--set", "optimizer={kind=\"adamw\",lr=1e30}"];
    folder.run(&settings)?.assert_refused(&[
        "the result of `linear`, operation ",
        " of the pass, which reads `layer.0.attention.",
        "reads the same batches: add `--set training.bad_step=skip`",
    ]);
    Ok(())
}
