//! Conventions of programs on the command line: colours, `--quiet`, `--verbose`, `--json`, `--help`, manual pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::program::{Folder, Outcome, Result, repository};

const ESCAPE: char = '\u{1b}';

/// The error of a misspelt key, with these variables and arguments.
fn error(variables: &[(&str, &str)], args: &[&str]) -> Result<Outcome> {
    let folder = Folder::new()?;
    let mut command = folder.command(&["train", "tiny.toml", "--set", "model.n_head=2"]);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    Outcome::run(command.args(args).envs(variables.iter().copied()))
}

#[test]
fn errors_are_in_colour_where_it_is_asked_for() -> Result {
    type Case = (&'static [(&'static str, &'static str)], &'static [&'static str], bool);
    let cases: [Case; 9] = [
        (&[], &[], false),
        (&[], &["--color", "always"], true),
        (&[], &["--color=always"], true),
        (&[("CLICOLOR_FORCE", "1")], &[], true),
        (&[("CLICOLOR_FORCE", "1"), ("TERM", "dumb")], &[], true),
        (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], &[], false),
        (&[("CLICOLOR_FORCE", "1")], &["--color", "never"], false),
        (&[("NO_COLOR", "1")], &["--color", "always"], true),
        (&[("CLICOLOR_FORCE", "1")], &["--color", "auto"], true),
    ];
    for (variables, args, expected) in cases {
        let stderr = error(variables, args)?.stderr;
        assert_eq!(stderr.contains(ESCAPE), expected, "{variables:?} {args:?}\n{stderr}");
        assert!(stderr.contains("n_heads"), "{stderr}");
    }
    Ok(())
}

#[test]
fn help_and_errors_of_arguments_follow_color() -> Result {
    let folder = Folder::new()?;
    for args in [&["--help"][..], &["train", "--unknown"], &["--color", "blue"]] {
        for (choice, expected) in [("always", true), ("never", false)] {
            let outcome = folder.run(&[&["--color", choice], args].concat());
            let Outcome { stdout, stderr, .. } = outcome?;
            assert_eq!((stdout + &stderr).contains(ESCAPE), expected, "{args:?} {choice}");
        }
    }
    Ok(())
}

#[test]
fn numbers_out_of_range_are_wrong_arguments_of_every_command() -> Result {
    let folder = Folder::new()?;
    let positive = "expected a positive integer";
    let not_negative = "expected a number, 0 or more";
    let zeros: [(&[&str], &[&str]); 8] = [
        (&["forecast", "m", "--start", "R"], &["--top-k", "--days", "--beams"]),
        (&["translate", "m", "a"], &["--top-k", "--max-len", "--beams"]),
        (&["generate", "m"], &["--top-k", "--max-tokens"]),
        (&["classify", "m", "a"], &["--top-k"]),
        (&["embed", "m", "a", "--similar", "a"], &["--top-k"]),
        (&["fill-mask", "m", "a"], &["--top-k"]),
        (&["verify-resume", "tiny.toml"], &["--kills", "--steps"]),
        (&["doctor", "tiny.toml"], &["--steps"]),
    ];
    let refuse = |command: &[&str], option: &str, value: &str, rule: &str| -> Result {
        let outcome = folder.run(&[command, &[option, value]].concat())?;
        assert_eq!(outcome.code, Some(2), "{command:?} {option}");
        outcome.assert_refused(&[option, rule]);
        Ok(())
    };
    for (command, options) in zeros {
        options.iter().try_for_each(|option| refuse(command, option, "0", positive))?;
    }
    refuse(&["forecast", "m", "--start", "R"], "--temperature", "-1", not_negative)?;
    refuse(&["translate", "m", "a"], "--temperature", "nan", not_negative)?;
    refuse(&["generate", "m"], "--temperature", "inf", not_negative)?;
    refuse(&["generate", "m"], "--top-p", "0", "expected a number above 0 and at most 1")?;
    refuse(&["generate", "m"], "--min-p", "-1", "expected a number from 0 to 1")
}

#[test]
fn messages_of_subprocesses_have_no_colours_of_their_own() -> Result {
    let folder = Folder::new()?;
    let mut command = folder.command(&["ablate", "tiny.toml", "--vary", "model.n_heads=3"]);
    let outcome = Outcome::run(command.env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR"))?;
    assert_eq!(outcome.code, Some(1));
    assert!(!outcome.stderr.contains(ESCAPE), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn quiet_and_verbose_are_options_of_every_command() -> Result {
    let folder = Folder::trained()?;
    for args in [
        &["evaluate", "runs/tiny"][..],
        &["inspect", "runs/tiny"],
        &["checkpoint", "ls", "runs/tiny"],
        &["devices"],
        &["export", "runs/tiny", "--to", "quiet"],
    ] {
        let quiet = folder.succeed(&[args, &["--quiet"]].concat())?;
        assert_eq!(quiet.stderr, "", "{args:?}");
        assert!(!quiet.stdout.is_empty());
    }
    let verbose = folder.succeed(&["inspect", "runs/tiny", "-v"])?.stderr;
    assert!(verbose.contains(" s, at most ") || cfg!(not(target_os = "linux")), "{verbose}");
    assert!(verbose.starts_with("tealight "), "{verbose}");
    folder.run(&["devices", "-q", "-v"])?.assert_refused(&["--quiet", "--verbose"]);
    Ok(())
}

/// `-o` was an option of some commands only, and two called it `--to`.
#[test]
fn what_is_written_is_named_by_one_option() -> Result {
    let folder = Folder::trained()?;
    let commands = [
        &["plot", "runs/tiny"][..],
        &["export", "runs/tiny"],
        &["checkpoint", "average", "runs/tiny"],
    ];
    for (n, command) in commands.into_iter().enumerate() {
        for option in ["-o", "--output"] {
            let name = format!("{n}{option}");
            folder.succeed(&[command, &[option, &name]].concat())?;
            assert!(folder.path(&name).is_dir(), "{command:?} {option}");
        }
    }
    folder.succeed(&["ablate", "tiny.toml", "--seeds", "1", "-o", "table"])?;
    assert!(folder.path("table/table.json").is_file());
    Ok(())
}

#[test]
fn verbose_training_logs_every_step() -> Result {
    let folder = Folder::new()?;
    let logged = |args: &[&str]| -> Result<usize> {
        let stderr = folder.succeed(&[&["train", "tiny.toml"], args].concat())?.stderr;
        Ok(stderr.lines().filter(|line| line.starts_with("step ") && line.contains(" lr ")).count())
    };
    assert_eq!(logged(&["--verbose"])?, 6);
    assert!(logged(&[])? < 6);
    Ok(())
}

#[test]
fn training_ends_with_one_object() -> Result {
    let folder = Folder::new()?;
    let dry = folder.json(&["train", "tiny.toml", "--json", "--dry-run"])?;
    assert_eq!((&dry["ended"], &dry["run"]), (&"dry_run".into(), &Value::Null));
    let stopped = folder.json(&["train", "tiny.toml", "--json", "--stop-after", "2"])?;
    assert_eq!((&stopped["ended"], &stopped["step"]), (&"stop_after".into(), &2.into()));
    assert_eq!(stopped["evaluation"], Value::Null);
    let finished = folder.json(&["train", "tiny.toml", "--json", "--resume", "-q"])?;
    assert_eq!((&finished["ended"], &finished["step"]), (&"finished".into(), &6.into()));
    assert_eq!(finished["run"], "runs/tiny");
    assert_eq!(finished["evaluation"], folder.json(&["evaluate", "runs/tiny", "--json"])?);

    let optimizer = "optimizer={kind=\"sgd\",lr=1e30}";
    let bad = ["train", "tiny.toml", "--name", "bad", "--json", "-q", "--set", optimizer];
    let Outcome { code, stdout, stderr } = folder.run(&bad)?;
    let failed: Value = serde_json::from_str(&stdout)?;
    assert_eq!(code, Some(1));
    assert_eq!((&failed["ended"], &failed["run"]), (&"failed".into(), &"runs/bad".into()));
    let written = folder.read_json("runs/bad/ended.json")?;
    assert_eq!((&failed["step"], &failed["error"]), (&written["step"], &written["error"]));
    assert!(stderr.contains(failed["error"].as_str().ok_or("an error")?), "{stderr}");
    Ok(())
}

#[test]
fn what_is_shown_is_also_given_as_json() -> Result {
    let folder = Folder::trained()?;
    let model = folder.json(&["inspect", "runs/tiny", "--json"])?;
    assert_eq!(model["n_parameters"], 963);
    let counts = model["parameters"].as_array().ok_or("parameters")?;
    assert_eq!(counts.iter().filter_map(|one| one["count"].as_u64()).sum::<u64>(), 963);
    let kinds = folder.json(&["inspect", "--list", "--json"])?;
    assert!(kinds["kinds"]["[model.attention] kind"]["nystrom"].is_string());
    assert_eq!(kinds["attention"][0]["kind"], "softmax");

    let devices = folder.json(&["devices", "--json"])?;
    assert_eq!(devices["devices"][0]["device"], "cpu");

    let listed = folder.json(&["checkpoint", "list", "runs/tiny", "--json"])?;
    let steps: Vec<_> = listed["checkpoints"].as_array().ok_or("checkpoints")?.iter().collect();
    assert_eq!(steps.iter().map(|one| &one["step"]).collect::<Vec<_>>(), [2, 4, 6]);
    assert_eq!(steps.iter().filter(|one| one["is_latest"] == true).count(), 1);
    let verified = folder.json(&["checkpoint", "verify", "runs/tiny", "--json"])?;
    assert_eq!(verified["n_damaged"], 0);
    fs::write(folder.path("runs/tiny/checkpoints/step-000004/model.safetensors"), "")?;
    let damaged = folder.run(&["checkpoint", "verify", "runs/tiny", "--json"])?;
    assert_eq!(damaged.code, Some(1));
    let verified: Value = serde_json::from_str(&damaged.stdout)?;
    assert_eq!(verified["checkpoints"][1]["is_intact"], false);

    let findings = folder.json(&["doctor", "tiny.toml", "--json"])?;
    assert_eq!(findings["is_fine"], true);
    let checks = findings["findings"].as_array().ok_or("findings")?;
    assert!(checks.iter().any(|finding| finding["check"] == "gradients"), "{findings}");
    Ok(())
}

#[test]
fn a_build_and_a_machine_are_described() -> Result {
    let folder = Folder::new()?;
    let mut command = folder.command(&["info", "--json"]);
    let about: Value = serde_json::from_str(
        &Outcome::run(command.env("TEALIGHT_SIMD", "portable").env("TEALIGHT_MPI", "none"))?.stdout,
    )?;
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(about["instructions"], "portable");
    assert_eq!(about["environment"]["TEALIGHT_SIMD"], "portable");
    assert_eq!(about["devices"][0]["device"], "cpu");
    let text = folder.succeed(&["info"])?.stdout;
    for part in ["commit ", "features ", "instructions ", "threads ", "cpu ", "HOME="] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let long = folder.succeed(&["-V"])?.stdout;
    let first = format!("tealight {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(long.lines().next(), Some(first.as_str()));
    for part in ["commit ", "features ", "instructions "] {
        assert!(long.contains(part), "{long}");
    }
    Ok(())
}

#[test]
fn a_description_for_bug_reports_holds_no_token() -> Result {
    let folder = Folder::new()?;
    for args in [&["info"][..], &["info", "--json"]] {
        let mut command = folder.command(args);
        let text = Outcome::run(command.env("TEALIGHT_TOKEN", "a-secret-of-24-characters"))?.stdout;
        assert!(!text.contains("a-secret"), "{text}");
        assert!(text.contains("TEALIGHT_TOKEN"), "that it is set helps: {text}");
    }
    Ok(())
}

#[test]
fn explanations_lists_and_tables_are_also_json() -> Result {
    let folder = Folder::new()?;
    let found = folder.json(&["explain", "model.attention.window", "--json"])?;
    assert_eq!(found["found"][0]["default"], 64, "{found}");
    assert!(found["found"][0]["of_kind"]["model.attention"].is_string(), "{found}");
    let file = folder.json(&["explain", "--json"])?;
    assert!(file["keys"].as_array().is_some_and(|keys| keys.len() > 8), "{file}");
    let shipped = folder.json(&["init", "--list", "--json"])?;
    let names = shipped["configurations"].as_array().ok_or("a list")?;
    assert!(names.iter().any(|one| one["name"] == "weather/dotmod"), "{shipped}");
    let table = folder.json(&[
        "ablate",
        "tiny.toml",
        "--vary",
        "model.n_heads=1",
        "--seeds",
        "1",
        "--json",
    ])?;
    assert_eq!(table["variants"][0]["n_finished"], 1, "{table}");
    let resumed =
        folder.json(&["verify-resume", "tiny.toml", "--steps", "4", "--kills", "1", "--json"])?;
    assert_eq!((&resumed["n_kills"], &resumed["are_equal"]), (&1.into(), &true.into()));
    Ok(())
}

#[test]
fn there_is_a_manual_page_for_every_command() -> Result {
    let folder = Folder::new()?;
    let printed = folder.succeed(&["man", "pages"])?.stdout;
    for page in ["tealight", "tealight-train", "tealight-checkpoint-ls", "tealight-bench-train"] {
        let page = folder.read(&format!("pages/{page}.1"))?;
        assert!(page.starts_with(".ie") && page.contains(".SH NAME"), "{page}");
    }
    assert_eq!(printed.lines().count(), fs::read_dir(folder.path("pages"))?.count());
    assert!(!folder.path("pages/tealight-bench-attention-once.1").exists(), "it is hidden");
    let train = folder.read("pages/tealight-train.1")?;
    assert!(train.contains("stop\\-after") && train.contains("quiet"), "{train}");
    Ok(())
}

#[test]
fn a_setting_that_cannot_do_what_its_name_says_is_named() -> Result {
    let folder = Folder::new()?;
    let of = ["--set", "model.attention.kind=local", "--set", "training.early_stopping.patience=9"];
    let window = "`model.attention.window` = 64 reaches all 3 positions";
    let patience = "`training.early_stopping.patience` = 9 evaluations";
    let train = folder.succeed(&[&["train", "tiny.toml", "--dry-run"], &of[..]].concat())?.stderr;
    let inspect = folder.succeed(&[&["inspect", "tiny.toml"], &of[..]].concat())?.stdout;
    for shown in [train, inspect] {
        assert!(shown.contains(window) && shown.contains(patience), "{shown}");
    }
    let vary =
        ["ablate", "tiny.toml", "--vary", "model.attention.kind=local,linear", "--seeds", "1"];
    let table = folder.succeed(&[&vary[..], &of[2..]].concat())?.stdout;
    assert!(table.contains(&format!("note: attention.kind=local: {window}")), "{table}");
    assert!(table.contains(&format!("note: {patience}")), "of both variants\n{table}");
    Ok(())
}

/// All files that end in `.rs` below a folder.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The names of environment variables among the texts in quotes of a line: those with an underscore, and all that a
/// function with such a name gets.
fn variables(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |text: &str| {
        text.len() > 3
            && text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    let parts: Vec<&str> = line.split('"').collect();
    let found = (1..parts.len()).step_by(2).filter(move |&i| {
        let before = parts[i - 1];
        let is_read = ["var(", "var_os(", "variable(", "variables(", "folder("];
        is_name(parts[i])
            && (parts[i].contains('_') || is_read.iter().any(|call| before.ends_with(call)))
    });
    found.map(|i| line.split('"').nth(i).unwrap_or_default()).collect::<Vec<_>>().into_iter()
}

#[test]
fn every_environment_variable_is_documented() -> Result {
    // Of Cargo, of CUDA's errors, set and never read, or for those who develop Tealight (CONTRIBUTING.md).
    let others = [
        "CARGO_MANIFEST_DIR",
        "CARGO_PKG_VERSION",
        "ALLOC_FAILED",
        "OUT_OF_MEMORY",
        "MALLOC_MMAP_THRESHOLD_",
        "SLURM_JOB_ID",
        "SLURM_NTASKS",
        "TEALIGHT_COMMIT",
        "TEALIGHT_EMULATED_KERNELS",
        "TEALIGHT_TEST_DEVICE",
        "COMPUTERNAME",
        // An output without a name, in `transformers`.
        "LABEL_0",
    ];
    let mut files = Vec::new();
    for package in ["tealight", "tealight-train", "tealight-model", "tealight-ops"] {
        sources(&repository().join("crates").join(package).join("src"), &mut files)?;
    }
    let list = Path::new("system/variables.rs");
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| !file.ends_with(list)) {
        let text = fs::read_to_string(file)?;
        found.extend(text.lines().flat_map(variables).map(str::to_owned));
    }
    // The libraries for terminals read these.
    found.extend(["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"].map(str::to_owned));
    let found: BTreeSet<&str> =
        found.iter().map(String::as_str).filter(|name| !others.contains(name)).collect();
    assert!(found.len() > 15, "{found:?}");

    let help = Folder::new()?.succeed(&["--help"])?.stdout;
    let (_, help) = help.split_once("Environment variables:").ok_or("a section")?;
    let (help, _) = help.split_once("Exit codes:").ok_or("another section")?;
    let names = help.lines().filter_map(|line| line.strip_prefix("  ")).flat_map(|line| {
        let (names, _) = line.split_once("  ").unwrap_or((line, ""));
        names.split(", ").filter(|name| !name.is_empty())
    });
    assert_eq!(found, names.collect::<BTreeSet<_>>(), "`tealight --help`");

    let usage = fs::read_to_string(repository().join("docs/USAGE.md"))?;
    for name in found {
        assert!(usage.contains(&format!("`{name}`")), "{name} is not in docs/USAGE.md");
    }
    Ok(())
}

#[test]
fn characters_of_names_that_act_on_a_terminal_are_shown_on_stderr() -> Result {
    let folder = Folder::new()?;
    for color in ["always", "never"] {
        let outcome = folder.run(&["train", "a\u{1b}[2J\u{202e}.toml", "--color", color])?;
        assert!(outcome.stderr.contains(r"a\u{1b}[2J\u{202e}.toml"), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains(ESCAPE), "{}", outcome.stderr);
    }
    Ok(())
}
