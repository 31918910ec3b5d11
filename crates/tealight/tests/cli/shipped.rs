//! Configurations that are part of the program, and those from standard input.

use std::fs;

use crate::program::{Folder, Result, TINY};

#[test]
fn a_shipped_configuration_needs_no_file() -> Result {
    let folder = Folder::new()?;
    for name in ["weather/dotmod", "weather/dotmod.toml", "configs/weather/dotmod.toml"] {
        let dry = folder.succeed(&["train", name, "--dry-run"])?.stderr;
        assert!(dry.contains("parameters"), "{dry}");
        folder.succeed(&["inspect", name])?;
    }
    let small = [
        "training.steps=2",
        "schedule.warmup_steps=1",
        "task.regime={kind=\"examples\",n=20,n_validation=10}",
    ];
    let set: Vec<&str> = small.iter().flat_map(|setting| ["--set", setting]).collect();
    folder.succeed(&[&["train", "weather/dotmod", "--stop-after", "1"], &set[..]].concat())?;
    folder.succeed(&[&["train", "weather/dotmod", "--resume"], &set[..]].concat())?;
    assert!(folder.read("runs/dotmod/config.toml")?.contains("dotmod"));
    let table = ["ablate", "weather/dotmod", "--vary", "model.n_heads=1,2", "--dry-run"];
    assert!(folder.succeed(&table)?.stdout.contains("n_heads=2"));
    Ok(())
}

#[test]
fn a_file_is_preferred_to_a_shipped_configuration() -> Result {
    let folder = Folder::new()?;
    fs::create_dir(folder.path("weather"))?;
    folder.write("weather/dotmod.toml", TINY)?;
    let dry = folder.succeed(&["train", "weather/dotmod.toml", "--dry-run"])?.stderr;
    assert!(dry.contains(" 6 steps"), "{dry}");
    Ok(())
}

#[test]
fn an_unknown_name_suggests_similar_ones() -> Result {
    let folder = Folder::new()?;
    let parts =
        ["cannot read `dotmd`", "did you mean", "`weather/dotmod`", "`tealight init --list`"];
    for command in ["train", "doctor", "inspect", "verify-resume"] {
        folder.refuse(&[command, "dotmd"], &parts)?;
    }
    folder.refuse(&["bench", "train", "dotmd"], &parts)?;
    folder.refuse(&["ablate", "dotmd", "--vary", "model.n_heads=1,2"], &parts)
}

#[test]
fn an_error_in_a_shipped_configuration_names_it() -> Result {
    let folder = Folder::new()?;
    let parts = ["`model.n_heads` = 7", "<weather/dotmod>:"];
    folder.refuse(&["train", "weather/dotmod", "--set", "model.n_heads=7"], &parts)
}

#[test]
fn missing_data_of_a_shipped_configuration_are_named_with_their_source() -> Result {
    let folder = Folder::new()?;
    let parts = [
        "`data/tinyshakespeare.txt`",
        "scripts/fetch_tinyshakespeare.sh",
        "tealight init causal_lm",
    ];
    folder.refuse(&["train", "causal_lm/shakespeare_cpu"], &parts)?;
    folder.refuse(&["train", "images/mnist"], &["`data/mnist/", "scripts/fetch_mnist.sh"])?;
    let mine = ["train", "seq2seq/my_pairs", "--set", "task.source.path=mine.tsv"];
    folder.refuse(&mine, &["`", "mine.tsv`", "No such file"])
}

#[test]
fn a_configuration_is_read_from_standard_input() -> Result {
    let folder = Folder::new()?;
    let run = |args: &[&str], text: &str| folder.run_with_input(args, text);
    assert_eq!(run(&["train", "-", "--stop-after", "2"], TINY)?.code, Some(0));
    assert_eq!(folder.read("runs/weather/config.toml")?, TINY);
    assert_eq!(run(&["train", "-", "--resume"], TINY)?.code, Some(0));
    assert!(folder.path("runs/weather/report.json").exists());
    let resumed = run(&["train", "runs/weather"], "")?;
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(run(&["train", "-", "--name", "mine", "-q"], TINY)?.code, Some(0));
    folder.succeed(&["train", "tiny.toml", "-q"])?;
    folder
        .assert_same(["runs/mine", "runs/tiny"], &["checkpoints/step-000006/model.safetensors"])?;
    let broken = TINY.replace("d_model = 8", "d_modle = 8");
    run(&["train", "-"], &broken)?.assert_refused(&["unknown key `d_modle`", "<stdin>:12:1"]);
    run(&["doctor", "-"], "\u{0}")?.assert_refused(&["invalid TOML", "<stdin>:1:"]);
    Ok(())
}

#[test]
fn commands_that_start_processes_pass_standard_input_on() -> Result {
    let folder = Folder::new()?;
    let ablate = ["ablate", "-", "--vary", "model.n_heads=1,2", "--seeds", "1", "-q"];
    let outcome = folder.run_with_input(&ablate, TINY)?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(folder.path("runs/ablations/weather/table.md").exists());
    let verify = ["verify-resume", "-", "--steps", "4", "--kills", "1"];
    let outcome = folder.run_with_input(&verify, TINY)?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("byte for byte"), "{}", outcome.stdout);
    Ok(())
}
