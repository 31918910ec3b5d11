//! The kind of a trained model, with the sizes that its data decide.
//!
//! Everything that distinguishes kinds of models starts from [`ModelSpec`]: folders of `transformers`
//! ([`hf`](crate::hf)), graphs of ONNX ([`onnx`](crate::onnx)), runs and exported folders
//! ([`SpecRecord`](super::record::SpecRecord)). With a [`ModelConfig`] it builds the model.

use std::fmt;

use candle_nn::VarBuilder;

use super::causal_lm::{CausalLm, CausalLmSpec};
use super::classifier::{Classifier, ClassifierSpec};
use super::forecaster::{Forecaster, ForecasterSpec};
use super::image_classifier::{ImageClassifier, ImageClassifierSpec};
use super::masked_lm::{MaskedLm, MaskedLmSpec};
use super::read_out::ReadOut;
use super::seq2seq::{Seq2Seq, Seq2SeqSpec};
use super::tagger::{Tagger, TaggerSpec};
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::patches::PictureSize;
use crate::transformer::embedding::InputSpec;

/// The kind of a model, with the sizes that its data decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSpec {
    /// Predicts masked tokens.
    MaskedLm(MaskedLmSpec),
    /// The encoder of a masked language model, without its head.
    Encoder(MaskedLmSpec),
    /// Continues texts.
    CausalLm(CausalLmSpec),
    /// Writes one sequence from another.
    Seq2Seq {
        /// The sizes.
        spec: Seq2SeqSpec,
        /// The first token of the decoder, where the files of the model name one.
        begin_id: Option<u32>,
    },
    /// Tells the class of a text or of a pair of texts, several labels, or a number.
    TextClassifier(ClassifierSpec),
    /// Tells the tag of each token.
    Tagger(TaggerSpec),
    /// Tells the class of a picture; without classes, the backbone of such a model.
    ImageClassifier(ImageClassifierSpec),
    /// Forecasts the next item of a sequence.
    Forecaster(ForecasterSpec),
}

impl ModelSpec {
    /// Builds the model, which checks `config` and requests each of its parameters from `vb`, and drops it.
    ///
    /// # Errors
    /// If `config` is no model of this kind, or if a parameter is missing or has another shape.
    pub fn request_parameters(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> BuildResult<()> {
        match self {
            Self::MaskedLm(spec) => MaskedLm::build(config, spec, vb).map(drop),
            Self::Encoder(spec) => MaskedLm::build_encoder(config, spec, vb).map(drop),
            Self::CausalLm(spec) => CausalLm::build(config, spec, vb).map(drop),
            Self::Seq2Seq { spec, .. } => Seq2Seq::build(config, spec, vb).map(drop),
            Self::TextClassifier(spec) => Classifier::build(config, spec, vb).map(drop),
            Self::Tagger(spec) => Tagger::build(config, spec, vb).map(drop),
            Self::ImageClassifier(spec) if spec.n_classes == 0 => {
                ImageClassifier::build_backbone(config, spec, vb).map(drop)
            }
            Self::ImageClassifier(spec) => ImageClassifier::build(config, spec, vb).map(drop),
            Self::Forecaster(spec) => Forecaster::build(config, spec, vb).map(drop),
        }
    }

    /// The name of its task on Hugging Face (<https://huggingface.co/tasks>), if there is one.
    pub fn pipeline_tag(&self) -> Option<&'static str> {
        match self {
            Self::MaskedLm(_) => Some("fill-mask"),
            Self::Encoder(_) => Some("feature-extraction"),
            Self::CausalLm(_) => Some("text-generation"),
            Self::Seq2Seq { .. } => Some("text2text-generation"),
            Self::TextClassifier(_) => Some("text-classification"),
            Self::Tagger(_) => Some("token-classification"),
            Self::ImageClassifier(spec) if spec.n_classes == 0 => Some("image-feature-extraction"),
            Self::ImageClassifier(_) => Some("image-classification"),
            Self::Forecaster(_) => None,
        }
    }

    /// The longest sequence that it reads, of an encoder-decoder on either side; `None` for pictures, whose size decides
    /// it.
    pub fn seq_len(&self) -> Option<usize> {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => Some(spec.seq_len),
            Self::CausalLm(spec) => Some(spec.seq_len),
            Self::Seq2Seq { spec, .. } => Some(spec.source_len.max(spec.target_len)),
            Self::TextClassifier(spec) => Some(spec.seq_len),
            Self::Tagger(spec) => Some(spec.seq_len),
            Self::ImageClassifier(_) => None,
            Self::Forecaster(spec) => Some(spec.seq_len),
        }
    }

    /// The number of different tokens; 0 for a model that reads none.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => spec.vocab_size,
            Self::CausalLm(spec) => spec.vocab_size,
            Self::Seq2Seq { spec, .. } => spec.vocab_size,
            Self::TextClassifier(spec) => spec.vocab_size,
            Self::Tagger(spec) => spec.vocab_size,
            Self::ImageClassifier(_) => 0,
            Self::Forecaster(spec) => match spec.input {
                InputSpec::Tokens { vocab_size, .. } => vocab_size,
                InputSpec::Features { .. } | InputSpec::Pictures { .. } => 0,
            },
        }
    }

    /// The number of token types that it has embeddings for; 0 for a model without them.
    pub fn n_token_types(&self) -> usize {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => spec.n_token_types,
            Self::TextClassifier(spec) => spec.n_token_types,
            Self::Tagger(spec) => spec.n_token_types,
            _ => 0,
        }
    }

    /// The id of padding, where the model knows it.
    pub fn pad_id(&self) -> Option<u32> {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => spec.pad_id,
            Self::TextClassifier(spec) => spec.pad_id,
            Self::Tagger(spec) => spec.pad_id,
            _ => None,
        }
    }

    /// The number of outputs for each position or example; 0 for a model without a head.
    pub fn n_outputs(&self) -> usize {
        match self {
            Self::MaskedLm(spec) => spec.vocab_size,
            Self::CausalLm(spec) => spec.vocab_size,
            Self::Seq2Seq { spec, .. } => spec.vocab_size,
            Self::Encoder(_) => 0,
            Self::TextClassifier(spec) => spec.n_classes,
            Self::Tagger(spec) => spec.n_classes,
            Self::ImageClassifier(spec) => spec.n_classes,
            Self::Forecaster(spec) => spec.n_classes,
        }
    }

    /// The size of the pictures that it reads; `None` for other models.
    pub fn picture_size(&self) -> Option<PictureSize> {
        match self {
            Self::ImageClassifier(spec) => Some(spec.size),
            _ => None,
        }
    }

    /// The state that a classifier reads; `None` for other models.
    pub fn read_out(&self) -> Option<ReadOut> {
        match self {
            Self::TextClassifier(spec) => Some(spec.read_out),
            Self::ImageClassifier(spec) => Some(spec.read_out),
            _ => None,
        }
    }

    /// A classifier of `n_classes` with the backbone of this model, if this is an encoder of texts or a model of pictures.
    /// Any other model, a classifier of texts included, is returned unchanged.
    #[must_use]
    pub fn with_classes(self, n_classes: usize, read_out: ReadOut) -> Self {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => {
                let MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: _ } = spec;
                Self::TextClassifier(ClassifierSpec {
                    vocab_size,
                    n_token_types,
                    pad_id,
                    seq_len,
                    n_classes,
                    read_out,
                })
            }
            Self::ImageClassifier(spec) => {
                Self::ImageClassifier(ImageClassifierSpec { n_classes, read_out, ..spec })
            }
            other => other,
        }
    }

    /// A tagger of `n_classes` with the backbone of this model, if this is an encoder of texts. Any other model, a tagger
    /// included, is returned unchanged.
    #[must_use]
    pub fn with_tags(self, n_classes: usize) -> Self {
        match self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => {
                let MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: _ } = spec;
                Self::Tagger(TaggerSpec { vocab_size, n_token_types, pad_id, seq_len, n_classes })
            }
            other => other,
        }
    }

    /// The encoder whose states a model of texts computes; `None` for a model that has none.
    pub fn encoder(&self) -> Option<MaskedLmSpec> {
        match *self {
            Self::MaskedLm(spec) | Self::Encoder(spec) => Some(spec),
            Self::TextClassifier(spec) => {
                let ClassifierSpec { vocab_size, n_token_types, pad_id, seq_len, .. } = spec;
                Some(MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: false })
            }
            Self::Tagger(spec) => {
                let TaggerSpec { vocab_size, n_token_types, pad_id, seq_len, n_classes: _ } = spec;
                Some(MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed: false })
            }
            _ => None,
        }
    }
}

/// What the model is, with its article.
impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaskedLm(_) => "a masked language model",
            Self::Encoder(_) => "an encoder without a language-model head",
            Self::CausalLm(_) => "a causal language model",
            Self::Seq2Seq { .. } => "an encoder-decoder",
            Self::TextClassifier(_) => "a classifier of texts",
            Self::Tagger(_) => "a tagger of words",
            Self::ImageClassifier(spec) if spec.n_classes == 0 => {
                "a model of pictures without a classification head"
            }
            Self::ImageClassifier(_) => "a classifier of pictures",
            Self::Forecaster(_) => "a model that forecasts the next item of a sequence",
        })
    }
}
