//! Conversion from and to models of `transformers` (<https://github.com/huggingface/transformers>):
//! their `config.json` and the names of their tensors.
//!
//! ```text
//! config.json   → describe → Description { family, config, spec, ids, notes }
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
mod class;
mod classification;
mod decoder;
mod describe;
mod distilbert;
mod encoder;
mod error;
mod express;
mod gpt2;
mod ids;
mod keys;
mod layers;
mod llama;
mod mamba2;
mod ministral;
mod mistral;
mod modernbert;
mod nystromformer;
mod olmo_hybrid;
mod qwen3;
mod requirements;
mod roberta;
mod rules;
mod shapes;
mod t5;
mod table;
#[cfg(test)]
mod test_support;
mod vit;
mod weights;

use std::collections::BTreeSet;

use candle_core::{Result, Tensor};

pub use classification::{Classification, ProblemType};
pub use describe::{Description, describe, describe_folder};
pub use error::{HfError, HfResult};
pub use express::{Expressed, express, express_as};
pub use ids::SpecialIds;
pub use shapes::Shapes;
pub use weights::Weights;

use crate::choice::names::Named as _;
use crate::choice::names::names;
use crate::config::ModelConfig;
use crate::layers::classifier_head::ClassifierHead;
use class::Class;
use classification::HeadClass;
use keys::Keys;

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
        /// Ministral (Mistral AI 2024).
        "ministral" => Ministral,
        /// Mistral (Jiang et al. 2023).
        "mistral" => Mistral,
        /// Llama (Touvron et al. 2023).
        "llama" => Llama,
        /// Qwen3 (Yang et al. 2025).
        "qwen3" => Qwen3,
        /// Mamba-2 (Dao and Gu 2024).
        "mamba2" => Mamba2,
        /// OLMo Hybrid (Ai2 2026).
        "olmo_hybrid" => OlmoHybrid,
        /// The Vision Transformer (Dosovitskiy et al. 2021).
        "vit" => Vit,
    }
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
            Self::Ministral => &ministral::CLASS,
            Self::Mistral => &mistral::CLASS,
            Self::Llama => &llama::CLASS,
            Self::Qwen3 => &qwen3::CLASS,
            Self::Mamba2 => &mamba2::CLASS,
            Self::OlmoHybrid => &olmo_hybrid::CLASS,
            Self::Vit => &vit::CLASS,
        }
    }

    /// The name of the class of its language models in `transformers`.
    pub fn architecture(self) -> &'static str {
        self.class().architecture
    }

    /// The name of the class of its classifiers in `transformers`, if there is one.
    pub fn classifier_architecture(self) -> Option<&'static str> {
        Some(self.class().head(false)?.architecture)
    }

    /// The name of the class of its taggers in `transformers`, if there is one.
    pub fn tagger_architecture(self) -> Option<&'static str> {
        Some(self.class().head(true)?.architecture)
    }

    /// The head that its classifiers of this `config` have before they are trained.
    pub fn classifier_head(self, config: &ModelConfig) -> Option<ClassifierHead> {
        self.untrained_head(config, false)
    }

    /// The head that its taggers of this `config` have before they are trained.
    pub fn tagger_head(self, config: &ModelConfig) -> Option<ClassifierHead> {
        self.untrained_head(config, true)
    }

    fn untrained_head(self, config: &ModelConfig, is_of_tokens: bool) -> Option<ClassifierHead> {
        let class = self.class().head(is_of_tokens)?;
        let (head, _) = (class.read)(&mut Keys::default(), config).ok()?;
        Some(head)
    }

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        self.name()
    }

    /// Whether the `architectures` of a `config.json` name one of its classes.
    fn is_named_in(self, keys: &Keys) -> bool {
        let heads = self.class().heads.iter().map(|head| head.architecture);
        [self.architecture()]
            .into_iter()
            .chain(heads)
            .any(|class| keys.lists("architectures", class))
    }

    /// The family whose `model_type` the names of the tensors in a file begin with.
    fn of_tensors<'a>(names: impl Iterator<Item = &'a str>) -> Option<Self> {
        let bases: BTreeSet<&str> =
            names.filter_map(|name| Some(name.split_once('.')?.0)).collect();
        Self::ALL.iter().copied().find(|family| bases.contains(family.model_type()))
    }

    /// The tensors of the head of a masked language model of this `config`, by their names in a file.
    pub fn masked_lm_head(self, config: &ModelConfig) -> Vec<String> {
        self.class().masked_lm_head(config)
    }

    /// Its class of taggers, or of classifiers.
    fn head(self, is_of_tokens: bool) -> HfResult<&'static HeadClass> {
        let what = if is_of_tokens { "tagger" } else { "classifier" };
        let message =
            || format!("there is no {what} of the `model_type` \"{}\"", self.model_type());
        self.class().head(is_of_tokens).ok_or_else(|| HfError::Config(message()))
    }
}

/// `attention_mask (batch, len)`, 1 = real, of any integer dtype → `key_padding_mask (batch, len)`,
/// 1 = padding.
pub fn key_padding_mask(attention_mask: &Tensor) -> Result<Tensor> {
    attention_mask.eq(0_f64)
}
