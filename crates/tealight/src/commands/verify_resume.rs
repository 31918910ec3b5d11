//! `tealight verify-resume CONFIG`: a run that is killed at random moments, beside one that is not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::observer::jsonl::TIMES;
use tealight_train::run::RunDirectory;

use crate::args::checkpoint::VerifyResume;
use crate::runs::config::Given;
use crate::system::subprocess::{complaint, this_program};
use crate::terminal::failure::at_its_place;
use crate::terminal::output::{log, print};

/// How often a process is asked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// So many checkpoints are written in all.
const N_CHECKPOINTS: u64 = 8;

pub(crate) fn run(args: &VerifyResume) -> Result<()> {
    let Given { source, config, .. } = Given::read(&args.config, &args.overrides)?;
    config.validate().map_err(|error| at_its_place(error, &source))?;
    let steps = args.steps.min(config.training.steps);
    let folder = tempfile::Builder::new().prefix("tealight-verify-resume-").tempdir();
    let folder = folder.context("there is no place for runs")?;
    let trial = Trial { args, steps, folder: folder.path() };
    match trial.run() {
        Ok(summary) => print(&summary),
        Err(error) => {
            let kept = folder.keep();
            Err(error.context(format!("what was compared is in `{}`", kept.display())))
        }
    }
}

struct Trial<'a> {
    args: &'a VerifyResume,
    steps: u64,
    folder: &'a Path,
}

impl Trial<'_> {
    fn run(&self) -> Result<String> {
        let started = Instant::now();
        self.finish("whole", false)?;
        let whole = started.elapsed();
        log(&format!("{} steps without interruption: {:.2} s", self.steps, whole.as_secs_f64()));
        let expected = product(&self.last("whole")?.context("the run left nothing behind")?)?;

        let stream = Stream::new(self.args.seed, Purpose::Sampling);
        let (mut n_kills, mut n_runs, mut n_moments) = (0, 0, 0);
        while n_kills < self.args.kills {
            n_runs += 1;
            let name = format!("killed-{n_runs}");
            loop {
                let resumes = self.last(&name)?.is_some();
                if n_kills == self.args.kills {
                    self.finish(&name, resumes)?;
                    break;
                }
                let moment = whole.mul_f64(stream.uniform(n_moments));
                n_moments += 1;
                if self.killed_after(moment, &name, resumes)? {
                    n_kills += 1;
                } else {
                    break;
                }
            }
            let run = self.last(&name)?.context("the run left nothing behind")?;
            compare(&expected, &product(&run)?)
                .with_context(|| format!("`{name}` is not the run that was not killed"))?;
            // Equal to the other, and so of no use; those that differ are kept.
            fs::remove_dir_all(run.path()).context("cannot clean up")?;
        }
        Ok(format!(
            "{n_kills} kills in {n_runs} runs of {} steps: none lost, all equal to the run that was not \
             killed, byte for byte\n",
            self.steps
        ))
    }

    fn last(&self, name: &str) -> Result<Option<RunDirectory>> {
        Ok(RunDirectory::last(self.folder, name)?)
    }

    fn start(&self, name: &str, resumes: bool) -> Result<Child> {
        let mut command = this_program()?;
        command.arg("train").arg(&self.args.config).args(["--quiet", "--name", name]);
        command.arg("--runs").arg(self.folder);
        command.args(["--stop-after", &self.steps.to_string()]);
        command.args(["--device", &self.args.device.to_string()]);
        let every = (self.steps / N_CHECKPOINTS).max(1);
        let own = [format!("checkpoint.every={every}"), "log.every=1".to_owned()];
        for setting in self.args.overrides.iter().chain(&own) {
            command.args(["--set", setting]);
        }
        if resumes {
            command.arg("--resume");
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().context("cannot start a process")
    }

    fn finish(&self, name: &str, resumes: bool) -> Result<()> {
        let output = self.start(name, resumes)?.wait_with_output().context("a process is lost")?;
        if output.status.success() {
            return Ok(());
        }
        bail!("{}", complaint(&output))
    }

    /// Whether the process was killed; if not, it was done before.
    fn killed_after(&self, moment: Duration, name: &str, resumes: bool) -> Result<bool> {
        let started = Instant::now();
        let mut child = self.start(name, resumes)?;
        while started.elapsed() < moment {
            if child.try_wait().context("a process is lost")?.is_some() {
                break;
            }
            sleep(LOOK_EVERY.min(moment.saturating_sub(started.elapsed())));
        }
        if child.try_wait().context("a process is lost")?.is_none() {
            child.kill().context("cannot kill a process")?;
            child.wait().context("a process is lost")?;
            return Ok(true);
        }
        let output = child.wait_with_output().context("a process is lost")?;
        if output.status.success() { Ok(false) } else { bail!("{}", complaint(&output)) }
    }
}

/// What must be the same: every visible file of the checkpoints, and the reports but for times.
fn product(run: &RunDirectory) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    collect(&run.path().join("checkpoints"), Path::new("checkpoints"), &mut files)?;
    let path = run.metrics_path();
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line: Map<String, Value> = serde_json::from_str(line)?;
        line.retain(|key, _| !TIMES.contains(&key.as_str()));
        lines.extend(serde_json::to_vec(&line)?);
        lines.push(b'\n');
    }
    files.insert(PathBuf::from("metrics.jsonl"), lines);
    Ok(files)
}

fn collect(folder: &Path, name: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
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

fn compare(
    expected: &BTreeMap<PathBuf, Vec<u8>>,
    found: &BTreeMap<PathBuf, Vec<u8>>,
) -> Result<()> {
    if let Some(missing) = expected.keys().find(|name| !found.contains_key(*name)) {
        bail!("there is no `{}`", missing.display());
    }
    if let Some(surplus) = found.keys().find(|name| !expected.contains_key(*name)) {
        bail!("there is `{}`, which should not be", surplus.display());
    }
    match expected.iter().find(|(name, bytes)| found[*name] != **bytes) {
        Some((name, _)) => bail!("`{}` differs", name.display()),
        None => Ok(()),
    }
}
