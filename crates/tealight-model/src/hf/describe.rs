//! From a `config.json` to a model.

use super::classification::{Classification, HeadClass};
use super::express::{Expressed, express_as};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::table::Pair;
use super::{Family, HfError, HfResult};
use crate::choice::names::Named as _;
use crate::config::ModelConfig;
use crate::models::spec::ModelSpec;

/// A `config.json`, converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The family of the model.
    pub family: Family,
    /// The configuration of the model.
    pub config: ModelConfig,
    /// What kind of model it is, with the sizes that the data decide.
    pub spec: ModelSpec,
    /// The ids of special tokens.
    pub ids: SpecialIds,
    /// What the outputs of a classifier mean; `None` for other models.
    pub classification: Option<Classification>,
    /// Messages for the user: unknown keys, and settings that are ignored.
    pub notes: Vec<String>,
    /// Whether `architectures` names the class.
    is_named: bool,
}

/// Converts the text of a `config.json`. If its `architectures` name a class with a classification head, the
/// model is a classifier, otherwise a language model.
///
/// # Errors
/// If it is not JSON, or names an unknown family or a setting that is not supported.
pub fn describe(text: &str) -> HfResult<Description> {
    let (mut keys, family) = parse(text)?;
    let class = family.class();
    let names = |architecture| keys.lists("architectures", architecture);
    if let Some(classifier) = class.classifier.as_ref().filter(|one| names(one.architecture)) {
        return classifier_of(family, classifier, keys);
    }
    let is_named = names(class.architecture);
    let (config, spec, ids) = (class.read)(&mut keys)?;
    let notes = keys.finish()?;
    Ok(Description { family, config, spec, ids, classification: None, notes, is_named })
}

/// Converts the text of a `config.json` to a classifier, whatever its `architectures`.
///
/// # Errors
/// As [`describe`], and if the family has no classifier.
pub fn describe_classifier(text: &str) -> HfResult<Description> {
    let (keys, family) = parse(text)?;
    classifier_of(family, family.classifier()?, keys)
}

fn classifier_of(family: Family, class: &HeadClass, mut keys: Keys) -> HfResult<Description> {
    let (mut config, spec, ids) = (family.class().read)(&mut keys)?;
    let outputs = class.describe(&mut keys, &mut config)?;
    let spec = spec.with_classes(outputs.labels.len(), outputs.read_out);
    let classification = Some(outputs);
    let notes = keys.finish()?;
    Ok(Description { family, config, spec, ids, classification, notes, is_named: true })
}

/// The keys of a `config.json` and its family.
fn parse(text: &str) -> HfResult<(Keys, Family)> {
    let mut keys = Keys::parse(text)?;
    let has_none = keys.is_absent("model_type");
    let model_type = keys.word("model_type", "")?;
    let family = Family::ALL.iter().copied().find(|family| family.name() == model_type);
    let Some(family) = family else {
        let known = Family::KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
        let message = if has_none {
            format!("`model_type` is missing: add \"model_type\": \"…\" with one of {known}")
        } else {
            format!("`model_type` = \"{model_type}\" is unknown, expected one of {known}")
        };
        return Err(HfError::Config(message));
    };
    Ok((keys, family))
}

impl Description {
    /// Whether `architectures` names no class, and a tensor of one of these names is the output of a classifier.
    pub fn may_classify<'a>(&self, mut tensors: impl Iterator<Item = &'a str>) -> bool {
        let class = self.family.class().classifier.as_ref().filter(|_| !self.is_named);
        class.is_some_and(|class| tensors.any(|name| class.is_output(name)))
    }

    /// This model in the format of its family.
    ///
    /// # Errors
    /// As [`express_as`].
    pub fn express(&self) -> HfResult<Expressed> {
        let Self { family, config, spec, ids, classification, .. } = self;
        express_as(*family, config, spec, ids, classification.as_ref())
    }

    pub(super) fn pairs(&self) -> Vec<Pair> {
        let class = self.family.class();
        let head = class.classifier.as_ref().filter(|_| self.classification.is_some());
        class.all_pairs(&self.config, head)
    }
}
