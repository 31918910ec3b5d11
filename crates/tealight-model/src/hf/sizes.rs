//! The sizes of a model that its data determine.

use serde_json::{Map, Value, json};

use super::HfResult;
use super::classification::Classification;
use super::keys::Keys;
use crate::models::causal_lm::CausalLmSpec;
use crate::models::classifier::ClassifierSpec;
use crate::models::image_classifier::ImageClassifierSpec;
use crate::models::masked_lm::MaskedLmSpec;
use crate::models::read_out::ReadOut;
use crate::models::seq2seq::Seq2SeqSpec;
use crate::patches::PictureSize;

/// Sizes and ids that the data determine and a [`ModelConfig`](crate::config::ModelConfig) does not contain.
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

    /// The ids of padding, start and end, with their defaults; all other sizes are 0.
    pub(super) fn read_ids(keys: &mut Keys, [pad, bos, eos]: [Option<u32>; 3]) -> HfResult<Self> {
        Ok(Self {
            pad_id: keys.id("pad_token_id", pad)?,
            bos_id: keys.id("bos_token_id", bos)?,
            eos_id: keys.id("eos_token_id", eos)?,
            ..Self::default()
        })
    }

    /// The keys that [`Self::read_ids`] reads, with their values.
    pub(super) fn ids(&self) -> Map<String, Value> {
        let Self { pad_id, bos_id, eos_id, .. } = *self;
        let ids = json!({ "pad_token_id": pad_id, "bos_token_id": bos_id, "eos_token_id": eos_id });
        ids.as_object().cloned().unwrap_or_default()
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
