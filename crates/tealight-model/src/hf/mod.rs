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
mod distilbert;
mod encoder;
mod error;
mod gpt2;
mod keys;
mod nystromformer;
mod roberta;
mod rules;
mod t5;
mod table;
#[cfg(test)]
mod test_support;
mod weights;

use std::collections::BTreeSet;

use candle_core::{Result, Tensor};
use serde_json::{Map, Value};

pub use error::{HfError, HfResult};
pub use weights::Weights;

use crate::choice::names::Named as _;
use crate::choice::names::names;
use crate::config::ModelConfig;
use crate::error::ConfigFault;
use crate::models::causal_lm::CausalLmSpec;
use crate::models::masked_lm::MaskedLmSpec;
use crate::models::seq2seq::Seq2SeqSpec;
use keys::Keys;
use rules::Rules;
use table::{Alias, Pair};

/// The key whose fault counts more than any number of others in the choice of a family.
const ATTENTION: &str = "model.attention.kind";

names! {
    /// A family of models, named by the `model_type` of its `config.json`.
    pub enum Family {
        /// BERT (Devlin et al. 2019).
        "bert" => Bert,
        /// RoBERTa (Liu et al. 2019).
        "roberta" => Roberta,
        /// DistilBERT (Sanh et al. 2019).
        "distilbert" => DistilBert,
        /// Nyströmformer (Xiong et al. 2021).
        "nystromformer" => Nystromformer,
        /// GPT-2 (Radford et al. 2019).
        "gpt2" => Gpt2,
        /// T5 and T5 1.1 (Raffel et al. 2020).
        "t5" => T5,
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
    /// Messages for the user: unknown keys, and settings that are ignored.
    pub notes: Vec<String>,
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
}

impl Family {
    fn class(self) -> &'static Class {
        match self {
            Self::Bert => &bert::CLASS,
            Self::Roberta => &roberta::CLASS,
            Self::DistilBert => &distilbert::CLASS,
            Self::Nystromformer => &nystromformer::CLASS,
            Self::Gpt2 => &gpt2::CLASS,
            Self::T5 => &t5::CLASS,
        }
    }

    /// The name of the class in `transformers`.
    pub fn architecture(self) -> &'static str {
        self.class().architecture
    }

    /// The training objective of its models.
    pub fn head(self) -> Head {
        self.class().head
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

    /// The tensors of a masked language model's head, by their names in a file.
    pub fn masked_lm_head(self, config: &ModelConfig) -> Vec<String> {
        let pairs = (self.class().pairs)(config);
        let names = MASKED_LM_HEAD.iter().filter_map(|name| {
            let is_embedding = config.tied_output && *name == "output.weight";
            if is_embedding { None } else { table::theirs(&pairs, name) }
        });
        names.map(|(name, _part)| name).collect()
    }
}

impl Sizes {
    /// As the specification of a masked language model.
    pub fn masked_lm(&self) -> MaskedLmSpec {
        let Self { vocab_size, n_token_types, pad_id, seq_len, .. } = *self;
        MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: false }
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
        Self { vocab_size, n_token_types, seq_len, pad_id, bos_id: None, eos_id: None }
    }
}

/// Converts the text of a `config.json`.
///
/// # Errors
/// If it is not JSON, or names an unknown family or a setting that is not supported.
pub fn describe(text: &str) -> HfResult<Description> {
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
    let (config, sizes) = (family.class().read)(&mut keys)?;
    Ok(Description { family, config, sizes, notes: keys.finish()? })
}

/// Converts the model of this `config` to a family with this `head` that can represent it.
///
/// # Errors
/// If no family can, all faults for the nearest family, with the keys of the TOML.
pub fn express(head: Head, config: &ModelConfig, sizes: &Sizes) -> HfResult<Expressed> {
    let mut nearest: Option<(Family, Vec<ConfigFault>)> = None;
    for &family in Family::ALL.iter().rev().filter(|family| family.head() == head) {
        let faults = match express_as(family, config, sizes) {
            Err(HfError::Inexpressible { faults, .. }) => faults,
            expressed => return expressed,
        };
        if nearest.as_ref().is_none_or(|(_, others)| distance(&faults) <= distance(others)) {
            nearest = Some((family, faults));
        }
    }
    Err(match nearest {
        Some((family, faults)) => HfError::Inexpressible { family, faults },
        None => HfError::Config("no family of `transformers` has this head".to_owned()),
    })
}

/// Orders families by their faults: first whether the kind of attention differs, then the number of faults.
fn distance(faults: &[ConfigFault]) -> (bool, usize) {
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
    let rest = (class.write)(config, sizes, &mut rules);
    let notes = rules.finish(family)?;
    let mut config_json = Map::new();
    config_json.insert("architectures".to_owned(), vec![class.architecture].into());
    config_json.insert("model_type".to_owned(), family.model_type().into());
    config_json.insert("dtype".to_owned(), "float32".into());
    config_json.extend(rest);
    Ok(Expressed {
        family,
        config: config_json,
        seq_len: config.attention.only_len().or(config.max_seq_len).unwrap_or(sizes.seq_len),
        notes,
        pairs: (class.pairs)(config),
        aliases: (class.aliases)(config),
        zeros: class
            .token_types
            .filter(|_| sizes.n_token_types == 0)
            .map(|name| (name, [1, config.d_model])),
    })
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
