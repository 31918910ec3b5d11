//! `atlas`: a plan, its cells, the rate that the validation split chooses, continuation, merging, and checks.

use std::fs;

use serde_json::Value;

use crate::program::{Folder, Outcome, Result};

const PLAN: &str = r#"
lr = [1e-3, 1e-2]
seeds = 2
parameters = 600
theorems = { real = "a theorem" }

[[panels]]
name = "parity"
title = "parity"
config = "panel.toml"
columns = [
    { title = "4", metric = "scaled_accuracy" },
    { title = "5–8", test = "8", metric = "scaled_beyond" },
]

[[kinds]]
name = "softmax"
attention = { kind = "softmax", conv_size = 2 }
position = "rotary"

[[kinds]]
name = "gated"
attention = { kind = "gla" }
[kinds.barred]
parity = "real"

[[kinds]]
name = "both ways"
attention = { kind = "fnet" }
"#;

const PANEL: &str = r#"
seed = 17

[task]
kind = "state_tracking"
group = "Z2"
seq_len = 4
n_validation = 20
n_test = 20

[[task.tests]]
name = "8"
seq_len = 8

[model]
d_model = 8
n_layers = 1
n_heads = 2
causal = true
tied_output = false

[model.position]
kind = "none"

[model.feed_forward]
kind = "mlp"

[optimizer]
kind = "adamw"
lr = 1e-3

[training]
steps = 4
batch_size = 4
evaluate_every = 2
"#;

fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    fs::write(folder.path("plan.toml"), PLAN)?;
    fs::write(folder.path("panel.toml"), PANEL)?;
    Ok(folder)
}

fn atlas(folder: &Folder, further: &[&str]) -> Result<Outcome> {
    folder.succeed(&[&["atlas", "plan.toml"], further].concat())
}

fn record(folder: &Folder, path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&folder.read(path)?)?)
}

fn names(record: &Value) -> Vec<&str> {
    record["cells"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_plan_is_trained_and_tabulated_and_not_twice() -> Result {
    let folder = folder()?;
    let dry = atlas(&folder, &["--dry-run"])?.stdout;
    assert!(dry.contains("parity/softmax,lr=0.001,seed=1\n"), "{dry}");
    assert!(dry.contains("parity, both ways: "), "{dry}");
    assert!(dry.contains("2 further seeds of rates to be chosen"), "{dry}");
    assert!(dry.contains("6 cells to train, 0 finished"), "{dry}");
    assert!(!folder.path("runs").exists());

    let first = atlas(&folder, &["--jobs", "2"])?;
    let rows: Vec<&str> = first.stdout.lines().collect();
    assert!(rows[0].starts_with("kind") && rows[0].contains("parity, 5–8"), "{}", first.stdout);
    for (row, start) in rows[2..6].iter().zip(["limit", "softmax", "gated", "both ways"]) {
        assert!(row.starts_with(start), "{}", first.stdout);
    }
    assert!(rows[2].ends_with("1.000"), "{}", first.stdout);
    assert!(rows[4].contains(" b"), "{}", first.stdout);
    assert!(rows[5].ends_with('–'), "{}", first.stdout);

    let all = record(&folder, "runs/atlas/atlas.json")?;
    // Two rates with the first seed, and the second seed of one of them, of two kinds.
    assert_eq!(names(&all).len(), 6, "{all}");
    let cells = all["cells"].as_object().ok_or("cells")?;
    let chosen = |kind: &str| -> Result<f64> {
        let loss =
            |lr: &str| cells[&format!("parity/{kind},lr={lr},seed=1")]["validation_loss"].as_f64();
        let (low, high) = loss("0.001").zip(loss("0.01")).ok_or("losses")?;
        Ok(if low <= high { 0.001 } else { 0.01 })
    };
    for kind in ["softmax", "gated"] {
        let further = format!("parity/{kind},lr={},seed=2", chosen(kind)?);
        assert!(cells.contains_key(&further), "{further} is none of {:?}", names(&all));
    }
    let cell = &cells["parity/softmax,lr=0.001,seed=1"];
    assert_eq!(cell["hash"].as_str().map(str::len), Some(64), "{cell}");
    assert_eq!(cell["state_bytes"].as_array().map(Vec::len), Some(2), "{cell}");

    let page = folder.read("runs/atlas/atlas.html")?;
    for part in ["<title>Atlas of attention</title>", "5–8", "Barred from parity: a theorem"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http://") || page.contains("www.w3.org"), "the page loads something");
    let csv = folder.read("runs/atlas/atlas.csv")?;
    assert_eq!(csv.lines().count(), 1 + 6 * 2, "{csv}");

    let again = atlas(&folder, &[])?;
    assert!(again.stderr.contains("0 cells to train, 6 finished"), "{}", again.stderr);
    assert_eq!(again.stdout, first.stdout);
    Ok(())
}

#[test]
fn a_record_is_enough_to_go_on_elsewhere_and_is_checked_bit_by_bit() -> Result {
    let folder = folder()?;
    atlas(&folder, &["--kinds", "softmax"])?;
    fs::copy(folder.path("runs/atlas/atlas.json"), folder.path("record.json"))?;
    fs::remove_dir_all(folder.path("runs"))?;
    let merged = atlas(&folder, &["--kinds", "softmax", "--merge", "record.json"])?;
    assert!(merged.stderr.contains("0 cells to train, 3 finished"), "{}", merged.stderr);
    let before = record(&folder, "record.json")?;
    assert_eq!(record(&folder, "runs/atlas/atlas.json")?, before);

    let check = ["atlas", "plan.toml", "--check", "1"];
    let checked = folder.succeed(&check)?.stdout;
    assert!(checked.contains("the same weights, "), "{checked}");

    let text = folder.read("record.json")?;
    let hashes: Vec<&str> = text.split("\"hash\":\"").skip(1).map(|rest| &rest[..64]).collect();
    let other = hashes.iter().fold(text.clone(), |text, hash| text.replace(hash, &"0".repeat(64)));
    fs::write(folder.path("other.json"), other)?;
    let faulty =
        folder.run(&[&check[..], &["--output", "runs/other", "--merge", "other.json"]].concat())?;
    assert!(
        faulty.stdout.contains("other weights on a processor with the same"),
        "{}",
        faulty.stdout
    );
    assert!(
        faulty.stderr.contains("1 of 1 retrained cells differ from the record"),
        "{}",
        faulty.stderr
    );

    // What another process has written meanwhile is kept.
    let other = text.replace("parity/", "other/");
    fs::write(folder.path("runs/atlas/atlas.json"), other)?;
    atlas(&folder, &["--kinds", "softmax"])?;
    let both = record(&folder, "runs/atlas/atlas.json")?;
    assert_eq!(names(&both).len(), 6, "{both}");

    // Cells of other settings do not count.
    fs::write(folder.path("panel.toml"), PANEL.replace("steps = 4", "steps = 2"))?;
    let changed = folder.succeed(&[
        "atlas",
        "plan.toml",
        "--output",
        "runs/changed",
        "--merge",
        "record.json",
        "--dry-run",
    ])?;
    assert!(changed.stdout.contains("6 cells to train, 0 finished"), "{}", changed.stdout);
    Ok(())
}

#[test]
fn faults_of_a_plan_and_a_record_are_named() -> Result {
    let folder = folder()?;
    fs::write(folder.path("bad.toml"), PLAN.replace("seeds = 2", "seeds = 0"))?;
    fs::write(folder.path("no.json"), "[]")?;
    let cases: [(&[&str], &str); 6] = [
        (&["plan.toml", "--kinds", "softmx"], "the plan has no kind `softmx`; it has `softmax`"),
        (&["bad.toml"], "`bad.toml`: `seeds` = 0 must be from 1 to 100"),
        (&["plan.toml", "--merge", "no.json"], "`no.json` is not the record of an atlas"),
        (&["plan.toml", "--merge", "nowhere.json"], "there is no `nowhere.json`"),
        (&["nowhere.toml"], "nowhere.toml"),
        (&["plan.toml", "--check", "1"], "no cell of the plan is in the record"),
    ];
    for (arguments, rule) in cases {
        folder.refuse(&[&["atlas"], arguments].concat(), &[rule])?;
    }
    Ok(())
}
