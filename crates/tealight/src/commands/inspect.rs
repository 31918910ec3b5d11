//! `tealight inspect`: what a configuration or a run consists of, and every kind of everything.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use candle_core::Device;
use tealight_model::attention::AttentionConfig;
use tealight_model::feed_forward::{Activation, FeedForwardConfig};
use tealight_model::init::InitConfig;
use tealight_model::models::forecaster::ReadOut;
use tealight_model::norm::NormConfig;
use tealight_model::position::PositionConfig;
use tealight_model::{Choice, Kind};
use tealight_train::Session;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::optimizer::OptimizerConfig;
use tealight_train::run::RunDirectory;
use tealight_train::schedule::ScheduleConfig;
use tealight_train::task::TaskConfig;
use tealight_train::task::weather::{InputKind, Regime, SourceConfig, Weather};

use super::load::{resolved, session};
use super::print;
use crate::args::Inspect;
use crate::failure::at_its_place;
use crate::table::{Table, thousands};

pub(crate) fn run(args: &Inspect) -> Result<()> {
    match &args.target {
        None => print(&every_kind()),
        Some(target) => {
            let (source, config) = configuration(target, &args.overrides)?;
            let session =
                session(&config, &Device::Cpu).map_err(|error| at_its_place(error, &source))?;
            print(&parts(&session))
        }
    }
}

fn configuration(target: &Path, overrides: &[String]) -> Result<(ConfigSource, RunConfig)> {
    if target.is_dir() {
        return resolved(&RunDirectory::open(target)?);
    }
    let source = ConfigSource::read(target, overrides)?;
    let config = source.deserialize()?;
    Ok((source, config))
}

/// The parameters, and what training them costs.
fn parts(session: &Session<Weather>) -> String {
    let Session { config, task, params, model, optimizer, .. } = session;
    let groups = optimizer.groups();
    let mut table = Table::new(["parameter", "shape", "count", "decays"]);
    for (name, variable) in params.iter() {
        let decays = if groups.decayed.names.contains(&name) { "yes" } else { "no" };
        let count = thousands(variable.elem_count() as u64);
        table.row([name, shape(variable.dims()), count, decays.to_owned()]);
    }
    let cost = model.cost(&config.model, params, task.config().window);
    let batch = config.training.batch_size;
    format!(
        "{table}\n\
         parameters           {}\n\
         forward FLOPs        {} per position, {} per sequence of {} positions\n\
         training FLOPs       {} per position\n\
         memory for training  about {} with batches of {batch}\n",
        thousands(cost.n_parameters as u64),
        thousands(cost.forward_flops_per_position()),
        thousands(cost.forward_flops),
        cost.positions,
        thousands(cost.training_flops_per_position()),
        mebibytes(cost.training_bytes(batch)),
    )
}

fn shape(dims: &[usize]) -> String {
    let axes: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("({})", axes.join(", "))
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn every_kind() -> String {
    let mut text = String::new();
    let mut section = |key: &str, kinds: &[(&str, &str)]| {
        let width = kinds.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        writeln!(text, "{key}").expect("invariant: a String grows");
        for (name, summary) in kinds {
            writeln!(text, "    {name:<width$}  {summary}").expect("invariant: a String grows");
        }
    };
    section("[task] kind", &of::<TaskConfig>());
    section("[task.source] kind", &of::<SourceConfig>());
    section("[task.regime] kind", &of::<Regime>());
    section("[task] read_out", &ReadOut::ALL.map(|(_, name, summary)| (name, summary)));
    section("[task] input", &InputKind::ALL.map(|(_, name, summary)| (name, summary)));
    section("[model.attention] kind", &of::<AttentionConfig>());
    section("[model.position] kind", &of::<PositionConfig>());
    section("[model.norm] kind", &of::<NormConfig>());
    section("[model.feed_forward] kind", &of::<FeedForwardConfig>());
    section(
        "[model.feed_forward] activation",
        &Activation::ALL.map(|(_, name, summary)| (name, summary)),
    );
    section("[model.init] kind", &of::<InitConfig>());
    section("[optimizer] kind", &of::<OptimizerConfig>());
    section("[schedule] kind", &of::<ScheduleConfig>());
    text
}

fn of<C: Choice>() -> Vec<(&'static str, &'static str)> {
    C::KINDS.iter().map(|Kind { name, summary }| (*name, *summary)).collect()
}
