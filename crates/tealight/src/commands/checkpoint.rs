//! `tealight checkpoint`: lists, verifies, prunes and averages checkpoints.

use anyhow::{Context, Error, Result, bail};
use candle_core::{DType, Device, Tensor};
use serde::Serialize;
use serde_json::json;
use tealight_train::export::card::Provenance;
use tealight_train::run::{Checkpoints, Lock, RunDirectory, Selection, checkpoint, load_weights};
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::table::Table;
use tealight_train::trained::TrainedModel;

use super::export;
use crate::args::checkpoint::{AverageCheckpoints, Checkpoint, PruneCheckpoints};
use crate::runs::config::LoadedConfig;
use crate::terminal::escape::shell_path;
use crate::terminal::numbers::format_bytes;
use crate::terminal::output::{print, print_indented_json};

pub(crate) fn run(args: &Checkpoint) -> Result<()> {
    match args {
        Checkpoint::Ls(args) => list(&RunDirectory::open(&args.run.path)?, args.json),
        Checkpoint::Verify(args) => verify(&RunDirectory::open(&args.run.path)?, args.json),
        Checkpoint::Prune(args) => prune(args),
        Checkpoint::Average(args) => average(args),
    }
}

/// A checkpoint in a list.
#[derive(Serialize)]
struct Listed {
    /// The name of its directory.
    checkpoint: String,
    /// `null` if it is damaged and set aside.
    step: Option<u64>,
    bytes: Option<u64>,
    is_latest: bool,
    is_best: bool,
}

impl Listed {
    fn all(run: &RunDirectory) -> Result<Vec<Self>> {
        let checkpoints = run.checkpoints();
        let (latest, best) = (checkpoints.latest()?, checkpoints.best()?);
        let intact = checkpoints.steps()?.into_iter().map(|step| Self {
            checkpoint: Selection::Step(step).to_string(),
            step: Some(step),
            bytes: checkpoint::size(&checkpoints.path(step)).ok(),
            is_latest: latest == Some(step),
            is_best: best == Some(step),
        });
        let damaged = checkpoints.damaged()?.into_iter().map(|path| Self {
            checkpoint: path.file_name().unwrap_or_default().display().to_string(),
            step: None,
            bytes: None,
            is_latest: false,
            is_best: false,
        });
        Ok(intact.chain(damaged).collect())
    }

    fn status(&self) -> String {
        if self.step.is_none() {
            return "damaged, set aside".to_owned();
        }
        let roles = [(self.is_latest, "latest"), (self.is_best, "best")];
        let roles = roles.into_iter().filter(|(has, _)| *has).map(|(_, role)| role);
        roles.collect::<Vec<_>>().join(", ")
    }
}

fn list(run: &RunDirectory, json: bool) -> Result<()> {
    let all = Listed::all(run)?;
    if json {
        return print_indented_json(&json!({ "checkpoints": all }));
    }
    let mut table = Table::new(["checkpoint", "size", "status"]);
    for listed in all {
        let size = listed.bytes.map_or_else(|| "?".to_owned(), |bytes| format_bytes(bytes as f64));
        let status = listed.status();
        table.row([listed.checkpoint, size, status]);
    }
    print(&table.to_string())
}

/// Verifies all files that resuming the run needs.
fn verify(run: &RunDirectory, json: bool) -> Result<()> {
    let checkpoints = run.checkpoints();
    let steps = checkpoints.steps()?;
    let mut damages = Vec::new();
    for &step in &steps {
        let damage = checkpoint::verify(&checkpoints.path(step)).err();
        let damage = damage.map(|error| format!("{:#}", Error::from(error)));
        if !json {
            let found = damage.as_deref().unwrap_or("intact");
            print(&format!("{}  {found}\n", Selection::Step(step)))?;
        }
        damages.push(damage);
    }
    let n_damaged = damages.iter().flatten().count();
    if json {
        let found = steps.iter().zip(&damages).map(|(step, damage)| {
            let checkpoint = Selection::Step(*step).to_string();
            json!({ "checkpoint": checkpoint, "step": step, "is_intact": damage.is_none(), "damage": damage })
        });
        print_indented_json(
            &json!({ "n_damaged": n_damaged, "checkpoints": found.collect::<Vec<_>>() }),
        )?;
    }
    LoadedConfig::of_run(run, &[])?;
    if run.metrics_path().exists() {
        tealight_train::observer::jsonl::read(&run.metrics_path())?;
    }
    if n_damaged == 0 {
        return Ok(());
    }
    let path = run.path().display();
    let advice = if n_damaged < steps.len() {
        let argument = shell_path(run.path());
        format!("; `tealight train {argument}` resumes from the newest intact one")
    } else {
        String::new()
    };
    bail!("{n_damaged} of {} checkpoints of `{path}` cannot be used{advice}", steps.len());
}

fn prune(args: &PruneCheckpoints) -> Result<()> {
    let run = RunDirectory::open(&args.run.path)?;
    let lock = Lock::acquire(run.path())?;
    let removed = run.checkpoints().owned_by(&lock).prune(args.keep)?;
    let lines = removed.into_iter().map(|step| format!("removed {}\n", Selection::Step(step)));
    print(&lines.collect::<String>())
}

/// Exports the mean of the weights of several checkpoints.
fn average(args: &AverageCheckpoints) -> Result<()> {
    let run = RunDirectory::open(&args.run.path)?;
    let checkpoints = run.checkpoints();
    let steps = match &args.steps[..] {
        [] => {
            let steps = checkpoints.steps()?;
            steps[steps.len().saturating_sub(args.last)..].to_vec()
        }
        steps => steps.to_vec(),
    };
    let Some(&last) = steps.last() else {
        bail!("`{}` has no checkpoints yet", run.path().display());
    };
    let model = TrainedModel::open(run.path(), Some(Selection::Step(last)))?;
    let model = model.with_weights(mean(&checkpoints, &steps)?);
    let format = export::format(args.format, model.hugging_face())?;
    let names: Vec<String> = steps.iter().map(|step| Selection::Step(*step).to_string()).collect();
    let about = Provenance {
        name: format!("{}, mean of {}", run.name(), names.join(", ")),
        ..Provenance::default()
    };
    model.export(&args.to, &format, &about)?;
    print(&format!("{}\n", args.to.display()))
}

/// The mean weights, summed in f64.
fn mean(checkpoints: &Checkpoints, steps: &[u64]) -> Result<NamedTensors> {
    let mut sums = NamedTensors::new();
    let mut dtypes = Vec::new();
    for &step in steps {
        let path = checkpoints.find(Selection::Step(step))?;
        let weights = load_weights(&path, &Device::Cpu)?;
        if !sums.is_empty() && !sums.keys().eq(weights.keys()) {
            bail!("`{}` has different parameters than the other checkpoints", path.display());
        }
        dtypes = weights.values().map(Tensor::dtype).collect();
        for (name, weight) in weights {
            let weight = weight.to_dtype(DType::F64)?;
            let sum = match sums.get(&name) {
                Some(sum) => (sum + weight).with_context(|| path.display().to_string())?,
                None => weight,
            };
            sums.insert(name, sum);
        }
    }
    let n = steps.len() as f64;
    let mean = sums
        .into_iter()
        .zip(dtypes)
        .map(|((name, sum), dtype)| Ok((name, (sum / n)?.to_dtype(dtype)?)));
    mean.collect()
}
