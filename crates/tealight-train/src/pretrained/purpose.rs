//! What a model was trained for: which of them there are, and how that is written down.
//!
//! A run writes it in its manifest and its settings, an exported folder in `tealight.json`: the kind of
//! the task, and the sizes that the data decided.

use std::collections::BTreeMap;

use tealight_model::models::causal_lm::CausalLmSpec;
use tealight_model::models::classifier::{ClassifierSpec, ReadOut};
use tealight_model::models::masked_lm::MaskedLmSpec;
use tealight_model::models::seq2seq::Seq2SeqSpec;

use crate::data::text::tokenizer::Tokenizer;

/// What a model was trained for, with the sizes that its data decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To fill masks.
    MaskedLm(MaskedLmSpec),
    /// To fill masks, without the language-model head that does it: the encoder can begin a new run.
    Encoder(MaskedLmSpec),
    /// To continue texts.
    CausalLm(CausalLmSpec),
    /// To write one text for another, through a tokenizer.
    Seq2Seq {
        /// Its sizes.
        spec: Seq2SeqSpec,
        /// What the decoder begins with; the tokenizer's padding when absent.
        begin_id: Option<u32>,
    },
    /// To tell the class of a text.
    Classifier(ClassifierSpec),
    /// Something else: its blocks can still begin a new run.
    Other(Stated),
}

/// A purpose as it is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stated {
    /// The kind of the task.
    pub task: String,
    /// What the data decided.
    pub sizes: BTreeMap<String, u64>,
    /// Where a classifier reads the class.
    pub read_out: Option<ReadOut>,
}

impl Stated {
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
    /// The purpose that was written down as `stated`, of a model with this tokenizer.
    pub(super) fn read(stated: Stated, tokenizer: Option<&Tokenizer>) -> Self {
        Self::known(&stated, tokenizer).unwrap_or(Self::Other(stated))
    }

    /// `None` for tasks that are of no text, or a size short.
    fn known(stated: &Stated, tokenizer: Option<&Tokenizer>) -> Option<Self> {
        let size = |name: &str| stated.size(name);
        let vocab_size = size("vocab_size")?;
        let n_token_types = size("n_token_types").unwrap_or(0);
        let pad_id = stated.id("pad_id").or_else(|| tokenizer?.special().pad);
        Some(match stated.task.as_str() {
            task @ ("masked_lm" | "encoder") => {
                let (seq_len, packed) = (size("seq_len")?, false);
                let spec = MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed };
                if task == "encoder" { Self::Encoder(spec) } else { Self::MaskedLm(spec) }
            }
            "causal_lm" => {
                let seq_len = size("seq_len")?;
                Self::CausalLm(CausalLmSpec { vocab_size, seq_len, packed: false })
            }
            // The runs of the task of pairs have no tokenizer, but symbols of their own.
            "seq2seq" if tokenizer.is_some() => {
                let (source_len, target_len) = (size("source_len")?, size("target_len")?);
                let spec = Seq2SeqSpec { vocab_size, source_len, target_len };
                Self::Seq2Seq { spec, begin_id: stated.id("begin_id") }
            }
            "classify" => Self::Classifier(ClassifierSpec {
                vocab_size,
                n_token_types,
                pad_id,
                seq_len: size("seq_len")?,
                n_classes: size("n_classes")?,
                read_out: stated.read_out?,
            }),
            _ => return None,
        })
    }

    /// As it is written down.
    pub(super) fn stated(&self) -> Stated {
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
                Stated::new(if has_head { "masked_lm" } else { "encoder" }, &sizes)
            }
            Self::CausalLm(CausalLmSpec { vocab_size, seq_len, .. }) => {
                let sizes = [("vocab_size", Some(vocab_size)), ("seq_len", Some(seq_len))];
                Stated::new("causal_lm", &sizes)
            }
            Self::Seq2Seq { spec, begin_id } => {
                let Seq2SeqSpec { vocab_size, source_len, target_len } = spec;
                let sizes = [
                    ("vocab_size", Some(vocab_size)),
                    ("source_len", Some(source_len)),
                    ("target_len", Some(target_len)),
                    ("begin_id", id(begin_id)),
                ];
                Stated::new("seq2seq", &sizes)
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
                Stated { read_out, ..Stated::new("classify", &sizes) }
            }
            Self::Other(ref stated) => stated.clone(),
        }
    }

    /// The longest sequence of a model with one stack.
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
            Self::Other(stated) => write!(f, "a model of the task \"{}\"", stated.task),
        }
    }
}
