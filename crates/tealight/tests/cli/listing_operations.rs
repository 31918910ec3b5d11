//! The ListOps task.

use crate::program::{Folder, Result, SMALL};

/// The task of a short run.
const LISTOPS: &str = "\
seed = 7
[task]
kind = \"listops\"
n_train = 100
n_validation = 20
n_test = 30
max_depth = 3
max_args = 3
min_length = 3
max_length = 20
";

#[test]
fn a_run_of_listops_is_trained_evaluated_and_resumed_like_any_other() -> Result {
    let folder = Folder::new()?;
    folder.write("listops.toml", format!("{LISTOPS}{SMALL}"))?;
    let stdout = folder.succeed(&["train", "listops.toml"])?.stdout;
    for text in ["majority", "outermost operation", "over 30 test expressions", "depth", "tokens"] {
        assert!(stdout.contains(text), "{stdout}");
    }
    assert_eq!(folder.succeed(&["evaluate", "runs/listops"])?.stdout, stdout);
    let report = folder.read_json("runs/listops/report.json")?;
    let n: u64 = report["by_depth"]
        .as_array()
        .ok_or("a list")?
        .iter()
        .filter_map(|bin| bin["n"].as_u64())
        .sum();
    assert_eq!(n, 30);
    folder.succeed(&["train", "listops.toml", "-q", "--name", "halves", "--stop-after", "3"])?;
    folder.succeed(&["train", "listops.toml", "-q", "--name", "halves", "--resume"])?;
    let files = ["checkpoints/step-000006/model.safetensors", "report.json"];
    folder.assert_same(["runs/listops", "runs/halves"], &files)?;
    folder.refuse(&["attend", "runs/listops", "1"], &["a model of the task \"listops\""])
}

#[test]
fn expressions_that_cannot_be_drawn_are_refused() -> Result {
    let folder = Folder::new()?;
    folder.write("listops.toml", format!("{LISTOPS}{SMALL}"))?;
    for (setting, parts) in [
        ("task.min_length=30", &["`task.max_length` = 20", "`task.min_length` = 30"][..]),
        ("task.max_args=1", &["`task.max_args` = 1 must be at least 2"]),
        ("task.read_out=every_position", &["`task.read_out`", "`mean`, `cls` and `last`"]),
        ("task.n_test=0", &["`task.n_test` = 0 must be at least 1"]),
    ] {
        folder.refuse(&["train", "listops.toml", "--set", setting], parts)?;
    }
    let long =
        ["train", "listops.toml", "--set", "task.min_length=900", "--set", "task.max_length=999"];
    folder.refuse(&long, &["are too rare among trees of `task.max_depth` = 3"])
}
