//! `tealight inspect --list`: all kinds that a configuration can name.

use anyhow::Result;
use serde_json::{Map, Value, json};
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
use tealight_train::config::Select;
use tealight_train::data::images::source::cifar;
use tealight_train::inference::labels::Objective;
use tealight_train::monitor::early_stopping::Direction;
use tealight_train::optimizer::schedule::ScheduleConfig;
use tealight_train::optimizer::{OptimizerConfig, muon};
use tealight_train::task::table::Table;
use tealight_train::task::weather::{InputKind, Regime, SourceConfig};
use tealight_train::task::{TaskConfig, images, seq2seq};
use tealight_train::text::corpus::{CorpusConfig, files};
use tealight_train::text::diary::Languages;
use tealight_train::text::masking;
use tealight_train::text::sequences::Layout;
use tealight_train::text::tokenizer::TokenizerConfig;
use tealight_train::weather::generator::one_four_eight::Positions;

use crate::terminal::output::{print, print_indented_json};

/// Prints all kinds, as text or as one JSON object.
pub(super) fn print_all(json: bool) -> Result<()> {
    if json { print_indented_json(&as_json()?) } else { print(&all_kinds()?) }
}

/// Each key that chooses a kind, with its kinds.
const SECTIONS: &[(&str, &[Kind])] = &[
    ("[task] kind", TaskConfig::KINDS),
    ("[task.source] kind (weather)", SourceConfig::KINDS),
    ("[task.source] kind (seq2seq)", seq2seq::SourceConfig::KINDS),
    ("[task.source] level (seq2seq, file)", seq2seq::Level::KINDS),
    ("[task.source] positions (one_four_eight)", Positions::KINDS),
    ("[task.regime] kind", Regime::KINDS),
    ("[task] read_out", ReadOut::KINDS),
    ("[task] read_out (classify, images)", classifier::ReadOut::KINDS),
    ("[task] objective (classify)", Objective::KINDS),
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

fn all_kinds() -> Result<String> {
    let kinds: String = SECTIONS.iter().map(|(key, kinds)| section(key, kinds)).collect();
    Ok(format!("{kinds}{}", supports()?))
}

/// `{"kinds": {KEY: {KIND: summary}}, "attention": [...]}`
fn as_json() -> Result<Value> {
    let kinds = SECTIONS.iter().map(|(key, kinds)| {
        let kinds: Map<String, Value> =
            kinds.iter().map(|kind| (kind.name.to_owned(), json!(kind.summary))).collect();
        ((*key).to_owned(), Value::Object(kinds))
    });
    let attention = Support::of_all()?.into_iter().map(|support| {
        json!({
            "kind": support.kind,
            "bidirectional": support.bidirectional,
            "causal": support.causal,
            "cross": support.cross,
            "rotary": support.rotary,
            "score_bias": support.score_bias,
            "packed": support.packed,
            "time_exponent": support.time,
            "memory_exponent": support.memory,
        })
    });
    Ok(json!({ "kinds": kinds.collect::<Map<_, _>>(), "attention": attention.collect::<Vec<_>>() }))
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
