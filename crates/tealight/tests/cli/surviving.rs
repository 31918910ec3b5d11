//! Interruptions of a run: signals, kills, a full disk, damaged files, a second process.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::program::{Folder, Outcome, Result, TINY};

/// More steps than a run takes before a test ends it.
const LONG: [&str; 4] =
    ["--set", "training.steps=100000000", "--set", "training.evaluate_every=1000000"];

/// A running `train`, killed on drop.
struct Running(Child);

impl Running {
    /// Starts `train` with `args` and waits until it has written `n_lines` of metrics.
    fn start(folder: &Folder, args: &[&str], n_lines: usize) -> Result<Self> {
        let mut command = folder.command(&[&["train"], args].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = Self(command.spawn()?);
        let metrics = folder.path("runs/tiny/metrics.jsonl");
        wait_until(|| {
            fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= n_lines)
        })?;
        Ok(running)
    }

    fn send(&self, signal: &str) -> Result {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status()?;
        assert!(status.success(), "kill {signal} {pid}");
        Ok(())
    }

    /// Waits for the end; the exit code and stderr.
    fn end(mut self) -> Result<(Option<i32>, String)> {
        wait_until(|| self.0.try_wait().is_ok_and(|status| status.is_some()))?;
        let mut stderr = String::new();
        if let Some(pipe) = &mut self.0.stderr {
            std::io::Read::read_to_string(pipe, &mut stderr)?;
        }
        Ok((self.0.wait()?.code(), stderr))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(is_so: impl FnMut() -> bool) -> Result {
    let (started, mut is_so) = (Instant::now(), is_so);
    while !is_so() {
        if started.elapsed() > Duration::from_mins(1) {
            return Err("it takes too long".into());
        }
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The step in `… after step 17; …`.
fn step(said: &str) -> Result<u64> {
    let (_, rest) = said.split_once("after step ").ok_or_else(|| said.to_owned())?;
    Ok(rest.split(';').next().unwrap_or_default().parse()?)
}

/// Asserts that the checkpoint of `run` at `step` equals that of an uninterrupted run.
fn assert_like_a_run_left_alone(
    folder: &Folder,
    run: &str,
    settings: &[&str],
    step: u64,
) -> Result {
    let stop = step.to_string();
    let args = ["train", "tiny.toml", "--name", "alone", "--stop-after", &stop];
    folder.succeed(&[&args, settings].concat())?;
    let checkpoints = [run, "alone"].map(|run| format!("runs/{run}/checkpoints/step-{step:06}"));
    let files = ["model.safetensors", "optimizer.safetensors", "state.json", "SHA256SUMS"];
    folder.assert_same(checkpoints.each_ref().map(String::as_str), &files)
}

#[test]
fn a_signal_ends_a_run_after_its_step_with_a_checkpoint() -> Result {
    for (signal, name, code) in [("-INT", "SIGINT", 130), ("-TERM", "SIGTERM", 143)] {
        let folder = Folder::new()?;
        // The signal comes before any periodic checkpoint.
        let settings = [&LONG[..], &["--set", "checkpoint.every=1000000"]].concat();
        let running = Running::start(&folder, &[&["tiny.toml"], &settings[..]].concat(), 3)?;
        running.send(signal)?;
        let (ended, said) = running.end()?;
        assert_eq!(ended, Some(code), "{said}");
        let step = step(&said)?;
        let line =
            format!("stopped by {name} after step {step}; `tealight train runs/tiny` resumes");
        assert!(said.contains(&line), "{said}");
        let stop = (step + 3).to_string();
        folder.succeed(&["train", "runs/tiny", "--stop-after", &stop])?;
        assert_like_a_run_left_alone(&folder, "tiny", &settings, step + 3)?;
    }
    Ok(())
}

#[test]
fn a_second_signal_ends_it_at_once_without_harm() -> Result {
    let folder = Folder::new()?;
    // A step that takes seconds.
    let slow = TINY.replace("batch_size = 5", "batch_size = 5\nmicro_batches = 10000");
    folder.write("slow.toml", slow)?;
    folder.succeed(&["train", "slow.toml", "--stop-after", "1"])?;
    let before = folder.files()?;
    let mut command = folder.command(&["train", "runs/slow"]);
    let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    let lock = folder.path("runs/slow/.lock");
    wait_until(|| fs::read_to_string(&lock).is_ok_and(|pid| !pid.is_empty()))?;
    sleep(Duration::from_millis(300));
    running.send("-INT")?;
    sleep(Duration::from_millis(100));
    assert!(running.0.try_wait()?.is_none(), "the first signal ended it before its step");
    running.send("-INT")?;
    assert_eq!(running.end()?.0, Some(130));
    for (path, content) in folder.files()? {
        let is_lock = path.ends_with(".lock");
        assert!(is_lock || before.get(&path) == Some(&content), "{}", path.display());
    }
    folder.succeed(&["checkpoint", "verify", "runs/slow"])?;
    Ok(())
}

#[test]
fn a_time_limit_ends_a_run_with_a_checkpoint() -> Result {
    let folder = Folder::new()?;
    let args = [&["train", "tiny.toml", "--time-limit", "300ms"], &LONG[..]].concat();
    let said = folder.succeed(&args)?.stderr;
    let step = step(&said)?;
    assert!(said.contains("time limit reached") && step > 0, "{said}");
    folder.succeed(&["train", "runs/tiny", "--stop-after", &(step + 1).to_string()])?;
    assert_like_a_run_left_alone(&folder, "tiny", &LONG, step + 1)?;
    // A run that finishes before the limit is evaluated.
    let stdout = folder.succeed(&["train", "tiny.toml", "--time-limit", "1h 30m"])?.stdout;
    assert!(stdout.contains("transformer"), "{stdout}");
    folder.refuse(&["train", "tiny.toml", "--time-limit", "soon"], &["--time-limit"])
}

#[test]
fn two_processes_do_not_write_one_run_and_a_dead_one_locks_nobody_out() -> Result {
    let folder = Folder::new()?;
    let running = Running::start(&folder, &[&["tiny.toml"], &LONG[..]].concat(), 3)?;
    let outcome = folder.run(&["train", "runs/tiny"])?;
    let holder = format!("`runs/tiny` is in use by process {}", running.0.id());
    outcome.assert_refused(&[&holder]);
    folder.run(&["checkpoint", "prune", "runs/tiny"])?.assert_refused(&[&holder]);
    running.send("-KILL")?;
    running.end()?;
    let stop = u64::MAX.to_string();
    let args = ["train", "runs/tiny", "--time-limit", "100ms", "--stop-after", &stop];
    assert!(step(&folder.succeed(&args)?.stderr)? > 0);
    Ok(())
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_the_run_is_the_same() -> Result {
    let folder = Folder::trained()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "5"])?;
    let damaged = folder.path("runs/tiny-2/checkpoints/step-000005/optimizer.safetensors");
    let mut bytes = fs::read(&damaged)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 16;
    fs::write(&damaged, &bytes)?;
    let outcome = folder.run(&["checkpoint", "verify", "runs/tiny-2"])?;
    assert!(outcome.stdout.contains("optimizer.safetensors` is damaged"), "{}", outcome.stdout);
    assert_ne!(outcome.code, Some(0));
    let advice = "1 of 3 checkpoints of `runs/tiny-2` cannot be used; `tealight train runs/tiny-2`";
    assert!(outcome.stderr.contains(advice), "{}", outcome.stderr);
    let said = folder.succeed(&["train", "tiny.toml", "--resume"])?.stderr;
    assert!(said.contains("skipped the damaged checkpoint of step 5"), "{said}");
    let kept = folder.path("runs/tiny-2/checkpoints/damaged-step-000005/optimizer.safetensors");
    assert!(fs::read(kept)? == bytes);
    let checkpoints = ["tiny", "tiny-2"].map(|run| format!("runs/{run}/checkpoints/step-000006"));
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
    folder.assert_same(checkpoints.each_ref().map(String::as_str), &files)?;
    let listed = folder.succeed(&["checkpoint", "ls", "runs/tiny-2"])?.stdout;
    assert!(listed.contains("damaged-step-000005") && listed.contains("latest"), "{listed}");
    Ok(())
}

/// `ulimit -f` limits files to 4 KiB, less than a checkpoint, as on a full disk.
#[test]
fn a_disk_that_is_full_ends_a_run_with_a_message_and_harms_nothing() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "3"])?;
    let before = folder.files()?;
    let program = env!("CARGO_BIN_EXE_tealight");
    let script = "trap '' XFSZ; ulimit -f 4; exec \"$0\" train tiny.toml --resume --quiet";
    let mut command = Command::new("bash");
    command.args(["-c", script, program]).current_dir(folder.path("."));
    Outcome::run(&mut command)?.assert_refused(&["cannot write", "safetensors`", "File too large"]);
    for (path, content) in &before {
        let may_differ = ["metrics.jsonl", "samples.jsonl", "ended.json", ".lock"]
            .iter()
            .any(|name| path.ends_with(name));
        assert!(may_differ || folder.files()?.get(path) == Some(content), "{}", path.display());
    }
    folder.succeed(&["train", "tiny.toml", "--resume"])?;
    assert_like_a_run_left_alone(&folder, "tiny", &[], 6)
}

#[test]
fn a_run_of_the_first_format_goes_on() -> Result {
    let folder = Folder::new()?;
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/v1/tiny"), &folder.path("v1"))?;
    let report = folder.succeed(&["evaluate", "v1"])?.stdout;
    assert!(report.contains("transformer"), "{report}");
    folder.succeed(&["checkpoint", "verify", "v1"])?;
    folder.succeed(&["train", "v1"])?;
    folder.succeed(&["checkpoint", "verify", "v1"])?;
    assert!(folder.path("v1/checkpoints/step-000006/SHA256SUMS").exists());
    assert!(folder.read("v1/metrics.jsonl")?.lines().count() >= 9);
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(from, to)?;
        }
    }
    Ok(())
}

#[test]
fn checkpoints_are_listed_checked_thinned_out_and_averaged() -> Result {
    let folder = Folder::trained()?;
    let listed = folder.succeed(&["checkpoint", "ls", "runs/tiny"])?.stdout;
    let rows: Vec<&str> = listed.lines().skip(2).collect();
    assert_eq!(rows.len(), 3, "{listed}");
    assert!(rows[2].starts_with("step-000006") && rows[2].contains("latest"), "{listed}");
    assert!(rows[0].contains(" KiB"), "{listed}");
    let verified = folder.succeed(&["checkpoint", "verify", "runs/tiny"])?.stdout;
    assert_eq!(verified.matches("intact").count(), 3, "{verified}");

    let average = ["checkpoint", "average", "runs/tiny", "--to", "mean"];
    folder.succeed(&[&average[..], &["--steps", "2,6"]].concat())?;
    let bias = |path: &str| first_number(&folder, path);
    let of = |step| bias(&format!("runs/tiny/checkpoints/step-00000{step}/model.safetensors"));
    let mean = f64::midpoint(of(2)?, of(6)?);
    assert!((bias("mean/model.safetensors")? - mean).abs() < 1e-6 && of(2)? != of(6)?);
    let evaluate = ["evaluate", "runs/tiny", "--json", "--weights", "mean"];
    let averaged = folder.succeed(&evaluate)?.stdout;
    assert_ne!(averaged, folder.succeed(&evaluate[..3])?.stdout);
    folder.refuse(&average, &["`mean`"])?;
    folder.refuse(&[&average[..4], &["other", "--steps", "3"]].concat(), &["step-000003"])?;

    let removed = folder.succeed(&["checkpoint", "prune", "runs/tiny"])?.stdout;
    assert!(removed.starts_with("removed step-000002\n"), "{removed}");
    folder.refuse(&["checkpoint", "ls", "tiny.toml"], &["is not a run"])
}

/// The first number of a safetensors file.
fn first_number(folder: &Folder, path: &str) -> Result<f64> {
    let bytes = fs::read(folder.path(path))?;
    let (size, rest) = bytes.split_first_chunk::<8>().ok_or("a header")?;
    let data = &rest[u64::from_le_bytes(*size) as usize..];
    Ok(f64::from(f32::from_le_bytes(*data.first_chunk().ok_or("a number")?)))
}

#[test]
fn the_program_kills_itself_and_compares() -> Result {
    let folder = Folder::new()?;
    let settings = ["--set", "training.ema_decay=0.5", "--set", "model.dropout=0.2"];
    let args = ["verify-resume", "tiny.toml", "--steps", "6", "--kills", "4"];
    let before = folder.files()?;
    let said = folder.succeed(&[&args[..], &settings].concat())?.stdout;
    assert!(said.starts_with("4 kills in ") && said.contains("byte for byte"), "{said}");
    assert!(folder.files()? == before);
    folder.write("bad.toml", TINY.replace("n_heads = 2", "n_heads = 3"))?;
    folder.refuse(&["verify-resume", "bad.toml"], &["`model.n_heads` = 3 does not divide"])
}

#[test]
fn checkpoints_that_the_disk_has_no_room_for_are_refused_before_training() -> Result {
    let folder = Folder::new()?;
    let many = ["checkpoint.keep_last=1000000000000", "training.steps=1000000000000"];
    let parts = ["`checkpoint.keep_last`", "TiB", "`--force` skips this check"];
    folder.refuse_settings(&many, &parts)?;
    let args = ["train", "tiny.toml", "--force", "--stop-after", "3"];
    folder.succeed(&[&args[..], &["--set", many[0], "--set", many[1]]].concat())?;
    Ok(())
}

#[test]
fn the_doctor_finds_what_is_wrong() -> Result {
    let folder = Folder::new()?;
    let before = folder.files()?;
    let doctor = ["doctor", "tiny.toml"];
    let found = folder.succeed(&doctor)?.stdout;
    let masks = "ok   masks      no position of the backbone depends on padding";
    for line in ["ok   gradients  all 22 parameters", masks, " in 50 steps on one batch"] {
        assert!(found.contains(line) && !found.contains("BAD"), "{found}");
    }
    let causal = folder.succeed(&[&doctor[..], &["--set", "model.causal=true"]].concat())?.stdout;
    assert!(
        causal.contains("no position of the backbone depends on the future or padding"),
        "{causal}"
    );
    // With one day the softmax is always 1, so the gradients of the scores are 0.
    let one_day = ["--set", "task.window=1", "--set", "training.gradient_audit_exceptions=[]"];
    for (settings, line) in [
        (&["--set", "optimizer={kind='adamw',lr=1e-20}"][..], "BAD  learning   loss"),
        (&one_day, "BAD  gradients  the gradient audit"),
    ] {
        let outcome = folder.run(&[&doctor[..], settings].concat())?;
        assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
        assert!(outcome.stderr.contains("of 3 checks"), "{}", outcome.stderr);
        assert_ne!(outcome.code, Some(0));
    }
    assert!(folder.files()? == before);
    folder.refuse(&["doctor", "tiny.toml", "--set", "model.n_heads=3"], &["`model.n_heads` = 3"])
}
