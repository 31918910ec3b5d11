//! The purpose of a model: the task that it was trained for, and how files record it.
//!
//! A run records the kind of the task in its configuration and the sizes of its data in its manifest; an
//! exported folder has both in `tealight.json`.

use std::collections::BTreeMap;

use tealight_model::models::causal_lm::CausalLmSpec;
use tealight_model::models::classifier::{ClassifierSpec, ReadOut};
use tealight_model::models::masked_lm::MaskedLmSpec;
use tealight_model::models::seq2seq::Seq2SeqSpec;

use crate::data::text::tokenizer::Tokenizer;

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

impl PurposeRecord {
    fn new(task: &str, sizes: &[(&str, Option<usize>)]) -> Self {
        let size = |&(name, size): &(&str, Option<usize>)| Some((name.to_owned(), size? as u64));
        let sizes = sizes.iter().filter_map(size).collect();
        Self { task: task.to_owned(), sizes, read_out: None }
    }

    fn size(&self, name: &str) -> Option<usize> {
        self.sizes.get(name).map(|&size| size as usize)
    }

    fn id(&self, name: &str) -> Option<u32> {
        self.sizes.get(name).and_then(|&id| id.try_into().ok())
    }
}

impl Purpose {
    /// The recorded purpose of a model with this tokenizer.
    pub(super) fn from_record(record: PurposeRecord, tokenizer: Option<&Tokenizer>) -> Self {
        Self::of_text(&record, tokenizer).unwrap_or(Self::Other(record))
    }

    /// `None` if the task is not one of text, or if a size is missing.
    fn of_text(record: &PurposeRecord, tokenizer: Option<&Tokenizer>) -> Option<Self> {
        let size = |name: &str| record.size(name);
        let vocab_size = size("vocab_size")?;
        let n_token_types = size("n_token_types").unwrap_or(0);
        let pad_id = record.id("pad_id").or_else(|| tokenizer?.special().pad);
        Some(match record.task.as_str() {
            task @ ("masked_lm" | "encoder") => {
                let (seq_len, packed) = (size("seq_len")?, false);
                let spec = MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed };
                if task == "encoder" { Self::Encoder(spec) } else { Self::MaskedLm(spec) }
            }
            "causal_lm" => {
                let seq_len = size("seq_len")?;
                Self::CausalLm(CausalLmSpec { vocab_size, seq_len, packed: false })
            }
            // A run of the task `seq2seq` has a vocabulary of symbols instead of a tokenizer.
            "seq2seq" if tokenizer.is_some() => {
                let (source_len, target_len) = (size("source_len")?, size("target_len")?);
                let spec = Seq2SeqSpec { vocab_size, source_len, target_len };
                Self::Seq2Seq { spec, begin_id: record.id("begin_id") }
            }
            "classify" => Self::Classifier(ClassifierSpec {
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
        let id = |id: Option<u32>| id.map(|id| id as usize);
        match *self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => {
                let MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, .. } = spec;
                let sizes = [
                    ("vocab_size", Some(vocab_size)),
                    ("n_token_types", Some(n_token_types)),
                    ("pad_id", id(pad_id)),
                    ("seq_len", Some(seq_len)),
                ];
                let has_head = matches!(self, Self::MaskedLm(_));
                PurposeRecord::new(if has_head { "masked_lm" } else { "encoder" }, &sizes)
            }
            Self::CausalLm(CausalLmSpec { vocab_size, seq_len, .. }) => {
                let sizes = [("vocab_size", Some(vocab_size)), ("seq_len", Some(seq_len))];
                PurposeRecord::new("causal_lm", &sizes)
            }
            Self::Seq2Seq { spec, begin_id } => {
                let Seq2SeqSpec { vocab_size, source_len, target_len } = spec;
                let sizes = [
                    ("vocab_size", Some(vocab_size)),
                    ("source_len", Some(source_len)),
                    ("target_len", Some(target_len)),
                    ("begin_id", id(begin_id)),
                ];
                PurposeRecord::new("seq2seq", &sizes)
            }
            Self::Classifier(spec) => {
                let sizes = [
                    ("vocab_size", Some(spec.vocab_size)),
                    ("n_token_types", Some(spec.n_token_types)),
                    ("pad_id", id(spec.pad_id)),
                    ("seq_len", Some(spec.seq_len)),
                    ("n_classes", Some(spec.n_classes)),
                ];
                let read_out = Some(spec.read_out);
                PurposeRecord { read_out, ..PurposeRecord::new("classify", &sizes) }
            }
            Self::Other(ref record) => record.clone(),
        }
    }

    /// The longest sequence; `None` for encoder-decoders and other tasks.
    pub(super) fn seq_len(&self) -> Option<usize> {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => Some(spec.seq_len),
            Self::CausalLm(spec) => Some(spec.seq_len),
            Self::Classifier(spec) => Some(spec.seq_len),
            Self::Seq2Seq { .. } | Self::Other(_) => None,
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
            Self::Other(record) => write!(f, "a model of the task \"{}\"", record.task),
        }
    }
}
