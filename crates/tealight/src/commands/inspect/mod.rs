//! `tealight inspect`: parameters and cost of a configuration or run; the parameters of a folder; `--list`: all available
//! kinds.

mod folder;
mod kinds;

use std::collections::BTreeMap;

use anyhow::Result;
use candle_core::{Device, Var};
use serde::Serialize;
use tealight_model::models::state::state_bytes;
use tealight_train::Session;
use tealight_train::config::memory::BytesPerScalar;
use tealight_train::run::RunDirectory;
use tealight_train::task::RegisteredTask;
use tealight_train::task::table::{Table, thousands};

use crate::args::inspect::Inspect;
use crate::runs::config::LoadedConfig;
use crate::runs::load::task_of;
use crate::runs::notes::notes;
use crate::terminal::numbers::MEBIBYTE;
use crate::terminal::output::{log, print, print_indented_json};

pub(crate) fn run(args: &Inspect) -> Result<()> {
    let Some(target) = &args.target else { return kinds::print_all(args.json) };
    let run = if target.is_dir() { RunDirectory::open(target).ok() } else { None };
    let loaded = match &run {
        Some(run) => LoadedConfig::of_run(run, &args.overrides)?,
        None => match LoadedConfig::read(target, &args.overrides) {
            Ok(loaded) => loaded,
            Err(error) => return folder::print_model(target, args, error),
        },
    };
    loaded.source.dropped_keys.iter().for_each(|dropped| log(&dropped.to_string()));
    let task = task_of(&loaded, &Device::Cpu, run.as_ref())?;
    let model = Model::from_session(&loaded.session(task, &Device::Cpu)?)?;
    if args.json { print_indented_json(&model) } else { print(&model.text()) }
}

/// All parameters of a model, and the cost of training them.
#[derive(Serialize)]
struct Model {
    n_parameters: u64,
    /// Positions of one sequence.
    positions: usize,
    forward_flops: u64,
    forward_flops_per_position: u64,
    training_flops_per_position: u64,
    batch_size: usize,
    /// An estimate for `batch_size`.
    training_bytes: u64,
    /// What decoding keeps of one sequence in f32, in all layers; `null` unless the model is causal.
    state_bytes: Option<u64>,
    /// Settings that cannot do what their names say.
    notes: Vec<String>,
    parameters: Vec<Parameter>,
}

#[derive(Serialize)]
struct Parameter {
    name: String,
    shape: Vec<usize>,
    count: usize,
    /// Whether weight decay applies.
    decays: bool,
    /// A factor of the learning rate; `null` if the parameter is frozen.
    lr_scale: Option<f64>,
}

impl Model {
    fn from_session<T: RegisteredTask>(session: &Session<T>) -> Result<Self> {
        let Session { config, task, params, model, optimizer, .. } = session;
        let groups = optimizer.decay_groups();
        let scales: BTreeMap<_, _> =
            optimizer.parameters().map(|p| (p.name.as_str(), p.lr_scale)).collect();
        let parameter = |(name, variable): (String, Var)| Parameter {
            shape: variable.dims().to_vec(),
            count: variable.elem_count(),
            decays: groups.decayed.names.contains(&name),
            lr_scale: scales.get(name.as_str()).copied(),
            name,
        };
        let cost = task.cost(model, &config.model, params);
        let (batch_size, estimate) = (config.training.batch_size, cost.estimate());
        let activations = batch_size as f64 * estimate.kept(config.training.activations());
        Ok(Self {
            n_parameters: cost.n_parameters as u64,
            positions: cost.positions,
            forward_flops: cost.forward_flops,
            forward_flops_per_position: cost.forward_flops_per_position(),
            training_flops_per_position: cost.training_flops_per_position(),
            batch_size,
            training_bytes: BytesPerScalar::F32.total(estimate.parameters, activations) as u64,
            state_bytes: state_bytes(&config.model, cost.positions)?,
            notes: notes(session),
            parameters: params.iter().map(parameter).collect(),
        })
    }

    fn text(&self) -> String {
        let mut table = Table::new(["parameter", "shape", "count", "decays", "lr"]);
        for Parameter { name, shape, count, decays, lr_scale } in &self.parameters {
            table.row([
                name.clone(),
                self::shape(shape),
                thousands(*count as u64),
                if *decays { "yes" } else { "no" }.to_owned(),
                lr_scale.map_or("frozen".to_owned(), |scale| format!("{scale:.3}")),
            ]);
        }
        let notes: Vec<String> = self.notes.iter().map(|note| format!("\n{note}\n")).collect();
        let notes = notes.concat();
        let state = self.state_bytes.map_or(String::new(), |bytes| {
            let kibibytes = bytes as f64 / 1024.;
            format!("state of decoding    {kibibytes:.1} KiB after {} positions\n", self.positions)
        });
        format!(
            "{table}\n\
             parameters           {}\n\
             forward FLOPs        {} per position, {} per sequence of {} positions\n\
             training FLOPs       {} per position\n\
             memory for training  about {:.1} MiB at batch size {}\n{state}{notes}",
            thousands(self.n_parameters),
            thousands(self.forward_flops_per_position),
            thousands(self.forward_flops),
            self.positions,
            thousands(self.training_flops_per_position),
            self.training_bytes as f64 / MEBIBYTE,
            self.batch_size,
        )
    }
}

/// The lengths of axes as a tuple.
fn shape(axes: &[usize]) -> String {
    let axes: Vec<String> = axes.iter().map(ToString::to_string).collect();
    format!("({})", axes.join(", "))
}
