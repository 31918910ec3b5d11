//! `tealight checkpoint`: lists, verifies, prunes and averages checkpoints.

use anyhow::{Context, Error, Result, bail};
use candle_core::{DType, Device, Tensor};
use tealight_train::pretrained::Pretrained;
use tealight_train::pretrained::export::Provenance;
use tealight_train::run::{Checkpoints, Lock, RunDirectory, Selection, checkpoint, load_weights};
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::table::Table;

use super::export;
use crate::args::checkpoint::{AverageCheckpoints, Checkpoint, PruneCheckpoints};
use crate::runs::config::LoadedConfig;
use crate::terminal::numbers::format_bytes;
use crate::terminal::output::print;

pub(crate) fn run(args: &Checkpoint) -> Result<()> {
    match args {
        Checkpoint::Ls(args) => list(&RunDirectory::open(&args.path)?),
        Checkpoint::Verify(args) => verify(&RunDirectory::open(&args.path)?),
        Checkpoint::Prune(args) => prune(args),
        Checkpoint::Average(args) => average(args),
    }
}

fn list(run: &RunDirectory) -> Result<()> {
    let checkpoints = run.checkpoints();
    let mut table = Table::new(["checkpoint", "size", "status"]);
    let (latest, best) = (checkpoints.latest()?, checkpoints.best()?);
    for step in checkpoints.steps()? {
        let bytes = checkpoint::size(&checkpoints.path(step))
            .map_or_else(|_| "?".to_owned(), |bytes| format_bytes(bytes as f64));
        let roles = [(latest, "latest"), (best, "best")];
        let roles = roles.into_iter().filter(|(of, _)| *of == Some(step)).map(|(_, role)| role);
        let name = Selection::Step(step).to_string();
        table.row([name, bytes, roles.collect::<Vec<_>>().join(", ")]);
    }
    for path in checkpoints.damaged()? {
        let name = path.file_name().unwrap_or_default().display().to_string();
        table.row([name, "?".to_owned(), "damaged, set aside".to_owned()]);
    }
    print(&table.to_string())
}

/// Verifies all files that resuming the run needs.
fn verify(run: &RunDirectory) -> Result<()> {
    let checkpoints = run.checkpoints();
    let steps = checkpoints.steps()?;
    let mut n_damaged = 0;
    for &step in &steps {
        let found = match checkpoint::verify(&checkpoints.path(step)) {
            Ok(()) => "intact".to_owned(),
            Err(error) => {
                n_damaged += 1;
                format!("{:#}", Error::from(error))
            }
        };
        print(&format!("{}  {found}\n", Selection::Step(step)))?;
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
        format!("; `tealight train {path}` resumes from the newest intact one")
    } else {
        String::new()
    };
    bail!("{n_damaged} of {} checkpoints of `{path}` cannot be used{advice}", steps.len());
}

fn prune(args: &PruneCheckpoints) -> Result<()> {
    let run = RunDirectory::open(&args.run.path)?;
    let _lock = Lock::acquire(run.path())?;
    let removed = run.checkpoints().prune(args.keep)?;
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
    let mut model = Pretrained::open(run.path(), Some(Selection::Step(last)))?;
    model.weights = mean(&checkpoints, &steps)?;
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
