//! From a `config.json` to a model.

use super::classification::Classification;
use super::express::{Expressed, express_as};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::shapes::Shapes;
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
    /// What the outputs of a classifier or a tagger mean; `None` for other models.
    pub classification: Option<Classification>,
    /// Messages for the user: unknown keys, and settings that are ignored.
    pub notes: Vec<String>,
}

/// Converts the text of a `config.json`. If its `architectures` name a class with a classification head, the
/// model is a classifier or a tagger, otherwise a language model.
///
/// # Errors
/// If it is not JSON, or names an unknown family or a setting that is not supported.
pub fn describe(text: &str) -> HfResult<Description> {
    describe_folder(text, &Shapes::new())
}

/// Converts the text of a `config.json` beside files with these tensors, which tell what the text leaves open: the
/// family, whether the model is a classifier or a tagger, and how many outputs that has.
///
/// # Errors
/// As [`describe`].
pub fn describe_folder(text: &str, tensors: &Shapes) -> HfResult<Description> {
    let (mut keys, family) = parse(text, tensors)?;
    let class = family.class();
    let (mut config, mut spec, ids) = (class.read)(&mut keys)?;
    let named = class.heads.iter().find(|head| keys.lists("architectures", head.architecture));
    let is_undecided = !keys.lists("architectures", class.architecture);
    let mut classification = None;
    if let Some(head) = named.or_else(|| class.head_in(tensors).filter(|_| is_undecided)) {
        let outputs = head.describe(&mut keys, &mut config, tensors)?;
        spec = match outputs.read_out {
            Some(read_out) => spec.with_classes(outputs.labels.len(), read_out),
            None => spec.with_tags(outputs.labels.len()),
        };
        classification = Some(outputs);
    }
    let notes = keys.finish()?;
    Ok(Description { family, config, spec, ids, classification, notes })
}

/// The keys of a `config.json` and its family: its `model_type`, or what the architectures or the tensors tell.
fn parse(text: &str, tensors: &Shapes) -> HfResult<(Keys, Family)> {
    let mut keys = Keys::parse(text)?;
    let known = || Family::KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
    if !keys.is_absent("model_type") {
        let model_type = keys.word("model_type", "")?;
        let family = Family::ALL.iter().copied().find(|family| family.name() == model_type);
        return family.map(|family| (keys, family)).ok_or_else(|| {
            let known = known();
            let message =
                format!("`model_type` = \"{model_type}\" is unknown, expected one of {known}");
            HfError::Config(message)
        });
    }
    let named = Family::ALL.iter().copied().find(|family| family.is_named_in(&keys));
    let by_name = named.map(|family| (family, "`architectures`"));
    let by_tensors = || {
        Some((Family::of_tensors(tensors.keys().map(String::as_str))?, "the names of the tensors"))
    };
    let Some((family, source)) = by_name.or_else(by_tensors) else {
        let add = "add \"model_type\": \"…\" with one of";
        return Err(HfError::Config(format!("`model_type` is missing: {add} {}", known())));
    };
    let model_type = family.model_type();
    keys.note(format!("`model_type` is missing: it is \"{model_type}\" by {source}"));
    Ok((keys, family))
}

impl Description {
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
        let outputs = self.classification.as_ref();
        let head = outputs.and_then(|outputs| class.head(outputs.read_out.is_none()));
        class.all_pairs(&self.config, head)
    }
}
