//! Models whose weights diverged, so that their outputs are not finite.

use crate::program::{Folder, Outcome, Result};
use crate::{classifying, languages, translating};

/// Makes the run `runs/wild` of a configuration, by one step that ruins the weights.
pub(crate) fn ruin(folder: &Folder, config: &str) -> Result {
    let wild = "optimizer={kind=\"sgd\",lr=1e30}";
    let args = ["train", config, "-q", "--name", "wild", "--set", wild, "--stop-after", "1"];
    folder.succeed(&args)?;
    Ok(())
}

/// The command fails, and its last line names the model and the reason, without a backtrace.
fn refuse(folder: &Folder, args: &[&str]) -> Result {
    let outcome = Outcome::run(folder.command(args).env("RUST_BACKTRACE", "1"))?;
    let reason =
        "`runs/wild`: the outputs of the model are not finite, because its weights diverged";
    outcome.assert_refused(&[reason]);
    assert_eq!(outcome.code, Some(1), "{args:?}");
    assert!(outcome.stderr.trim_end().ends_with(reason), "{args:?}\n{}", outcome.stderr);
    Ok(())
}

#[test]
fn no_forecast_is_drawn_from_a_diverged_model() -> Result {
    let folder = Folder::new()?;
    ruin(&folder, "tiny.toml")?;
    for start in ["RCSRCSRCSR", "R"] {
        for args in [
            &["--days", "3"][..],
            &["--temperature", "0"],
            &["--top-k", "2"],
            &["--beams", "2"],
            &["--json"],
        ] {
            refuse(&folder, &[&["forecast", "runs/wild", "--start", start], args].concat())?;
        }
    }
    refuse(&folder, &["attend", "runs/wild", "RCS", "--text"])
}

#[test]
fn the_evaluation_of_a_diverged_model_warns() -> Result {
    for (folder, config, loss) in [
        (Folder::new()?, "tiny.toml", "nll"),
        (languages::trained("masked")?, "masked.toml", "loss"),
        (languages::trained("causal")?, "causal.toml", "loss"),
        (classifying::trained()?, "texts.toml", "nll"),
        (translating::trained()?, "pairs.toml", "loss"),
    ] {
        ruin(&folder, config)?;
        let outcome = folder.succeed(&["evaluate", "runs/wild", "-q"])?;
        assert!(outcome.stdout.contains("NaN"), "{config}\n{}", outcome.stdout);
        let warning = "is not finite, because the weights diverged";
        let warning = format!("runs/wild`: {loss} = NaN {warning}");
        assert!(outcome.stderr.contains(&warning), "{config}\n{}", outcome.stderr);
    }
    Ok(())
}

/// No evaluation marks a checkpoint as the best one.
#[test]
fn a_run_that_diverges_is_evaluated_at_its_latest_checkpoint() -> Result {
    let folder = Folder::new()?;
    let wild = ["--set", "optimizer={kind=\"sgd\",lr=1e30}", "--set", "training.steps=1"];
    let best = ["train", "tiny.toml", "--set", "checkpoint.select=best"];
    let outcome = folder.succeed(&[best, wild].concat())?;
    let note = "there is no best checkpoint (`checkpoint.select`), so the latest one, of step 1";
    assert!(outcome.stderr.contains(note), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("NaN"), "{}", outcome.stdout);
    Ok(())
}

#[test]
fn nothing_is_told_about_texts_by_a_diverged_model() -> Result {
    let folder = languages::trained("masked")?;
    ruin(&folder, "masked.toml")?;
    refuse(&folder, &["fill-mask", "runs/wild", "a [MASK]"])?;
    refuse(&folder, &["fill-mask", "runs/wild", "a [MASK]", "--json"])?;
    refuse(&folder, &["embed", "runs/wild", "a b"])?;
    refuse(&folder, &["attend", "runs/wild", "a b", "--text"])?;
    let folder = languages::trained("causal")?;
    ruin(&folder, "causal.toml")?;
    refuse(&folder, &["generate", "runs/wild", "Monday", "--json"])?;
    refuse(&folder, &["generate", "runs/wild", "Monday", "--json", "--greedy"])?;
    let folder = classifying::trained()?;
    ruin(&folder, "texts.toml")?;
    refuse(&folder, &["classify", "runs/wild", "aa"])?;
    let folder = translating::trained()?;
    ruin(&folder, "pairs.toml")?;
    refuse(&folder, &["translate", "runs/wild", "abc"])?;
    refuse(&folder, &["translate", "runs/wild", "abc", "--beams", "2"])
}
