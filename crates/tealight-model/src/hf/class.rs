//! The definition of a family of models.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use serde_json::{Map, Value};

use super::HfResult;
use super::classification::HeadClass;
use super::ids::SpecialIds;
use super::keys::Keys;
use super::rules::Rules;
use super::shapes::Shapes;
use super::table::{self, Alias, Pair};
use crate::config::ModelConfig;
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::models::spec::ModelSpec;

/// The kinds of models of a family of encoders.
pub(super) fn is_encoder(spec: &ModelSpec) -> bool {
    matches!(
        spec,
        ModelSpec::MaskedLm(_)
            | ModelSpec::Encoder(_)
            | ModelSpec::TextClassifier(_)
            | ModelSpec::Tagger(_)
    )
}

/// The kind of models of a family of decoders.
pub(super) fn is_decoder(spec: &ModelSpec) -> bool {
    matches!(spec, ModelSpec::CausalLm(_))
}

/// The parameters of a masked language model's head. A tied model has no `output.weight`: it uses the
/// token embedding.
pub(super) const MASKED_LM_HEAD: [&str; 6] = [
    "lm_head.dense.weight",
    "lm_head.dense.bias",
    "lm_head.norm.weight",
    "lm_head.norm.bias",
    "output.weight",
    "output.bias",
];

/// Reads the keys of a `config.json`: that of a language model, or of a backbone of pictures.
pub(super) type Read = fn(&mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)>;
/// The settings, the kind and the special tokens of a model.
pub(super) type Model<'a> = (&'a ModelConfig, &'a ModelSpec, &'a SpecialIds);
/// Writes the keys of a `config.json`. Faults are recorded.
pub(super) type Write = fn(Model<'_>, &mut Rules) -> Map<String, Value>;

/// Renames and rearranges the tensors of a file.
pub(super) type Arrange = fn(BTreeMap<String, Tensor>) -> HfResult<BTreeMap<String, Tensor>>;

/// The definition of a family.
pub(super) struct Class {
    pub(super) architecture: &'static str,
    /// Whether its models are of this kind.
    pub(super) has: fn(&ModelSpec) -> bool,
    /// The prefix of all tensors of the backbone.
    pub(super) base: &'static str,
    /// How tensor names begin in a file of the backbone only, which omits the prefix.
    pub(super) roots: &'static [&'static str],
    /// Parts of names of tensors that a file may contain and a language model does not need.
    pub(super) unused: &'static [&'static str],
    pub(super) read: Read,
    pub(super) write: Write,
    pub(super) pairs: fn(&ModelConfig) -> Vec<Pair>,
    /// What becomes of the tensors of a file before their names are compared with those of `pairs`, if files have others.
    pub(super) arranged: Option<Arrange>,
    /// Tensors that duplicate others.
    pub(super) aliases: fn(&ModelConfig) -> Vec<Alias>,
    /// The table of token types, which has one row of zeros for a model without token types.
    pub(super) token_types: Option<&'static str>,
    /// The classes with a classification head.
    pub(super) heads: &'static [HeadClass],
}

impl Class {
    /// The tensors of the head of a masked language model of this `config`, by their names in a file.
    pub(super) fn masked_lm_head(&self, config: &ModelConfig) -> Vec<String> {
        let pairs = (self.pairs)(config);
        let head = config.lm_head.clone().unwrap_or_default();
        let norm_has_bias =
            matches!(config.norm, NormConfig::LayerNorm(LayerNormConfig { bias: true, .. }));
        let is_there = |name: &&&str| match **name {
            "output.weight" => !config.tied_output,
            "output.bias" => head.bias,
            "lm_head.dense.bias" => config.bias,
            "lm_head.norm.bias" => norm_has_bias,
            _ => true,
        };
        let names = MASKED_LM_HEAD.iter().filter(is_there);
        names.filter_map(|name| Some(table::theirs(&pairs, name)?.0)).collect()
    }

    /// The names of all tensors of a model with this classification head, or with a language-model head. The
    /// former come first: a family may store both heads under one name.
    pub(super) fn all_pairs(&self, config: &ModelConfig, head: Option<&HeadClass>) -> Vec<Pair> {
        head.into_iter().flat_map(HeadClass::pairs).chain((self.pairs)(config)).collect()
    }

    /// The class of classifiers or, if the head `is_of_tokens`, that of taggers.
    pub(super) fn head(&self, is_of_tokens: bool) -> Option<&'static HeadClass> {
        self.heads.iter().find(|head| head.is_of_tokens == is_of_tokens)
    }

    /// The class whose head a file has, by the names of its tensors: of several, the one with most tensors.
    pub(super) fn head_in(&self, tensors: &Shapes) -> Option<&'static HeadClass> {
        let names: BTreeSet<String> = tensors.keys().map(|name| self.modern_name(name)).collect();
        let is_there = |head: &&HeadClass| {
            let has = |name: &str| names.contains(&format!("{name}.weight"));
            head.n_outputs(tensors).is_some() && head.tensors.iter().all(|[_, theirs]| has(theirs))
        };
        self.heads.iter().rev().filter(is_there).max_by_key(|head| head.tensors.len())
    }

    /// The current name of a tensor: older files use `gamma` and `beta` in norms, and a file of the
    /// backbone only omits its prefix.
    pub(super) fn modern_name(&self, name: &str) -> String {
        let name = match name.rsplit_once('.') {
            Some((norm, "gamma")) => format!("{norm}.weight"),
            Some((norm, "beta")) => format!("{norm}.bias"),
            _ => name.to_owned(),
        };
        let is_bare = self.roots.iter().any(|root| name.starts_with(root));
        if is_bare { format!("{}.{name}", self.base) } else { name }
    }

    pub(super) fn ignores(&self, name: &str) -> bool {
        let name = format!(".{name}.");
        self.unused.iter().any(|part| name.contains(&format!(".{part}.")))
    }
}
