//! Models of `transformers` (<https://github.com/huggingface/transformers>): what its `config.json`
//! says in our words, and what its tensors are called.
//!
//! ```text
//! config.json   → describe → Description { family, config, sizes, notes }
//! tensors       → Description::rename → Weights, from which a model is built
//! ModelConfig   → express  → Expressed { family, config.json }, or every reason why there is none
//! parameters    → Expressed::rename → tensors
//! ```
//!
//! Each family is one file with one `Class`: how its configuration is read and written, and one table
//! of names that both directions are derived from. Of a configuration every key is mapped, or known
//! not to change any number, or refused by its name where it would; a key that nobody knows is in the
//! notes. Of the tensors, one that is needed and missing is an error that names it as the file would. What
//! every file may have and no language model needs (a pooler, the ids of positions, causal masks) is left
//! out; any other that is not needed is in the notes. Neither is kept.
//!
//! A model of `transformers` drops other numbers in training than ours: its feed-forward networks have
//! no dropout inside. The seed would make them different anyway.
//!
//! Files are not read here.

mod bert;
mod distilbert;
mod encoder;
mod error;
#[cfg(test)]
mod frames;
mod gpt2;
mod keys;
mod needs;
mod nystromformer;
mod roberta;
mod t5;
mod table;
mod weights;

use candle_core::{Result, Tensor};
use serde_json::{Map, Value};

pub use error::{HfError, HfResult};
pub use weights::Weights;

use crate::models::causal_lm::CausalLmSpec;
use crate::models::masked_lm::MaskedLmSpec;
use crate::models::seq2seq::Seq2SeqSpec;
use crate::names::Named as _;
use crate::{ConfigFault, ModelConfig, names};
use keys::Keys;
use needs::Needs;
use table::{Pair, Twin, Zeros};

/// What tells families apart more than anything else.
const ATTENTION: &str = "model.attention.kind";

names! {
    /// A family of models, by the `model_type` of its `config.json`.
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
    /// What a model is trained to do.
    pub enum Head {
        /// Guess the tokens that were hidden.
        "masked_lm" => MaskedLm,
        /// Guess the next token.
        "causal_lm" => CausalLm,
        /// Write one sequence after reading another.
        "seq2seq" => Seq2Seq,
    }
}

/// What a configuration of ours leaves to the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Number of different token types, or `0`.
    pub n_token_types: usize,
    /// The longest sequence.
    pub seq_len: usize,
    /// The id of padding, if there is one.
    pub pad_id: Option<u32>,
    /// The id of what begins a sequence, where that is known.
    pub bos_id: Option<u32>,
    /// The id of what ends a sequence, where that is known.
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

/// What a `config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Whose it is.
    pub family: Family,
    /// The model.
    pub config: ModelConfig,
    /// What the data decided.
    pub sizes: Sizes,
    /// What a person should know of it: keys that are not known, settings that are not kept.
    pub notes: Vec<String>,
}

/// A model of ours as `transformers` would have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Expressed {
    /// Whose it is.
    pub family: Family,
    /// `config.json`.
    pub config: Map<String, Value>,
    /// The longest sequence that a person may give it.
    pub seq_len: usize,
    /// What a person should know of it.
    pub notes: Vec<String>,
    pairs: Vec<Pair>,
    twins: Vec<Twin>,
    zeros: Vec<Zeros>,
}

/// What differs between the families.
struct Class {
    architecture: &'static str,
    head: Head,
    /// The prefix of all tensors of the backbone.
    base: &'static str,
    /// How names begin in a file of the bare backbone, which leaves the prefix out.
    roots: &'static [&'static str],
    /// Parts that a file may have and a language model does not need.
    unused: &'static [&'static str],
    read: fn(&mut Keys) -> HfResult<(ModelConfig, Sizes)>,
    write: fn(&ModelConfig, &Sizes, &mut Needs) -> Map<String, Value>,
    pairs: fn(&ModelConfig) -> Vec<Pair>,
    /// Tensors that are copies of others, where the output is tied or not.
    twins: fn(&ModelConfig) -> Vec<Twin>,
    /// Tables that transformers has and a model of these sizes has not.
    zeros: fn(&ModelConfig, &Sizes) -> Vec<Zeros>,
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

    /// The name of the class that `transformers` loads.
    pub fn architecture(self) -> &'static str {
        self.class().architecture
    }

    /// What its models are trained to do.
    pub fn head(self) -> Head {
        self.class().head
    }

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        let at = Self::ALL.iter().position(|&family| family == self);
        at.map_or("", |at| Self::KINDS[at].name)
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
    /// What a masked language model is told.
    pub fn masked_lm(&self) -> MaskedLmSpec {
        let Self { vocab_size, n_token_types, pad_id, seq_len, .. } = *self;
        MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: false }
    }

    /// What a causal language model is told.
    pub fn causal_lm(&self) -> CausalLmSpec {
        CausalLmSpec { vocab_size: self.vocab_size, seq_len: self.seq_len, packed: false }
    }

    /// What an encoder-decoder is told.
    pub fn seq2seq(&self) -> Seq2SeqSpec {
        let Self { vocab_size, seq_len, .. } = *self;
        Seq2SeqSpec { vocab_size, source_len: seq_len, target_len: seq_len }
    }
}

impl From<CausalLmSpec> for Sizes {
    fn from(spec: CausalLmSpec) -> Self {
        let CausalLmSpec { vocab_size, seq_len, .. } = spec;
        Self { vocab_size, seq_len, ..Self::default() }
    }
}

impl From<Seq2SeqSpec> for Sizes {
    fn from(spec: Seq2SeqSpec) -> Self {
        let Seq2SeqSpec { vocab_size, source_len, target_len } = spec;
        Self { vocab_size, seq_len: source_len.max(target_len), ..Self::default() }
    }
}

impl From<MaskedLmSpec> for Sizes {
    fn from(spec: MaskedLmSpec) -> Self {
        let MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, .. } = spec;
        Self { vocab_size, n_token_types, seq_len, pad_id, bos_id: None, eos_id: None }
    }
}

/// What the text of a `config.json` says.
///
/// # Errors
/// If it is not JSON, of a family that is not known here, or asks for what no model here computes.
pub fn describe(text: &str) -> HfResult<Description> {
    let mut keys = Keys::parse(text)?;
    let model_type = keys.word("model_type", "")?;
    let at = Family::KINDS.iter().position(|kind| kind.name == model_type);
    let Some(family) = at.map(|at| Family::ALL[at]) else {
        let known: Vec<_> = Family::KINDS.iter().map(|kind| kind.name).collect();
        let message = format!("`model_type` = \"{model_type}\" is not known: {}", known.join(", "));
        return Err(HfError::Config(message));
    };
    let (config, sizes) = (family.class().read)(&mut keys)?;
    Ok(Description { family, config, sizes, notes: keys.finish()? })
}

/// The model of this `config` as the family that has one, with a `head`, expresses it.
///
/// # Errors
/// If there is none, every reason why the nearest family is none, with the keys of the TOML.
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

/// How far a model is from a family: first whether it has another attention, then the other reasons.
fn distance(faults: &[ConfigFault]) -> (bool, usize) {
    let is_attention = |fault: &ConfigFault| fault.keys.iter().any(|key| key == ATTENTION);
    (faults.iter().any(is_attention), faults.len())
}

/// The model of this `config` as a model of `family`.
///
/// # Errors
/// If it is none, every reason why, with the keys of the TOML.
pub fn express_as(family: Family, config: &ModelConfig, sizes: &Sizes) -> HfResult<Expressed> {
    let class = family.class();
    let mut needs = Needs::new(class.architecture);
    let rest = (class.write)(config, sizes, &mut needs);
    let notes = needs.finish(family)?;
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
        twins: (class.twins)(config),
        zeros: (class.zeros)(config, sizes),
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
