//! From a model to the `config.json` of a family.

use serde_json::{Map, Value};

use super::classification::Classification;
use super::ids::SpecialIds;
use super::rules::Rules;
use super::table::{Alias, Pair};
use super::{Family, HfError, HfResult, requirements};
use crate::choice::names::Named as _;
use crate::config::ModelConfig;
use crate::error::ConfigFault;
use crate::models::spec::ModelSpec;

/// The key whose fault counts more than any number of others in the choice of a family.
const ATTENTION: &str = "model.attention.kind";

/// A model in the format of `transformers`.
#[derive(Clone, Debug, PartialEq)]
pub struct Expressed {
    /// The family of the model.
    pub family: Family,
    /// `config.json`.
    pub config: Map<String, Value>,
    /// The longest sequence that a tokenizer should produce for it.
    pub seq_len: usize,
    /// Messages for the user.
    pub notes: Vec<String>,
    pub(super) pairs: Vec<Pair>,
    pub(super) aliases: Vec<Alias>,
    /// A table that is all zeros, with its shape.
    pub(super) zeros: Option<(&'static str, [usize; 2])>,
}

/// Converts the model of this `config` to a family that can represent it; `outputs` says what those of a classifier or a
/// tagger mean.
///
/// # Errors
/// If no family can, all faults for the nearest family, with the keys of the TOML.
pub fn express(
    config: &ModelConfig,
    spec: &ModelSpec,
    ids: &SpecialIds,
    outputs: Option<&Classification>,
) -> HfResult<Expressed> {
    let families = Family::ALL.iter().copied().filter(|family| (family.class().has)(spec));
    nearest(families, |family| express_as(family, config, spec, ids, outputs))
}

/// The first of `families`, from the last on, that can represent a model, or all faults for the nearest.
fn nearest(
    families: impl DoubleEndedIterator<Item = Family>,
    express: impl Fn(Family) -> HfResult<Expressed>,
) -> HfResult<Expressed> {
    let mut nearest: Option<(HfError, (bool, usize))> = None;
    for family in families.rev() {
        let error = match express(family) {
            Err(error @ HfError::Inexpressible { .. }) => error,
            expressed => return expressed,
        };
        let distance = distance(&error);
        if nearest.as_ref().is_none_or(|(_, other)| distance <= *other) {
            nearest = Some((error, distance));
        }
    }
    let none = || HfError::Config("no family of `transformers` has this head".to_owned());
    Err(nearest.map_or_else(none, |(error, _)| error))
}

/// Orders families by their faults: first whether the kind of attention differs, then the number of faults.
fn distance(error: &HfError) -> (bool, usize) {
    let HfError::Inexpressible { faults, .. } = error else { return (true, usize::MAX) };
    let is_attention = |fault: &ConfigFault| fault.keys.iter().any(|key| key == ATTENTION);
    (faults.iter().any(is_attention), faults.len())
}

/// Converts the model of this `config` to a model of `family`; with `outputs`, to a classifier or a tagger.
///
/// # Errors
/// If the family cannot represent it, all faults, with the keys of the TOML.
pub fn express_as(
    family: Family,
    config: &ModelConfig,
    spec: &ModelSpec,
    ids: &SpecialIds,
    outputs: Option<&Classification>,
) -> HfResult<Expressed> {
    let class = family.class();
    let Some(outputs) = outputs else {
        let is_encoder = matches!(spec, ModelSpec::Encoder(_));
        let rules = if is_encoder { Rules::without_lm_head } else { Rules::new };
        let mut rules = rules(class.architecture);
        requirements::check_no_convolutions(config, &mut rules);
        let keys = (class.write)((config, spec, ids), &mut rules);
        let notes = rules.finish(family)?;
        // `BertModel` is the encoder of `BertForMaskedLM`.
        let architecture = match class.architecture.strip_suffix("ForMaskedLM") {
            Some(name) if is_encoder => format!("{name}Model"),
            _ => class.architecture.to_owned(),
        };
        let pairs = class.all_pairs(config, None);
        return Ok(Model { family, architecture, keys, pairs, notes }.expressed(config, spec));
    };
    let head = family.head(outputs.read_out.is_none())?;
    let mut rules = Rules::without_lm_head(head.architecture);
    requirements::check_no_convolutions(config, &mut rules);
    let mut keys = (class.write)((config, spec, ids), &mut rules);
    keys.extend(head.express(config, outputs, &mut rules));
    let notes = rules.finish(family)?;
    let (architecture, pairs) = (head.architecture.to_owned(), class.all_pairs(config, Some(head)));
    Ok(Model { family, architecture, keys, pairs, notes }.expressed(config, spec))
}

/// What a class makes of a model.
struct Model {
    family: Family,
    architecture: String,
    keys: Map<String, Value>,
    pairs: Vec<Pair>,
    notes: Vec<String>,
}

impl Model {
    fn expressed(self, config: &ModelConfig, spec: &ModelSpec) -> Expressed {
        let Self { family, architecture, keys, pairs, notes } = self;
        let class = family.class();
        let mut config_json = Map::new();
        config_json.insert("architectures".to_owned(), vec![architecture].into());
        config_json.insert("model_type".to_owned(), family.model_type().into());
        config_json.insert("dtype".to_owned(), "float32".into());
        config_json.extend(keys);
        Expressed {
            family,
            config: config_json,
            seq_len: config
                .required_len()
                .or(config.max_seq_len)
                .or(spec.seq_len())
                .unwrap_or_default(),
            notes,
            pairs,
            aliases: (class.aliases)(config),
            zeros: class
                .token_types
                .filter(|_| spec.n_token_types() == 0)
                .map(|name| (name, [1, config.d_model])),
        }
    }
}

impl Expressed {
    /// The class of `transformers`.
    pub fn architecture(&self) -> &str {
        self.config["architectures"][0].as_str().unwrap_or_default()
    }
}
