//! Conversion from and to models of `transformers` (<https://github.com/huggingface/transformers>):
//! their `config.json` and the names of their tensors.
//!
//! ```text
//! config.json   → describe → Description { family, config, sizes, notes }
//! tensors       → Description::rename → Weights, from which a model is built
//! ModelConfig   → express  → Expressed { family, config.json }, or the list of all faults
//! parameters    → Expressed::rename → tensors
//! ```
//!
//! Each family is one file with one `Class`: functions that read and write its configuration, and a
//! table of names that serves both directions. Every key of a configuration is mapped, ignored if it has
//! no effect on the forward pass, or refused by name; unknown keys are listed in the notes. A missing
//! tensor is an error that names it as in the file. Tensors that files may contain and a language model
//! does not need (a pooler, position ids, causal masks) are ignored; other unused tensors are listed in
//! the notes and ignored.
//!
//! In training, dropout differs from `transformers`, whose feed-forward networks have no dropout after
//! the activation.
//!
//! This module reads no files.

mod bert;
mod classification;
mod decoder;
mod distilbert;
mod encoder;
mod error;
mod gpt2;
mod keys;
mod llama;
mod mistral;
mod modernbert;
mod nystromformer;
mod qwen3;
mod roberta;
mod rules;
mod t5;
mod table;
#[cfg(test)]
mod test_support;
mod vit;
mod weights;

use std::collections::BTreeSet;

use candle_core::{Result, Tensor};
use serde_json::{Map, Value};

pub use classification::{Classification, ProblemType};
pub use error::{HfError, HfResult};
pub use weights::Weights;

use crate::choice::names::Named as _;
use crate::choice::names::names;
use crate::config::ModelConfig;
use crate::error::ConfigFault;
use crate::layers::classifier_head::ClassifierHead;
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::models::causal_lm::CausalLmSpec;
use crate::models::classifier::ClassifierSpec;
use crate::models::image_classifier::ImageClassifierSpec;
use crate::models::masked_lm::MaskedLmSpec;
use crate::models::read_out::ReadOut;
use crate::models::seq2seq::Seq2SeqSpec;
use crate::patches::PictureSize;
use classification::HeadClass;
use keys::Keys;
use rules::Rules;
use table::{Alias, Pair};

/// The key whose fault counts more than any number of others in the choice of a family.
const ATTENTION: &str = "model.attention.kind";

names! {
    /// A family of models, named by the `model_type` of its `config.json`. If several can represent a model, it is
    /// exported as the last of them.
    pub enum Family {
        /// BERT (Devlin et al. 2019).
        "bert" => Bert,
        /// RoBERTa (Liu et al. 2019).
        "roberta" => Roberta,
        /// DistilBERT (Sanh et al. 2019).
        "distilbert" => DistilBert,
        /// Nyströmformer (Xiong et al. 2021).
        "nystromformer" => Nystromformer,
        /// ModernBERT (Warner et al. 2024).
        "modernbert" => ModernBert,
        /// GPT-2 (Radford et al. 2019).
        "gpt2" => Gpt2,
        /// T5 and T5 1.1 (Raffel et al. 2020).
        "t5" => T5,
        /// Mistral (Jiang et al. 2023).
        "mistral" => Mistral,
        /// Llama (Touvron et al. 2023).
        "llama" => Llama,
        /// Qwen3 (Yang et al. 2025).
        "qwen3" => Qwen3,
        /// The Vision Transformer (Dosovitskiy et al. 2021).
        "vit" => Vit,
    }
}

names! {
    /// The training objective of a model.
    pub enum Head {
        /// Predict masked tokens.
        "masked_lm" => MaskedLm,
        /// Predict the next token.
        "causal_lm" => CausalLm,
        /// Generate a target sequence from a source sequence.
        "seq2seq" => Seq2Seq,
        /// Classify a picture.
        "image_classifier" => ImageClassifier,
    }
}

/// Sizes and ids that the data determine and a [`ModelConfig`] does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Number of different token types, or `0`.
    pub n_token_types: usize,
    /// The longest sequence.
    pub seq_len: usize,
    /// The padding id, if there is one.
    pub pad_id: Option<u32>,
    /// The id of the start token, if known.
    pub bos_id: Option<u32>,
    /// The id of the end token, if known.
    pub eos_id: Option<u32>,
    /// The size of pictures; `None` for models of texts.
    pub picture: Option<PictureSize>,
}

/// The parameters of a masked language model's head. A tied model has no `output.weight`: it uses the
/// token embedding.
const MASKED_LM_HEAD: [&str; 6] = [
    "lm_head.dense.weight",
    "lm_head.dense.bias",
    "lm_head.norm.weight",
    "lm_head.norm.bias",
    "output.weight",
    "output.bias",
];

/// A `config.json`, converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The family of the model.
    pub family: Family,
    /// The configuration of the model.
    pub config: ModelConfig,
    /// The sizes that the data determine.
    pub sizes: Sizes,
    /// What the outputs of a classifier mean; `None` for other models.
    pub classification: Option<Classification>,
    /// Messages for the user: unknown keys, and settings that are ignored.
    pub notes: Vec<String>,
    /// Whether `architectures` names the class.
    is_named: bool,
}

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
    pairs: Vec<Pair>,
    aliases: Vec<Alias>,
    /// A table that is all zeros, with its shape.
    zeros: Option<(&'static str, [usize; 2])>,
}

/// The definition of a family.
struct Class {
    architecture: &'static str,
    head: Head,
    /// The prefix of all tensors of the backbone.
    base: &'static str,
    /// How tensor names begin in a file of the backbone only, which omits the prefix.
    roots: &'static [&'static str],
    /// Parts of names of tensors that a file may contain and a language model does not need.
    unused: &'static [&'static str],
    read: fn(&mut Keys) -> HfResult<(ModelConfig, Sizes)>,
    write: fn(&ModelConfig, &Sizes, &mut Rules) -> Map<String, Value>,
    pairs: fn(&ModelConfig) -> Vec<Pair>,
    /// Tensors that duplicate others.
    aliases: fn(&ModelConfig) -> Vec<Alias>,
    /// The table of token types, which has one row of zeros for a model without token types.
    token_types: Option<&'static str>,
    /// The class with a classification head, if there is one.
    classifier: Option<HeadClass>,
}

impl Family {
    fn class(self) -> &'static Class {
        match self {
            Self::Bert => &bert::CLASS,
            Self::Roberta => &roberta::CLASS,
            Self::DistilBert => &distilbert::CLASS,
            Self::Nystromformer => &nystromformer::CLASS,
            Self::ModernBert => &modernbert::CLASS,
            Self::Gpt2 => &gpt2::CLASS,
            Self::T5 => &t5::CLASS,
            Self::Mistral => &mistral::CLASS,
            Self::Llama => &llama::CLASS,
            Self::Qwen3 => &qwen3::CLASS,
            Self::Vit => &vit::CLASS,
        }
    }

    /// The name of the class of its language models in `transformers`.
    pub fn architecture(self) -> &'static str {
        self.class().architecture
    }

    /// The name of the class of its classifiers in `transformers`, if there is one.
    pub fn classifier_architecture(self) -> Option<&'static str> {
        self.class().classifier.as_ref().map(|class| class.architecture)
    }

    /// The training objective of its language models.
    pub fn head(self) -> Head {
        self.class().head
    }

    /// The head that its classifiers of this `config` have before they are trained.
    pub fn classifier_head(self, config: &ModelConfig) -> Option<ClassifierHead> {
        let class = self.class().classifier.as_ref()?;
        let (head, _) = (class.read)(&mut Keys::default(), config).ok()?;
        Some(head)
    }

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        self.name()
    }

    /// The family whose `model_type` the names of the tensors in a file begin with.
    pub fn of_tensors<'a>(names: impl Iterator<Item = &'a str>) -> Option<Self> {
        let bases: BTreeSet<&str> =
            names.filter_map(|name| Some(name.split_once('.')?.0)).collect();
        Self::ALL.iter().copied().find(|family| bases.contains(family.model_type()))
    }

    /// The tensors of the head of a masked language model of this `config`, by their names in a file.
    pub fn masked_lm_head(self, config: &ModelConfig) -> Vec<String> {
        let pairs = (self.class().pairs)(config);
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
}

impl Sizes {
    /// As the specification of a masked language model.
    pub fn masked_lm(&self) -> MaskedLmSpec {
        let Self { vocab_size, n_token_types, pad_id, seq_len, .. } = *self;
        MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: false }
    }

    /// As the specification of a classifier.
    pub fn classifier(&self, outputs: &Classification) -> ClassifierSpec {
        let Self { vocab_size, n_token_types, pad_id, seq_len, .. } = *self;
        let (n_classes, read_out) = (outputs.labels.len(), outputs.read_out);
        ClassifierSpec { vocab_size, n_token_types, pad_id, seq_len, n_classes, read_out }
    }

    /// As the specification of a classifier of pictures; without `outputs`, of its backbone.
    pub fn image_classifier(&self, outputs: Option<&Classification>) -> ImageClassifierSpec {
        ImageClassifierSpec {
            size: self.picture.unwrap_or_default(),
            n_classes: outputs.map_or(0, |outputs| outputs.labels.len()),
            read_out: outputs.map_or(ReadOut::Cls, |outputs| outputs.read_out),
        }
    }

    /// As the specification of a causal language model.
    pub fn causal_lm(&self) -> CausalLmSpec {
        CausalLmSpec { vocab_size: self.vocab_size, seq_len: self.seq_len, packed: false }
    }

    /// As the specification of an encoder-decoder.
    pub fn seq2seq(&self) -> Seq2SeqSpec {
        let Self { vocab_size, seq_len, .. } = *self;
        Seq2SeqSpec { vocab_size, source_len: seq_len, target_len: seq_len }
    }
}

impl From<ClassifierSpec> for Sizes {
    fn from(spec: ClassifierSpec) -> Self {
        let ClassifierSpec { vocab_size, n_token_types, pad_id, seq_len, .. } = spec;
        Self { vocab_size, n_token_types, seq_len, pad_id, ..Self::default() }
    }
}

impl From<ImageClassifierSpec> for Sizes {
    fn from(spec: ImageClassifierSpec) -> Self {
        Self { picture: Some(spec.size), ..Self::default() }
    }
}

impl From<CausalLmSpec> for Sizes {
    fn from(CausalLmSpec { vocab_size, seq_len, .. }: CausalLmSpec) -> Self {
        Self { vocab_size, seq_len, ..Self::default() }
    }
}

impl From<Seq2SeqSpec> for Sizes {
    fn from(Seq2SeqSpec { vocab_size, source_len, target_len }: Seq2SeqSpec) -> Self {
        Self { vocab_size, seq_len: source_len.max(target_len), ..Self::default() }
    }
}

impl From<MaskedLmSpec> for Sizes {
    fn from(spec: MaskedLmSpec) -> Self {
        let MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, .. } = spec;
        Self { vocab_size, n_token_types, seq_len, pad_id, ..Self::default() }
    }
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
    let (config, sizes) = (class.read)(&mut keys)?;
    let notes = keys.finish()?;
    Ok(Description { family, config, sizes, classification: None, notes, is_named })
}

/// Converts the text of a `config.json` to a classifier, whatever its `architectures`.
///
/// # Errors
/// As [`describe`], and if the family has no classifier.
pub fn describe_classifier(text: &str) -> HfResult<Description> {
    let (keys, family) = parse(text)?;
    match &family.class().classifier {
        Some(class) => classifier_of(family, class, keys),
        None => Err(no_classifier(family)),
    }
}

fn no_classifier(family: Family) -> HfError {
    let message = format!("there is no classifier of the `model_type` \"{}\"", family.model_type());
    HfError::Config(message)
}

fn classifier_of(family: Family, class: &HeadClass, mut keys: Keys) -> HfResult<Description> {
    let (mut config, sizes) = (family.class().read)(&mut keys)?;
    let classification = Some(class.describe(&mut keys, &mut config)?);
    let notes = keys.finish()?;
    Ok(Description { family, config, sizes, classification, notes, is_named: true })
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

/// Converts the model of this `config` to a family with this `head` that can represent it.
///
/// # Errors
/// If no family can, all faults for the nearest family, with the keys of the TOML.
pub fn express(head: Head, config: &ModelConfig, sizes: &Sizes) -> HfResult<Expressed> {
    let families = Family::ALL.iter().copied().filter(|family| family.head() == head);
    nearest(families, |family| express_as(family, config, sizes))
}

/// Converts the classifier of this `config` to a family that can represent it.
///
/// # Errors
/// As [`express`].
pub fn express_classifier(
    config: &ModelConfig,
    sizes: &Sizes,
    outputs: &Classification,
) -> HfResult<Expressed> {
    let of_pictures = sizes.picture.is_some();
    let has_one = |family: &Family| {
        let class = family.class();
        class.classifier.is_some() && (class.head == Head::ImageClassifier) == of_pictures
    };
    let families = Family::ALL.iter().copied().filter(has_one);
    nearest(families, |family| express_classifier_as(family, config, sizes, outputs))
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

/// Converts the model of this `config` to a model of `family`.
///
/// # Errors
/// If the family cannot represent it, all faults, with the keys of the TOML.
pub fn express_as(family: Family, config: &ModelConfig, sizes: &Sizes) -> HfResult<Expressed> {
    let class = family.class();
    let mut rules = Rules::new(class.architecture);
    let keys = (class.write)(config, sizes, &mut rules);
    let notes = rules.finish(family)?;
    let (architecture, pairs) = (class.architecture, class.all_pairs(config, None));
    Ok(Model { family, architecture, keys, pairs, notes }.expressed(config, sizes))
}

/// Converts the classifier of this `config` to a model of `family`.
///
/// # Errors
/// If the family cannot represent it, all faults, with the keys of the TOML.
pub fn express_classifier_as(
    family: Family,
    config: &ModelConfig,
    sizes: &Sizes,
    outputs: &Classification,
) -> HfResult<Expressed> {
    let class = family.class();
    let head = class.classifier.as_ref().ok_or_else(|| no_classifier(family))?;
    let mut rules = Rules::without_lm_head(head.architecture);
    let mut keys = (class.write)(config, sizes, &mut rules);
    keys.extend(head.express(config, outputs, &mut rules));
    let notes = rules.finish(family)?;
    let (architecture, pairs) = (head.architecture, class.all_pairs(config, Some(head)));
    Ok(Model { family, architecture, keys, pairs, notes }.expressed(config, sizes))
}

/// What a class makes of a model.
struct Model {
    family: Family,
    architecture: &'static str,
    keys: Map<String, Value>,
    pairs: Vec<Pair>,
    notes: Vec<String>,
}

impl Model {
    fn expressed(self, config: &ModelConfig, sizes: &Sizes) -> Expressed {
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
            seq_len: config.only_len().or(config.max_seq_len).unwrap_or(sizes.seq_len),
            notes,
            pairs,
            aliases: (class.aliases)(config),
            zeros: class
                .token_types
                .filter(|_| sizes.n_token_types == 0)
                .map(|name| (name, [1, config.d_model])),
        }
    }
}

impl Class {
    /// The names of all tensors of a model with this classification head, or with a language-model head. The
    /// former come first: a family may store both heads under one name.
    fn all_pairs(&self, config: &ModelConfig, head: Option<&HeadClass>) -> Vec<Pair> {
        head.into_iter().flat_map(HeadClass::pairs).chain((self.pairs)(config)).collect()
    }
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
        let Self { family, config, sizes, .. } = self;
        match &self.classification {
            Some(outputs) => express_classifier_as(*family, config, sizes, outputs),
            None => express_as(*family, config, sizes),
        }
    }

    fn pairs(&self) -> Vec<Pair> {
        let class = self.family.class();
        let head = class.classifier.as_ref().filter(|_| self.classification.is_some());
        class.all_pairs(&self.config, head)
    }
}

impl Expressed {
    /// The encoder alone, without its language-model head: `BertModel` for `BertForMaskedLM`.
    #[must_use]
    pub fn without_head(mut self) -> Self {
        let architecture = self.family.architecture().replace("ForMaskedLM", "Model");
        self.config.insert("architectures".to_owned(), vec![architecture].into());
        self
    }
}

/// `attention_mask (batch, len)`, 1 = real, of any integer dtype → `key_padding_mask (batch, len)`,
/// 1 = padding.
pub fn key_padding_mask(attention_mask: &Tensor) -> Result<Tensor> {
    attention_mask.eq(0_f64)
}
