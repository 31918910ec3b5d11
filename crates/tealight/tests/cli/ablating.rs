//! `ablate`: all combinations and seeds, interruption and continuation, and errors.

use std::fs::{self, File};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{Folder, Outcome, Result, TINY};

const TWO_BY_TWO: [&str; 6] =
    ["ablate", "tiny.toml", "--vary", "model.n_heads=1,2", "--seeds", "2"];
/// A run that is long enough to be interrupted, with few checkpoints.
const LONGER: [&str; 6] = [
    "--set",
    "training.steps=400",
    "--set",
    "training.evaluate_every=100",
    "--set",
    "checkpoint.every=100",
];
const OUTPUT: &str = "runs/ablations/tiny";

fn json(folder: &Folder, output: &str) -> Result<Value> {
    Ok(serde_json::from_str(&folder.read(&format!("{output}/table.json"))?)?)
}

/// The metrics of each run, in the order of variants and seeds.
fn metrics(folder: &Folder, output: &str) -> Result<Vec<Value>> {
    let table = json(folder, output)?;
    let variants = table["variants"].as_array().ok_or("variants")?;
    let runs = variants.iter().filter_map(|variant| variant["runs"].as_array()).flatten();
    Ok(runs.map(|run| run["summary"]["metrics"].clone()).collect())
}

/// The names of the runs' directories.
fn runs(folder: &Folder, output: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder.path(output))? {
        let entry = entry?;
        if entry.path().is_dir() {
            names.push(entry.file_name().into_string().map_err(|_| "a name")?);
        }
    }
    names.sort();
    Ok(names)
}

#[test]
fn every_combination_is_trained_with_every_seed_and_compared() -> Result {
    let folder = Folder::new()?;
    let vary = ["--vary", "model.position.kind=none,learned"];
    let outcome = folder.succeed(&[&TWO_BY_TWO[..], &vary].concat())?;
    let rows: Vec<&str> = outcome.stdout.lines().collect();
    assert!(rows[0].starts_with("n_heads   position.kind   runs"), "{}", outcome.stdout);
    for part in ["accuracy", "nll", "parameters", "examples/s", "memory (MiB)", "time (s)"] {
        assert!(rows[0].contains(part), "{}", rows[0]);
    }
    for (row, start) in rows[2..6].iter().zip(["1", "1", "2", "2"]) {
        assert!(row.starts_with(start) && row.contains(" ± "), "{row}");
    }
    assert!(outcome.stderr.contains("[8/8] n_heads=2,position.kind=learned,seed=2: accuracy"));
    let markdown = folder.read(&format!("{OUTPUT}/table.md"))?;
    assert!(markdown.starts_with("| n_heads | position.kind | runs |"), "{markdown}");
    let csv = folder.read(&format!("{OUTPUT}/table.csv"))?;
    assert!(
        csv.starts_with("model.n_heads,model.position.kind,n_finished,n_failed,accuracy_mean,")
    );
    assert!(csv.lines().count() == 5 && csv.contains("\n2,none,2,0,"), "{csv}");
    for picture in ["result_accuracy", "result_nll", "validation_loss", "validation_accuracy"] {
        let svg = folder.read(&format!("{OUTPUT}/{picture}.svg"))?;
        assert!(svg.contains("n_heads=2, position.kind=none"), "{picture}");
        assert!(svg.contains("mean ± standard deviation of 2 seeds"), "{picture}");
        assert!(folder.path(&format!("{OUTPUT}/{picture}.png")).is_file(), "{picture}");
    }
    let table = json(&folder, OUTPUT)?;
    let last = &table["variants"][3];
    assert_eq!(last["settings"]["model.n_heads"], "2");
    assert_eq!(last["runs"][1]["state"], "finished");
    assert!(last["runs"][1]["summary"]["seconds"].as_f64() > Some(0.));
    let single = |run: usize| last["runs"][run]["summary"]["metrics"]["nll"].as_f64();
    let mean = single(0).zip(single(1)).map(|(a, b)| f64::midpoint(a, b));
    assert_eq!(last["metrics"]["nll"]["mean"].as_f64(), mean);
    Ok(())
}

#[test]
fn a_run_of_an_ablation_is_a_run_like_any_other() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&TWO_BY_TWO)?;
    let run = format!("{OUTPUT}/n_heads=1,seed=2");
    let alone = folder.succeed(&[
        "train",
        "tiny.toml",
        "--set",
        "model.n_heads=1",
        "--set",
        "seed=2",
        "--name",
        "alone",
    ])?;
    assert_eq!(folder.succeed(&["evaluate", &run])?.stdout, alone.stdout);
    folder.succeed(&["forecast", &run, "--start", "RCS"])?;
    folder.succeed(&["inspect", &run])?;
    assert_eq!(folder.read(&format!("{run}/config.toml"))?, TINY);
    Ok(())
}

#[test]
fn the_same_command_again_trains_nothing_and_more_seeds_train_the_rest() -> Result {
    let folder = Folder::new()?;
    let first = folder.succeed(&TWO_BY_TWO)?;
    let before = folder.files()?;
    let again = folder.succeed(&TWO_BY_TWO)?;
    assert!(again.stderr.contains(": 4 already finished\n"), "{}", again.stderr);
    assert_eq!(again.stdout, first.stdout);
    assert!(folder.files()? == before);
    let more = folder.succeed(&[&TWO_BY_TWO[..4], &["--seeds", "1-3"]].concat())?;
    assert!(more.stderr.contains(": 2 to train, 4 already finished\n"), "{}", more.stderr);
    assert_eq!(runs(&folder, OUTPUT)?.len(), 6);
    Ok(())
}

/// The table and the charts of the first settings were overwritten.
#[test]
fn other_settings_of_the_same_file_have_a_directory_of_their_own() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&TWO_BY_TWO)?;
    let first = folder.files()?;
    let trains = |args: &[&str], seeds: &str, overview: &str| -> Result {
        let args = [&["ablate", "tiny.toml", "--seeds", seeds], args].concat();
        let stderr = folder.succeed(&args)?.stderr;
        assert!(stderr.contains(&format!("runs in {OUTPUT}{overview}\n")), "{stderr}");
        Ok(())
    };
    let (heads, layers) = (["--vary", "model.n_heads=1,2"], ["--vary", "model.n_layers=1,2"]);
    trains(&layers, "1", "-2: 2 to train")?;
    let both = [heads, layers].concat();
    trains(&both, "1", "-3: 4 to train")?;
    let now = folder.files()?;
    assert!(first.iter().all(|(path, content)| now.get(path) == Some(content)));
    // More seeds and more values are added where the others are.
    trains(&layers, "2", "-2: 2 to train, 2 already finished")?;
    trains(&["--vary", "model.n_heads=1,2,4"], "2", ": 2 to train, 4 already finished")?;
    trains(&both, "1", "-3: 4 already finished")?;

    let args = [&["ablate", "tiny.toml", "--output", OUTPUT], &layers[..]].concat();
    let parts = [
        "`runs/ablations/tiny/table.json` is the table of an ablation that varies `model.n_heads`",
        "this one varies `model.n_layers`",
        "--output",
    ];
    folder.refuse(&args, &parts)
}

#[test]
fn a_directory_of_another_file_is_not_taken_for_the_second_of_this_one() -> Result {
    let folder = Folder::new()?;
    let vary = ["--vary", "model.n_layers=1,2"];
    let output = |config: &str| -> Result<String> {
        let stderr = folder.succeed(&[&["ablate", config], &vary[..]].concat())?.stderr;
        let (_, rest) = stderr.split_once("runs in ").ok_or(stderr.clone())?;
        Ok(rest.split(':').next().unwrap_or_default().to_owned())
    };
    folder.write("tiny-2.toml", TINY)?;
    assert_eq!(output("tiny-2.toml")?, "runs/ablations/tiny-2");
    assert_eq!(output("tiny.toml")?, OUTPUT);
    folder.succeed(&[&["ablate", "tiny.toml"], &["--vary", "model.n_heads=1,2"][..]].concat())?;
    assert!(folder.path("runs/ablations/tiny-3/table.json").exists());
    Ok(())
}

#[test]
fn a_run_that_was_broken_off_is_gone_on_with() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&[&TWO_BY_TWO[..], &["--output", "whole"]].concat())?;
    let part = |seed: &str, stop: &str| {
        let (seed, name) = (format!("seed={seed}"), format!("n_heads=2,seed={seed}"));
        let place = ["--runs", "parts", "--name", &name, "--stop-after", stop];
        let settings = ["--set", "model.n_heads=2", "--set", &seed];
        folder.succeed(&[&["train", "tiny.toml", "-q"], &place[..], &settings].concat())
    };
    part("1", "3")?;
    part("2", "0")?;
    let dry = folder.succeed(&[&TWO_BY_TWO[..], &["--output", "parts", "--dry-run"]].concat())?;
    assert!(dry.stdout.contains("n_heads=2,seed=1    unfinished\n"), "{}", dry.stdout);
    let outcome = folder.succeed(&[&TWO_BY_TWO[..], &["--output", "parts"]].concat())?;
    assert!(outcome.stderr.contains(": 2 to train, 2 to resume\n"), "{}", outcome.stderr);
    assert_eq!(metrics(&folder, "parts")?, metrics(&folder, "whole")?);
    assert_eq!(runs(&folder, "parts")?, runs(&folder, "whole")?);
    Ok(())
}

#[test]
fn an_ablation_that_was_killed_is_gone_on_with() -> Result {
    let folder = Folder::new()?;
    let args = [&TWO_BY_TWO[..], &LONGER].concat();
    folder.succeed(&[&args[..], &["--output", "whole"]].concat())?;
    let mut child = folder.command(&args).stderr(Stdio::null()).stdout(Stdio::null()).spawn()?;
    while !folder.path(&format!("{OUTPUT}/n_heads=2,seed=1/metrics.jsonl")).exists() {
        assert!(child.try_wait()?.is_none(), "it ended before it could be killed");
        sleep(Duration::from_millis(1));
    }
    child.kill()?;
    child.wait()?;
    // The run that was being trained holds the lock until it ends.
    let outcome = loop {
        let outcome = folder.run(&args)?;
        if !outcome.stderr.contains("is in use") {
            break outcome;
        }
        sleep(Duration::from_millis(20));
    };
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("already finished"), "{}", outcome.stderr);
    assert_eq!(metrics(&folder, OUTPUT)?, metrics(&folder, "whole")?);
    assert_eq!(runs(&folder, OUTPUT)?, runs(&folder, "whole")?);
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_run_stops_with_a_checkpoint_when_its_ablation_is_killed() -> Result {
    let folder = Folder::new()?;
    // So long that it does not end by itself before it is killed.
    let long = ["--set", "training.steps=100000", "--set", "training.evaluate_every=100000"];
    let mut command = folder.command(&[&TWO_BY_TWO[..], &long].concat());
    let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let run = format!("{OUTPUT}/n_heads=1,seed=1");
    let exists = |file: &str| folder.path(&format!("{run}/{file}")).exists();
    // The first line of metrics is that of a step.
    while folder.read(&format!("{run}/metrics.jsonl")).unwrap_or_default().is_empty() {
        assert!(child.try_wait()?.is_none(), "it ended before it could be killed");
        sleep(Duration::from_millis(1));
    }
    child.kill()?;
    child.wait()?;
    let killed = Instant::now();
    while !exists("ended.json") {
        assert!(killed.elapsed() < Duration::from_mins(1), "the run goes on");
        sleep(Duration::from_millis(2));
    }
    let ended: Value = serde_json::from_str(&folder.read(&format!("{run}/ended.json"))?)?;
    assert_eq!(ended["reason"], "the end of `ablate`");
    let step = ended["step"].as_u64().ok_or("step")?;
    assert!(exists(&format!("checkpoints/step-{step:06}/model.safetensors")), "step {step}");
    Ok(())
}

#[test]
fn a_run_that_fails_takes_no_other_with_it() -> Result {
    let folder = Folder::new()?;
    let vary = ["--vary", "optimizer.lr=1e-3,1e30", "--set", "optimizer.kind=adamw"];
    let args = [&["ablate", "tiny.toml", "--seeds", "2"], &vary[..]].concat();
    let outcome = folder.run(&args)?;
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("error: 2 of 4 runs failed"), "{}", outcome.stderr);
    let rows: Vec<&str> = outcome.stdout.lines().collect();
    assert!(rows[2].starts_with("1e-3 ") && rows[2].contains(" ± "), "{}", outcome.stdout);
    assert!(rows[3].starts_with("1e30 ") && rows[3].contains("0 of 2"), "{}", outcome.stdout);
    let note = "failed: optimizer.lr=1e30,seed=1: step 2: the loss is NaN";
    assert!(outcome.stdout.contains(note), "{}", outcome.stdout);
    let failed = &json(&folder, OUTPUT)?["variants"][1]["runs"][0];
    assert!(failed["state"] == "failed" && failed["summary"].is_null(), "{failed}");
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("`optimizer.lr`")));
    // The same command keeps finished runs and retries failed ones.
    let again = folder.run(&args)?;
    assert!(again.stderr.contains(": 2 to resume, 2 already finished\n"), "{}", again.stderr);
    assert_eq!(runs(&folder, OUTPUT)?.len(), 4);
    Ok(())
}

#[test]
fn what_cannot_be_built_is_refused_before_anything_is_trained_or_left_out() -> Result {
    let folder = Folder::new()?;
    let vary = ["ablate", "tiny.toml", "--seeds", "1", "--vary"];
    let heads = [&vary[..], &["model.n_heads=1,3,5"]].concat();
    let parts = [
        "n_heads=3 cannot be trained (--skip-impossible",
        "`model.n_heads` = 3 does not divide `model.d_model` = 8",
        "also impossible:\n    n_heads=5: ",
    ];
    folder.refuse(&heads, &parts)?;
    folder.refuse(&[&heads[..], &["--dry-run"]].concat(), &parts)?;
    let unknown = [&vary[..], &["model.position.kind=none,lerned"]].concat();
    folder
        .refuse(&unknown, &["position.kind=lerned cannot be trained", "did you mean `learned`?"])?;
    let all = [&vary[..], &["model.n_heads=3,5", "--skip-impossible"]].concat();
    folder.refuse(&all, &["n_heads=3 cannot be trained: "])?;
    let outcome = folder.succeed(&[&heads[..], &["--skip-impossible"]].concat())?;
    assert!(outcome.stdout.contains("impossible: n_heads=3: `model.n_heads` = 3"));
    assert_eq!(runs(&folder, OUTPUT)?, ["n_heads=1,seed=1"]);
    let table = json(&folder, OUTPUT)?;
    assert!(table["variants"][0]["impossible"].is_null());
    assert!(table["variants"][1]["impossible"].as_str().is_some_and(|text| text.contains("= 3")));
    Ok(())
}

#[test]
fn what_cannot_be_understood_is_refused() -> Result {
    let folder = Folder::new()?;
    let refuse = |args: &[&str], parts: &[&str]| {
        folder.refuse(&[&["ablate", "tiny.toml"], args].concat(), parts)
    };
    refuse(&["--vary", "model.n_heads"], &["expected a key and its values"])?;
    refuse(&["--vary", "model.n_heads="], &["a value is missing"])?;
    refuse(&["--vary", "model.n_heads=1,"], &["a value is missing"])?;
    refuse(&["--vary", "model.n_heads=1,1"], &["the value 1 is given twice"])?;
    refuse(&["--vary", "model.n_head=1,2"], &["unknown key `n_head`", "did you mean `n_heads`?"])?;
    refuse(&["--vary", "a..b=1"], &["expected a key before `=`"])?;
    refuse(&["--vary", "model.dropout=[0,1"], &["not a TOML value"])?;
    refuse(&["--vary", "model.n_heads=1", "--vary", "model.n_heads=2"], &["given twice"])?;
    refuse(
        &["--vary", "model.n_heads=1", "--set", "model.n_heads=2"],
        &["both to `--set` and to `--vary`"],
    )?;
    refuse(&["--vary", "seed=1,2"], &["`--seeds`"])?;
    refuse(&["--set", "seed=1"], &["`--seeds`"])?;
    refuse(&["--seeds", "1-99999"], &["99999 runs", "the limit of 10000"])?;
    folder.refuse(&["ablate", "none.toml", "--vary", "a=1"], &["cannot read `none.toml`"])?;
    for args in [["--seeds", "0"], ["--seeds", "x"], ["--jobs", "0"]] {
        let outcome = folder.run(&[&["ablate", "tiny.toml"][..], &args].concat())?;
        assert_eq!(outcome.code, Some(2), "{args:?}");
        assert!(outcome.stderr.contains("expected"), "{}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn runs_of_other_settings_are_not_mixed_into_a_table() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&TWO_BY_TWO)?;
    let args = [&TWO_BY_TWO[..], &["--set", "training.steps=7"]].concat();
    let parts =
        ["n_heads=1,seed=1` was started with other settings", "`training.steps` was 6 and is 7"];
    folder.refuse(&args, &parts)?;
    folder.succeed(&[&args[..], &["--output", "other"]].concat())?;
    // Another selected checkpoint only requires a new evaluation.
    let args = [&TWO_BY_TWO[..], &["--set", "checkpoint.select=best"]].concat();
    let outcome = folder.succeed(&args)?;
    assert!(outcome.stderr.contains(": 4 to resume\n"), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn a_dry_run_lists_the_runs_and_leaves_nothing() -> Result {
    let folder = Folder::new()?;
    let before = folder.files()?;
    let outcome = folder.succeed(&[&TWO_BY_TWO[..], &["--dry-run"]].concat())?;
    let names = ["n_heads=1,seed=1", "n_heads=2,seed=1", "n_heads=1,seed=2", "n_heads=2,seed=2"];
    assert_eq!(outcome.stdout.lines().collect::<Vec<_>>(), names);
    assert!(folder.files()? == before);
    Ok(())
}

#[test]
fn several_at_a_time_come_to_the_same() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&TWO_BY_TWO)?;
    let args = ["--jobs", "3", "--output", "together", "--quiet"];
    let outcome = folder.succeed(&[&TWO_BY_TWO[..], &args].concat())?;
    assert_eq!(outcome.stderr, "");
    assert_eq!(metrics(&folder, "together")?, metrics(&folder, OUTPUT)?);
    Ok(())
}

#[test]
fn a_table_of_one_variant_is_its_spread_over_the_seeds() -> Result {
    let folder = Folder::new()?;
    let stdout = folder.succeed(&["ablate", "tiny.toml", "--seeds", "7-8"])?.stdout;
    assert!(stdout.contains("\nas configured      2   "), "{stdout}");
    assert_eq!(runs(&folder, OUTPUT)?, ["seed=7", "seed=8"]);
    Ok(())
}

#[test]
fn values_may_be_tables_and_strings_with_commas() -> Result {
    let folder = Folder::new()?;
    let vary = "model.position={kind=\"learned\",std=0.1},{kind=\"learned\",std=0.2},none";
    folder.succeed(&["ablate", "tiny.toml", "--seeds", "1", "--vary", vary])?;
    let names = ["kind=learned_std=0.1", "kind=learned_std=0.2", "none"];
    assert_eq!(runs(&folder, OUTPUT)?, names.map(|name| format!("position={name},seed=1")));
    let csv = folder.read(&format!("{OUTPUT}/table.csv"))?;
    assert!(csv.contains("\n\"{kind=\"\"learned\"\",std=0.1}\",1,0,"), "{csv}");
    Ok(())
}

#[test]
fn a_directory_in_use_and_a_file_in_the_way_are_named() -> Result {
    let folder = Folder::new()?;
    fs::create_dir_all(folder.path(OUTPUT))?;
    let lock = File::create(folder.path(&format!("{OUTPUT}/.lock")))?;
    lock.lock()?;
    folder.refuse(&TWO_BY_TWO, &["`runs/ablations/tiny` is in use"])?;
    lock.unlock()?;
    folder.succeed(&TWO_BY_TWO)?;
    folder.write("file", "")?;
    folder.refuse(&[&TWO_BY_TWO[..], &["--output", "file/x"]].concat(), &["file/x"])
}

#[test]
fn a_configuration_that_is_edited_meanwhile_changes_no_later_run() -> Result {
    let folder = Folder::new()?;
    let args = [&TWO_BY_TWO[..], &LONGER].concat();
    let mut child = folder.command(&args).stderr(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    while !folder.path(&format!("{OUTPUT}/n_heads=1,seed=1")).exists() {
        assert!(child.try_wait()?.is_none(), "it ended before the file could be edited");
        sleep(Duration::from_millis(1));
    }
    folder.write("tiny.toml", "nonsense")?;
    assert!(child.wait_with_output()?.status.success());
    let resolved = folder.read(&format!("{OUTPUT}/n_heads=2,seed=2/config.toml"))?;
    assert_eq!(resolved, TINY);
    Ok(())
}

#[test]
fn nobody_listening_is_no_error() -> Result {
    let folder = Folder::new()?;
    let mut command = folder.command(&TWO_BY_TWO);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait()?.success());
    let mut command = folder.command(&TWO_BY_TWO);
    assert_eq!(Outcome::run(command.env_clear())?.code, Some(0));
    Ok(())
}
