//! `evaluate`: the table of any checkpoint.

use serde_json::Value;

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
