//! The purpose of a model: the task that it was trained for, and how files record it.
//!
//! A run records the kind of the task in its configuration and the sizes of its data in its manifest; an
//! exported folder has both in `tealight.json`.

use std::collections::BTreeMap;

use tealight_model::hf::{Description, Head};
use tealight_model::models::causal_lm::CausalLmSpec;
use tealight_model::models::classifier::{ClassifierSpec, ReadOut};
use tealight_model::models::image_classifier::ImageClassifierSpec;
use tealight_model::models::masked_lm::MaskedLmSpec;
use tealight_model::models::seq2seq::Seq2SeqSpec;
use tealight_model::patches::PictureSize;

use crate::data::text::tokenizer::Tokenizer;

// The kinds of tasks with a `Purpose` of their own, as files record them.
pub(super) const MASKED_LM: &str = "masked_lm";
pub(super) const CAUSAL_LM: &str = "causal_lm";
pub(super) const CLASSIFY: &str = "classify";
pub(super) const PICTURES: &str = "images";
const SEQ2SEQ: &str = "seq2seq";
/// No task: [`Purpose::Encoder`].
const ENCODER: &str = "encoder";

/// The task that a model was trained for, with the sizes of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Predict masked tokens.
    MaskedLm(MaskedLmSpec),
    /// The encoder of a masked language model without its head. It can initialise another model.
    Encoder(MaskedLmSpec),
    /// Continue texts.
    CausalLm(CausalLmSpec),
    /// Generate one text from another, with a tokenizer.
    Seq2Seq {
        /// The sizes of the model.
        spec: Seq2SeqSpec,
        /// The first token of the decoder; the tokenizer's padding if absent.
        begin_id: Option<u32>,
    },
    /// Classify texts.
    Classifier(ClassifierSpec),
    /// Classify pictures; without classes, the backbone of such a model.
    Pictures(ImageClassifierSpec),
    /// Any other task. The model can still initialise another one.
    Other(PurposeRecord),
}

/// A purpose as files record it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PurposeRecord {
    /// The kind of the task.
    pub task: String,
    /// Sizes and token ids by name.
    pub sizes: BTreeMap<String, u64>,
    /// The read-out of a classifier.
    pub read_out: Option<ReadOut>,
}

impl Purpose {
    /// The purpose of a model of `transformers`, which is never [`Self::Other`].
    pub(super) fn of_hugging_face(description: &Description) -> Self {
        let Description { family, sizes, classification, .. } = description;
        match (family.head(), classification) {
            (Head::ImageClassifier, outputs) => {
                Self::Pictures(sizes.image_classifier(outputs.as_ref()))
            }
            (_, Some(outputs)) => Self::Classifier(sizes.classifier(outputs)),
            (Head::MaskedLm, None) => Self::MaskedLm(sizes.masked_lm()),
            (Head::CausalLm, None) => Self::CausalLm(sizes.causal_lm()),
            (Head::Seq2Seq, None) => {
                Self::Seq2Seq { spec: sizes.seq2seq(), begin_id: sizes.bos_id }
            }
        }
    }

    /// That of a model whose weights lack the head of masked language models: such a model is an encoder.
    pub(super) fn without_masked_lm_head(self) -> Self {
        match self {
            Self::MaskedLm(spec) => Self::Encoder(spec),
            others => others,
        }
    }

    /// The recorded purpose of a model with this tokenizer.
    pub(super) fn from_record(record: PurposeRecord, tokenizer: Option<&Tokenizer>) -> Self {
        let found = Self::of_text(&record, tokenizer).or_else(|| Self::of_pictures(&record));
        found.unwrap_or(Self::Other(record))
    }

    /// `None` if the task is not one of pictures, or if a size is missing.
    fn of_pictures(record: &PurposeRecord) -> Option<Self> {
        if record.task != PICTURES {
            return None;
        }
        let size = |name: &str| record.sizes.get(name).map(|&size| size as usize);
        let (height, width, channels) = (size("height")?, size("width")?, size("channels")?);
        Some(Self::Pictures(ImageClassifierSpec {
            size: PictureSize { height, width, channels },
            n_classes: size("n_classes")?,
            read_out: record.read_out?,
        }))
    }

    /// `None` if the task is not one of text, or if a size is missing.
    fn of_text(record: &PurposeRecord, tokenizer: Option<&Tokenizer>) -> Option<Self> {
        let size = |name: &str| record.sizes.get(name).map(|&size| size as usize);
        let id = |name: &str| record.sizes.get(name).and_then(|&id| id.try_into().ok());
        let vocab_size = size("vocab_size")?;
        let n_token_types = size("n_token_types").unwrap_or(0);
        let pad_id = id("pad_id").or_else(|| tokenizer?.special().pad);
        Some(match record.task.as_str() {
            task @ (MASKED_LM | ENCODER) => {
                let (seq_len, packed) = (size("seq_len")?, false);
                let spec = MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed };
                if task == ENCODER { Self::Encoder(spec) } else { Self::MaskedLm(spec) }
            }
            CAUSAL_LM => {
                let seq_len = size("seq_len")?;
                Self::CausalLm(CausalLmSpec { vocab_size, seq_len, packed: false })
            }
            // A run of the task `seq2seq` has a vocabulary of symbols instead of a tokenizer.
            SEQ2SEQ if tokenizer.is_some() => {
                let (source_len, target_len) = (size("source_len")?, size("target_len")?);
                let spec = Seq2SeqSpec { vocab_size, source_len, target_len };
                Self::Seq2Seq { spec, begin_id: id("begin_id") }
            }
            CLASSIFY => Self::Classifier(ClassifierSpec {
                vocab_size,
                n_token_types,
                pad_id,
                seq_len: size("seq_len")?,
                n_classes: size("n_classes")?,
                read_out: record.read_out?,
            }),
            _ => return None,
        })
    }

    /// The record of this purpose for a file.
    pub(super) fn record(&self) -> PurposeRecord {
        let size = |name, size: usize| Some((name, size as u64));
        let id = |name, id: Option<u32>| Some((name, u64::from(id?)));
        let (task, sizes) = match self {
            Self::Other(record) => return record.clone(),
            Self::MaskedLm(spec) | Self::Encoder(spec) => {
                let has_head = matches!(self, Self::MaskedLm(_));
                let sizes = vec![
                    size("vocab_size", spec.vocab_size),
                    size("n_token_types", spec.n_token_types),
                    id("pad_id", spec.pad_id),
                    size("seq_len", spec.seq_len),
                ];
                (if has_head { MASKED_LM } else { ENCODER }, sizes)
            }
            Self::CausalLm(spec) => {
                let sizes = [size("vocab_size", spec.vocab_size), size("seq_len", spec.seq_len)];
                (CAUSAL_LM, sizes.to_vec())
            }
            Self::Seq2Seq { spec, begin_id } => {
                let sizes = vec![
                    size("vocab_size", spec.vocab_size),
                    size("source_len", spec.source_len),
                    size("target_len", spec.target_len),
                    id("begin_id", *begin_id),
                ];
                (SEQ2SEQ, sizes)
            }
            Self::Classifier(spec) => {
                let sizes = vec![
                    size("vocab_size", spec.vocab_size),
                    size("n_token_types", spec.n_token_types),
                    id("pad_id", spec.pad_id),
                    size("seq_len", spec.seq_len),
                    size("n_classes", spec.n_classes),
                ];
                (CLASSIFY, sizes)
            }
            Self::Pictures(spec) => {
                let sizes = vec![
                    size("height", spec.size.height),
                    size("width", spec.size.width),
                    size("channels", spec.size.channels),
                    size("n_classes", spec.n_classes),
                ];
                (PICTURES, sizes)
            }
        };
        let sizes = sizes.into_iter().flatten().map(|(name, size)| (name.to_owned(), size));
        let read_out = match self {
            Self::Classifier(spec) => Some(spec.read_out),
            Self::Pictures(spec) => Some(spec.read_out),
            _ => None,
        };
        PurposeRecord { task: task.to_owned(), sizes: sizes.collect(), read_out }
    }

    /// The sizes of a model of the task `seq2seq`, which has a vocabulary in place of a tokenizer; `None` for others.
    pub(super) fn of_symbols(&self) -> Option<Seq2SeqSpec> {
        let Self::Other(PurposeRecord { task, sizes, .. }) = self else { return None };
        let size = |name: &str| sizes.get(name).map(|&size| size as usize);
        let (vocab_size, source_len) = (size("vocab_size")?, size("source_len")?);
        let spec = Seq2SeqSpec { vocab_size, source_len, target_len: size("target_len")? };
        (task == SEQ2SEQ).then_some(spec)
    }

    /// The longest sequence; `None` for encoder-decoders, pictures and other tasks.
    pub(super) fn seq_len(&self) -> Option<usize> {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => Some(spec.seq_len),
            Self::CausalLm(spec) => Some(spec.seq_len),
            Self::Classifier(spec) => Some(spec.seq_len),
            Self::Seq2Seq { .. } | Self::Pictures(_) | Self::Other(_) => None,
        }
    }
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MaskedLm(_) => f.write_str("a masked language model"),
            Self::Encoder(_) => f.write_str("an encoder without a language-model head"),
            Self::CausalLm(_) => f.write_str("a causal language model"),
            Self::Seq2Seq { .. } => f.write_str("an encoder-decoder"),
            Self::Classifier(_) => f.write_str("a classifier of texts"),
            Self::Pictures(spec) if spec.n_classes == 0 => {
                f.write_str("a model of pictures without a classification head")
            }
            Self::Pictures(_) => f.write_str("a classifier of pictures"),
            Self::Other(record) => write!(f, "a model of the task \"{}\"", record.task),
        }
    }
}
