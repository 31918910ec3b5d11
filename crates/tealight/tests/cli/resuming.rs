//! `--stop-after` and `--resume`: a resumed run equals an uninterrupted one.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::program::{Folder, Result, TINY};

const FILES: [&str; 3] = ["model.safetensors", "optimizer.safetensors", "state.json"];

/// The outputs of a run without times: files of checkpoints, metrics, the report.
fn product(folder: &Folder, run: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut product = BTreeMap::new();
    let all = folder.files()?;
    let root = folder.path(run);
    for (path, content) in all.iter().filter(|(path, _)| path.starts_with(&root)) {
        let name = path.strip_prefix(&root)?.display().to_string();
        if let (Some(content), true) = (content, name.starts_with("checkpoints/")) {
            product.insert(name, content.clone());
        }
    }
    product.insert("report.json".to_owned(), folder.read(&format!("{run}/report.json"))?.into());
    product
        .insert("samples.jsonl".to_owned(), folder.read(&format!("{run}/samples.jsonl"))?.into());
    let mut metrics = Vec::new();
    for line in folder.read(&format!("{run}/metrics.jsonl"))?.lines() {
        let mut line: Value = serde_json::from_str(line)?;
        line.as_object_mut().ok_or("an object")?.remove("examples_per_second");
        metrics.extend(format!("{line}\n").bytes());
    }
    product.insert("metrics.jsonl".to_owned(), metrics);
    Ok(product)
}

fn assert_same_run(folder: &Folder, one: &str, other: &str) -> Result {
    let (one, other) = (product(folder, one)?, product(folder, other)?);
    assert!(one.keys().eq(other.keys()), "{:?} {:?}", one.keys(), other.keys());
    for (name, content) in one {
        assert!(content == other[&name], "{name} differs");
    }
    Ok(())
}

#[test]
fn a_run_stopped_anywhere_and_resumed_is_the_uninterrupted_run() -> Result {
    for stop in ["0", "1", "2", "3", "5", "6"] {
        let folder = Folder::new()?;
        let settings = ["--set", "training.ema_decay=0.5", "--set", "model.dropout=0.2"];
        let train = |args: &[&str]| {
            folder.succeed(&[&["train", "tiny.toml"], &settings[..], args].concat())
        };
        let whole = train(&["--name", "whole"])?;
        let stopped = train(&["--stop-after", stop])?;
        if stop != "6" {
            assert_eq!(stopped.stdout, "");
            let message = format!("stopped after step {stop}; continue with --resume");
            assert!(stopped.stderr.contains(&message), "{}", stopped.stderr);
            assert_eq!(train(&["--resume"])?.stdout, whole.stdout);
        }
        if !matches!(stop, "0" | "2" | "6") {
            // `--stop-after` writes an additional checkpoint.
            let extra = format!("runs/tiny/checkpoints/step-00000{stop}");
            std::fs::remove_dir_all(folder.path(&extra))?;
        }
        assert_same_run(&folder, "runs/whole", "runs/tiny")?;
    }
    Ok(())
}

#[test]
fn a_runs_directory_resumes_the_run() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "3"])?;
    folder.succeed(&["train", "runs/tiny-2"])?;
    let checkpoints =
        ["runs/tiny", "runs/tiny-2"].map(|run| format!("{run}/checkpoints/step-000006"));
    folder.assert_same(checkpoints.each_ref().map(String::as_str), &FILES)
}

#[test]
fn the_last_of_several_runs_is_resumed() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "2"])?;
    let stderr = folder.succeed(&["train", "tiny.toml", "--resume"])?.stderr;
    assert!(stderr.contains("run runs/tiny-2\n"), "{stderr}");
    assert!(!folder.path("runs/tiny-3").exists());
    Ok(())
}

#[test]
fn a_file_whose_name_ends_in_a_number_keeps_its_runs_to_itself() -> Result {
    let folder = Folder::new()?;
    folder.write("tiny-2.toml", TINY.replace("[log]\nevery = 1", "[log]\nevery = 2"))?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "2"])?;
    folder.succeed(&["train", "tiny-2.toml", "--stop-after", "3"])?;
    let stderr = folder.succeed(&["train", "tiny.toml", "--resume", "--stop-after", "4"])?.stderr;
    assert!(stderr.contains("run runs/tiny\n"), "{stderr}");
    assert!(!folder.path("runs/tiny-2/checkpoints/step-000004").exists());
    let stderr = folder.succeed(&["train", "tiny-2.toml", "--resume"])?.stderr;
    assert!(stderr.contains("run runs/tiny-2\n"), "{stderr}");
    // The second run of a file is no run of the file that is named like it.
    folder.succeed(&["train", "tiny.toml", "--name", "a", "--stop-after", "0"])?;
    folder.succeed(&["train", "tiny.toml", "--name", "a", "--stop-after", "0"])?;
    let parts = ["no run `runs/a-2`", "another name: `tealight train runs/a-2` continues it"];
    folder.refuse(&["train", "tiny.toml", "--name", "a-2", "--resume"], &parts)
}

#[test]
fn of_several_runs_the_last_with_the_settings_of_the_file_is_resumed() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "2"])?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "2", "--set", "seed=8"])?;
    let stderr = folder.succeed(&["train", "tiny.toml", "--resume"])?.stderr;
    assert!(stderr.contains("run runs/tiny\n"), "{stderr}");
    let parts = ["`runs/tiny-2` was started with", "`tealight train runs/tiny-2` continues"];
    folder.refuse(&["train", "tiny.toml", "--resume", "--set", "seed=9"], &parts)
}

#[test]
fn resuming_a_finished_run_changes_nothing() -> Result {
    let folder = Folder::trained()?;
    let before = folder.files()?;
    let first = folder.succeed(&["evaluate", "runs/tiny"])?.stdout;
    for args in [&["train", "tiny.toml", "--resume"][..], &["train", "runs/tiny"]] {
        assert_eq!(folder.succeed(args)?.stdout, first);
        assert!(folder.files()? == before);
    }
    Ok(())
}

/// No evaluation improves by this much, so the second one stops the run.
const IMPATIENT: [&str; 4] = [
    "--set",
    "training.early_stopping.patience=1",
    "--set",
    "training.early_stopping.min_delta=100.0",
];

#[test]
fn resuming_a_run_that_early_stopping_has_ended_changes_nothing() -> Result {
    let folder = Folder::new()?;
    let first = folder.succeed(&[&["train", "tiny.toml"], &IMPATIENT[..]].concat())?;
    assert!(first.stderr.contains("step 4: stopped early, `loss`"), "{}", first.stderr);
    let before = folder.files()?;
    let again = folder.succeed(&[&["train", "tiny.toml", "--resume"], &IMPATIENT[..]].concat())?;
    assert_eq!(again.stdout, first.stdout);
    assert!(folder.files()? == before);
    Ok(())
}

#[test]
fn a_run_that_ends_before_the_step_to_stop_at_is_finished() -> Result {
    let folder = Folder::new()?;
    let outcome =
        folder.succeed(&[&["train", "tiny.toml", "--stop-after", "5"], &IMPATIENT[..]].concat())?;
    assert!(outcome.stdout.contains("transformer"), "{}", outcome.stderr);
    let outcome = folder.succeed(&["train", "tiny.toml", "--stop-after", "99"])?;
    assert!(outcome.stdout.contains("transformer"), "{outcome:?}");
    let note = "`--stop-after 99` has no effect: the run ends at `training.steps` = 6";
    assert!(outcome.stderr.contains(note), "{outcome:?}");
    Ok(())
}

#[test]
fn a_step_to_stop_at_that_the_run_has_passed_is_refused() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "3"])?;
    let parts = ["`--stop-after 2` lies before step 3, which `runs/tiny` has reached"];
    folder.refuse(&["train", "tiny.toml", "--resume", "--stop-after", "2"], &parts)?;
    folder.refuse(&["train", "runs/tiny", "--stop-after", "2"], &parts)?;
    let stderr = folder.succeed(&["train", "runs/tiny", "--stop-after", "3"])?.stderr;
    assert!(stderr.contains("stopped after step 3"), "{stderr}");
    Ok(())
}

#[test]
fn a_crash_in_the_middle_of_a_line_or_a_checkpoint_is_survived() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "4"])?;
    let metrics = folder.read("runs/tiny-2/metrics.jsonl")?;
    folder.write("runs/tiny-2/metrics.jsonl", format!("{metrics}{{\"step\":5,\"spl"))?;
    let half = folder.path("runs/tiny-2/checkpoints/.step-000005.new.tmp");
    std::fs::create_dir(&half)?;
    std::fs::write(half.join("model.safetensors"), "half")?;
    folder.write("runs/tiny-2/checkpoints/latest", "step-0000")?;
    folder.succeed(&["train", "tiny.toml", "--resume"])?;
    assert_same_run(&folder, "runs/tiny", "runs/tiny-2")
}

#[test]
fn a_run_that_cannot_be_read_keeps_no_other_from_being_resumed() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "2"])?;
    std::fs::create_dir(folder.path("runs/tiny-2"))?;
    folder.write("runs/tiny-2/manifest.json", "{")?;
    folder.write("runs/tiny-2/resolved.toml", "")?;
    let stderr = folder.succeed(&["train", "tiny.toml", "--resume", "--stop-after", "3"])?.stderr;
    assert!(stderr.contains("stopped after step 3"), "{stderr}");
    Ok(())
}

#[test]
fn there_must_be_something_to_resume() -> Result {
    let folder = Folder::new()?;
    let parts = ["nothing to resume: there is no run `runs/tiny`"];
    folder.refuse(&["train", "tiny.toml", "--resume"], &parts)?;
    let lacks = |file: &str| {
        let hint = format!("it exists, but lacks the `{file}` of a run that has started");
        folder.refuse(&["train", "tiny.toml", "--resume"], &[parts[0], &hint])
    };
    std::fs::create_dir_all(folder.path("runs/tiny"))?;
    lacks("manifest.json")?;
    // As after a kill between the two files.
    folder.write("runs/tiny/resolved.toml", "")?;
    lacks("manifest.json")?;
    folder.write("runs/tiny/manifest.json", "")?;
    std::fs::remove_file(folder.path("runs/tiny/resolved.toml"))?;
    lacks("resolved.toml")
}

#[test]
fn a_resumed_run_keeps_its_settings() -> Result {
    let folder = Folder::trained()?;
    folder
        .write("tiny.toml", TINY.replace("steps = 6", "steps = 7").replace("n = 60", "n = 61"))?;
    let parts = [
        "`runs/tiny` was started with other settings than `tiny.toml` has now",
        "`training.steps` was 6 and is 7",
        "`task.regime.n` was 60 and is 61",
        "without --resume",
    ];
    folder.refuse(&["train", "tiny.toml", "--resume"], &parts)?;
    folder.write("tiny.toml", TINY)?;
    let args = ["train", "tiny.toml", "--resume", "--set", "optimizer=sgd"];
    folder
        .refuse(&args, &["`optimizer.kind` was \"adamw\" and is \"sgd\"", "`optimizer.beta1`"])?;
    let parts = ["than the command line has now", "`seed` was 7 and is 1"];
    folder.refuse(&["train", "runs/tiny", "--set", "seed=1"], &parts)?;
    // Settings that may change are kept for later sessions.
    folder.succeed(&["train", "runs/tiny", "--set", "training.bad_step=skip"])?;
    assert!(folder.read("runs/tiny/resolved.toml")?.contains("kind = \"skip\""));
    folder.refuse(&["train", "runs/tiny", "--name", "a"], &["`--name` cannot be used with"])
}
