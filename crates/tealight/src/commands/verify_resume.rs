//! `tealight verify-resume CONFIG`: compares runs that are killed and resumed with an uninterrupted run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use serde::Serialize;
use serde_json::{Map, Value};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::observer::jsonl::THROUGHPUT_KEYS;
use tealight_train::run::RunDirectory;
use tealight_train::storage::files::read_text;

use crate::args::train::VerifyResume;
use crate::runs::config::LoadedConfig;
use crate::runs::origin::pass_on;
use crate::system::subprocess::{outcome, this_program};
use crate::terminal::failure::at_its_place;
use crate::terminal::output::{log, print, print_json};

/// Interval for polling whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Number of checkpoints of each run.
const N_CHECKPOINTS: u64 = 8;

pub(crate) fn run(args: &VerifyResume) -> Result<()> {
    let LoadedConfig { source, config, .. } =
        LoadedConfig::read(&args.config.path, &args.config.overrides)?;
    config.validate().map_err(|error| at_its_place(error, &source))?;
    let steps = args.steps.min(config.training.steps);
    let folder = tempfile::Builder::new().prefix("tealight-verify-resume-").tempdir();
    let folder = folder.context("cannot create a temporary directory")?;
    let trial = Trial { args, text: source.text(), steps, folder: folder.path() };
    match trial.run() {
        Ok(summary) if args.json => print_json(&summary),
        Ok(summary) => print(&summary.text()),
        Err(error) => {
            let kept = folder.keep();
            Err(error.context(format!("the compared runs are kept in `{}`", kept.display())))
        }
    }
}

/// What was found; a difference is an error.
#[derive(Serialize)]
struct Summary {
    n_kills: u64,
    n_runs: u64,
    steps: u64,
    /// Whether all resumed runs equal the uninterrupted one byte for byte.
    are_equal: bool,
}

impl Summary {
    fn text(&self) -> String {
        let Self { n_kills, n_runs, steps, .. } = self;
        format!(
            "{n_kills} kills in {n_runs} runs of {steps} steps: all runs resumed, and all equal the uninterrupted \
             run byte for byte\n"
        )
    }
}

struct Trial<'a> {
    args: &'a VerifyResume,
    /// The text of the configuration.
    text: &'a str,
    steps: u64,
    folder: &'a Path,
}

impl Trial<'_> {
    fn run(&self) -> Result<Summary> {
        let started = Instant::now();
        succeeded(self.start("uninterrupted", false)?)?;
        let duration = started.elapsed();
        log(&format!("{} steps without interruption: {:.2} s", self.steps, duration.as_secs_f64()));
        let expected = outputs(&self.last_run("uninterrupted")?)?;

        let stream = Stream::new(self.args.seed, Purpose::Sampling);
        let (mut n_kills, mut n_runs, mut n_draws) = (0, 0_u64, 0);
        while n_kills < self.args.kills {
            n_runs += 1;
            let name = format!("killed-{n_runs}");
            loop {
                let resumes = RunDirectory::last(self.folder, &name)?.is_some();
                if n_kills == self.args.kills {
                    succeeded(self.start(&name, resumes)?)?;
                    break;
                }
                let delay = duration.mul_f64(stream.uniform(n_draws));
                n_draws += 1;
                if self.kill_after(delay, &name, resumes)? {
                    n_kills += 1;
                } else {
                    break;
                }
            }
            let run = self.last_run(&name)?;
            compare(&expected, &outputs(&run)?)
                .with_context(|| format!("`{name}` differs from the uninterrupted run"))?;
            // Only runs that differ are kept.
            fs::remove_dir_all(run.path()).context("cannot clean up")?;
        }
        Ok(Summary { n_kills, n_runs, steps: self.steps, are_equal: true })
    }

    fn last_run(&self, name: &str) -> Result<RunDirectory> {
        RunDirectory::last(self.folder, name)?.with_context(|| format!("there is no run `{name}`"))
    }

    /// Starts a process that trains to the last step.
    fn start(&self, name: &str, resumes: bool) -> Result<Child> {
        let mut command = this_program()?;
        pass_on(command.arg("train"), &self.args.config.path, self.text)?;
        command.args(["--quiet", "--color", "never", "--name", name]);
        command.arg("--runs").arg(self.folder);
        command.args(["--stop-after", &self.steps.to_string()]);
        command.args(["--device", &self.args.device.to_string()]);
        let every = (self.steps / N_CHECKPOINTS).max(1);
        let settings = [format!("checkpoint.every={every}"), "log.every=1".to_owned()];
        for setting in self.args.config.overrides.iter().chain(&settings) {
            command.args(["--set", setting]);
        }
        if resumes {
            command.arg("--resume");
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().context("cannot start a subprocess")
    }

    /// Starts a process and kills it after `delay`; `false` if it finished before.
    fn kill_after(&self, delay: Duration, name: &str, resumes: bool) -> Result<bool> {
        let started = Instant::now();
        let mut child = self.start(name, resumes)?;
        while child.try_wait().context(LOST)?.is_none() {
            let rest = delay.saturating_sub(started.elapsed());
            if rest.is_zero() {
                child.kill().context("cannot kill a subprocess")?;
                child.wait().context(LOST)?;
                return Ok(true);
            }
            sleep(POLL_INTERVAL.min(rest));
        }
        succeeded(child).map(|()| false)
    }
}

const LOST: &str = "cannot wait for a subprocess";

fn succeeded(child: Child) -> Result<()> {
    let output = child.wait_with_output().context(LOST)?;
    outcome(output).map(drop).map_err(Error::msg)
}

/// The contents of files, by path within the run.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What must be equal: all visible files in the checkpoints, and the metrics without times.
fn outputs(run: &RunDirectory) -> Result<Files> {
    let mut files = Files::new();
    collect(&run.path().join("checkpoints"), Path::new("checkpoints"), &mut files)?;
    let mut lines = Vec::new();
    for line in read_text(&run.metrics_path())?.lines() {
        let mut line: Map<String, Value> = serde_json::from_str(line)?;
        line.retain(|key, _| !THROUGHPUT_KEYS.contains(&key.as_str()));
        lines.extend(serde_json::to_vec(&line)?);
        lines.push(b'\n');
    }
    files.insert(PathBuf::from("metrics.jsonl"), lines);
    Ok(files)
}

/// Adds all visible files in `folder` to `files`, under paths that begin with `name`.
fn collect(folder: &Path, name: &Path, files: &mut Files) -> Result<()> {
    let failed = || format!("cannot read `{}`", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        if path.is_dir() {
            collect(&path, &name, files)?;
        } else {
            files.insert(name, fs::read(&path).with_context(failed)?);
        }
    }
    Ok(())
}

fn compare(expected: &Files, found: &Files) -> Result<()> {
    for name in expected.keys().chain(found.keys()) {
        match (expected.get(name), found.get(name)) {
            (Some(_), None) => bail!("`{}` is missing", name.display()),
            (None, _) => bail!("`{}` is unexpected", name.display()),
            (Some(expected), Some(found)) if expected != found => {
                bail!("`{}` differs", name.display())
            }
            _ => {}
        }
    }
    Ok(())
}
