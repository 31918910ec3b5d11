//! Hostile input, closed pipes and odd environments: no panics.

use std::process::Stdio;

use crate::program::{Folder, Outcome, Result};

#[test]
fn deep_nesting_ends_in_a_message() -> Result {
    let folder = Folder::new()?;
    let n = 50_000;
    let texts = [
        format!("a{} = 1\n", ".a".repeat(n)),
        format!("[a{}]\nb = 1\n", ".a".repeat(n)),
        format!("a = {}{}\n", "[".repeat(n), "]".repeat(n)),
        format!("a = {}1{}\n", "{a=".repeat(n), "}".repeat(n)),
        "[[a]]\n".repeat(n),
        format!("\"{}\" = 1\n", "x".repeat(n)),
        format!("seed = {}\n", "1".repeat(n)),
        "[".repeat(n),
        "\n".repeat(n),
    ];
    for text in texts {
        folder.write("deep.toml", text)?;
        folder.refuse(&["train", "deep.toml"], &[])?;
    }
    let deep = format!("a{}=1", ".a".repeat(20_000));
    folder.refuse_settings(&[&deep], &["--set a.a.a"])?;
    folder.refuse_settings(&[&format!("a={}", "[".repeat(20_000))], &["not a TOML value"])
}

#[test]
fn a_long_key_does_not_fill_the_screen() -> Result {
    let folder = Folder::new()?;
    folder.write("long.toml", format!("{} = 1\n", "x".repeat(100_000)))?;
    let stderr = folder.run(&["train", "long.toml"])?.stderr;
    assert!(stderr.contains("unknown key `xxx") && stderr.len() < 2000, "{} bytes", stderr.len());
    let stderr =
        folder.run(&["train", "tiny.toml", "--set", &format!("seed={}", "x".repeat(9999))])?.stderr;
    assert!(stderr.contains("`seed` is a string: expected an integer"), "{stderr}");
    assert!(stderr.len() < 2000, "{} bytes", stderr.len());
    Ok(())
}

#[test]
fn a_reader_that_has_left_is_no_error() -> Result {
    let folder = Folder::trained()?;
    for args in [
        &["evaluate", "runs/tiny"][..],
        &["inspect", "tiny.toml"],
        &["inspect", "--list"],
        &["forecast", "runs/tiny", "--start", "R", "--days", "99"],
        &["completions", "zsh"],
        &["train", "tiny.toml"],
        &["--help"],
    ] {
        let mut command = folder.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stdout.take());
        let output = child.wait_with_output()?;
        let stderr = String::from_utf8(output.stderr)?;
        assert!(output.status.success(), "{args:?} {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("error"), "{args:?} {stderr}");
    }
    Ok(())
}

#[test]
fn a_closed_log_does_not_end_a_run() -> Result {
    let folder = Folder::new()?;
    for args in [&["train", "tiny.toml"][..], &["train", "missing.toml"], &["train"]] {
        let mut command = folder.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stderr.take());
        let output = child.wait_with_output()?;
        assert_eq!(output.status.success(), args.ends_with(&["tiny.toml"]), "{args:?}");
        assert!(output.status.code().is_some_and(|code| code < 100), "{args:?}");
    }
    Ok(())
}

#[test]
fn no_environment_is_needed() -> Result {
    let folder = Folder::new()?;
    let mut stdout = Vec::new();
    for args in [&["train", "tiny.toml"][..], &["evaluate", "runs/tiny"]] {
        let outcome = Outcome::run(folder.command(args).env_clear())?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        stdout.push(outcome.stdout);
    }
    assert_eq!(stdout[0], stdout[1]);
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "0"), ("LANG", "C")] {
        let mut command = folder.command(&["train", "missing.toml"]);
        Outcome::run(command.env(name, value))?.assert_refused(&["cannot read `missing.toml`"]);
    }
    Ok(())
}

#[test]
fn odd_names_of_files_are_fine() -> Result {
    let folder = Folder::new()?;
    let tiny = folder.read("tiny.toml")?;
    for name in ["no ending", "two.dots.toml", "späte Kerze 🕯.toml", "-.toml"] {
        folder.write(name, &tiny)?;
        let path = folder.path(name).display().to_string();
        folder.succeed(&["train", &path, "-q", "--stop-after", "1"])?;
    }
    assert!(folder.path("runs/späte Kerze 🕯/checkpoints/step-000001").is_dir());
    assert!(folder.path("runs/no ending").is_dir() && folder.path("runs/two.dots").is_dir());
    Ok(())
}
