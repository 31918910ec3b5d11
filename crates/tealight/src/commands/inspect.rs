//! `tealight inspect`: parameters and cost of a configuration or run; `--list`: all available kinds.

use std::collections::BTreeMap;

use anyhow::Result;
use candle_core::Device;
use tealight_model::Kind;
use tealight_model::attention::score::Score;
use tealight_model::attention::support::Support;
use tealight_model::attention::{AttentionConfig, thresholded};
use tealight_model::block::NormPlacement;
use tealight_model::classifier_head::{ClassifierHead, HeadActivation};
use tealight_model::feed_forward::{Activation, FeedForwardConfig};
use tealight_model::init::InitConfig;
use tealight_model::models::classifier;
use tealight_model::models::forecaster::ReadOut;
use tealight_model::names::Named;
use tealight_model::norm::NormConfig;
use tealight_model::patches::PatchesConfig;
use tealight_model::position::{PositionConfig, rotary, scaling, sinusoidal};
use tealight_train::Session;
use tealight_train::config::Select;
use tealight_train::data::images::source::cifar;
use tealight_train::monitor::early_stopping::Direction;
use tealight_train::optimizer::schedule::ScheduleConfig;
use tealight_train::optimizer::{OptimizerConfig, muon};
use tealight_train::run::RunDirectory;
use tealight_train::task::table::{Table, thousands};
use tealight_train::task::weather::{InputKind, Regime, SourceConfig};
use tealight_train::task::{RegisteredTask, TaskConfig, TaskVisitor, classify, images, seq2seq};
use tealight_train::text::corpus::{CorpusConfig, files};
use tealight_train::text::diary::Languages;
use tealight_train::text::masking;
use tealight_train::text::sequences::Layout;
use tealight_train::text::tokenizer::TokenizerConfig;
use tealight_train::weather::generator::one_four_eight::Positions;

use crate::args::inspect::Inspect;
use crate::runs::config::LoadedConfig;
use crate::runs::load::with_task;
use crate::terminal::numbers::MEBIBYTE;
use crate::terminal::output::{log, print};

pub(crate) fn run(args: &Inspect) -> Result<()> {
    let Some(target) = &args.target else { return print(&all_kinds()?) };
    let run = if target.is_dir() { Some(RunDirectory::open(target)?) } else { None };
    let loaded = match &run {
        Some(run) => LoadedConfig::of_run(run, &args.overrides)?,
        None => LoadedConfig::read(target, &args.overrides)?,
    };
    loaded.source.dropped_keys.iter().for_each(|dropped| log(&dropped.to_string()));
    with_task(&loaded, &Device::Cpu, run.as_ref(), Inspection(&loaded))
}

struct Inspection<'a>(&'a LoadedConfig);

impl TaskVisitor for Inspection<'_> {
    type Output = Result<()>;

    fn visit<T: RegisteredTask>(self, task: T) -> Result<()> {
        print(&parameters(&self.0.session(task, &Device::Cpu)?))
    }
}

/// All parameters, and the cost of training them.
fn parameters<T: RegisteredTask>(session: &Session<T>) -> String {
    let Session { config, task, params, model, optimizer, .. } = session;
    let groups = optimizer.decay_groups();
    let scales: BTreeMap<_, _> =
        optimizer.parameters().map(|p| (p.name.as_str(), p.lr_scale)).collect();
    let mut table = Table::new(["parameter", "shape", "count", "decays", "lr"]);
    for (name, variable) in params.iter() {
        let decays = if groups.decayed.names.contains(&name) { "yes" } else { "no" };
        let lr = scales.get(name.as_str());
        let lr = lr.map_or("frozen".to_owned(), |scale| format!("{scale:.3}"));
        let count = thousands(variable.elem_count() as u64);
        table.row([name, shape(variable.dims()), count, decays.to_owned(), lr]);
    }
    let cost = task.cost(model, &config.model, params);
    let batch = config.training.batch_size;
    format!(
        "{table}\n\
         parameters           {}\n\
         forward FLOPs        {} per position, {} per sequence of {} positions\n\
         training FLOPs       {} per position\n\
         memory for training  about {:.1} MiB at batch size {batch}\n",
        thousands(cost.n_parameters as u64),
        thousands(cost.forward_flops_per_position()),
        thousands(cost.forward_flops),
        cost.positions,
        thousands(cost.training_flops_per_position()),
        cost.training_bytes(batch, config.training.activations()) as f64 / MEBIBYTE,
    )
}

fn shape(dims: &[usize]) -> String {
    let axes: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("({})", axes.join(", "))
}

/// Each key that chooses a kind, with its kinds.
fn all_kinds() -> Result<String> {
    let sections: &[(&str, &[Kind])] = &[
        ("[task] kind", TaskConfig::KINDS),
        ("[task.source] kind (weather)", SourceConfig::KINDS),
        ("[task.source] kind (seq2seq)", seq2seq::SourceConfig::KINDS),
        ("[task.source] level (seq2seq, file)", seq2seq::Level::KINDS),
        ("[task.source] positions (one_four_eight)", Positions::KINDS),
        ("[task.regime] kind", Regime::KINDS),
        ("[task] read_out", ReadOut::KINDS),
        ("[task] read_out (classify, images)", classifier::ReadOut::KINDS),
        ("[task] objective (classify)", classify::Objective::KINDS),
        ("[task.corpus] kind", CorpusConfig::KINDS),
        ("[task.corpus] documents (files)", files::Unit::KINDS),
        ("[task.corpus] language (diary)", Languages::KINDS),
        ("[task.tokenizer] kind", TokenizerConfig::KINDS),
        ("[task] sequences", Layout::KINDS),
        ("[task.masking] unit", masking::Unit::KINDS),
        ("[task] input", InputKind::KINDS),
        ("[task.data] kind (images)", images::SourceConfig::KINDS),
        ("[task.data] classes (cifar)", cifar::Classes::KINDS),
        ("[task] colour (images)", images::Colour::KINDS),
        ("[task] fit (images)", images::Fit::KINDS),
        ("[task] filter (images)", images::Filter::KINDS),
        ("[model.patches] kind", PatchesConfig::KINDS),
        ("[model.attention] kind", AttentionConfig::KINDS),
        ("[model.attention] score", Score::KINDS),
        ("[model.attention] rule (thresholded)", thresholded::Rule::KINDS),
        ("[model.position] kind", PositionConfig::KINDS),
        ("[model.position] layout (sinusoidal)", sinusoidal::Layout::KINDS),
        ("[model.position] layout (rotary)", rotary::Layout::KINDS),
        ("[model.position.scaling] kind (rotary)", scaling::Scaling::KINDS),
        ("[model.norm] kind", NormConfig::KINDS),
        ("[model] norm_placement", NormPlacement::KINDS),
        ("[model.feed_forward] kind", FeedForwardConfig::KINDS),
        ("[model.feed_forward] activation", Activation::KINDS),
        ("[model.classifier] kind", ClassifierHead::KINDS),
        ("[model.classifier] activation (dense)", HeadActivation::KINDS),
        ("[model.init] kind", InitConfig::KINDS),
        ("[optimizer] kind", OptimizerConfig::KINDS),
        ("[optimizer] scale (muon)", muon::Scale::KINDS),
        ("[schedule] kind", ScheduleConfig::KINDS),
        ("[training.early_stopping] direction", Direction::KINDS),
        ("[checkpoint] select", Select::KINDS),
    ];
    let kinds: String = sections.iter().map(|(key, kinds)| section(key, kinds)).collect();
    Ok(format!("{kinds}{}", supports()?))
}

/// What each kind of attention supports with its default settings.
fn supports() -> Result<String> {
    fn mark(can: bool) -> String {
        if can { "yes" } else { "-" }.to_owned()
    }
    fn power(n: u32) -> String {
        if n == 1 { "T".to_owned() } else { format!("T^{n}") }
    }
    type Column = (&'static str, fn(&Support) -> String);
    let columns: [Column; 10] = [
        ("[model.attention] kind", |support| support.kind.to_owned()),
        ("whole", |support| mark(support.bidirectional)),
        ("causal", |support| mark(support.causal)),
        ("cross", |support| mark(support.cross)),
        ("padding", |_| mark(true)),
        ("rotary", |support| mark(support.rotary)),
        ("bias", |support| mark(support.score_bias)),
        ("packed", |support| mark(support.packed)),
        ("time", |support| power(support.time)),
        ("memory", |support| power(support.memory)),
    ];
    let mut table = Table::new(columns.map(|(heading, _)| heading));
    for support in Support::of_all()? {
        table.row(columns.map(|(_, cell)| cell(&support)));
    }
    Ok(format!(
        "\nwhole: bidirectional self-attention · cross: cross-attention · padding: masks padded keys\n\
         rotary, bias: positions that rotate queries and keys, or that add to the scores\n\
         packed: no attention across the documents of a packed sequence · T: sequence length\n\n{table}"
    ))
}

/// A heading, and one line per kind.
fn section(key: &str, kinds: &[Kind]) -> String {
    let width = kinds.iter().map(|kind| kind.name.len()).max().unwrap_or(0);
    let lines =
        kinds.iter().map(|Kind { name, summary }| format!("    {name:<width$}  {summary}\n"));
    format!("{key}\n{}", lines.collect::<String>())
}
