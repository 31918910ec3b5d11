//! How files record a [`ModelSpec`]: the word of a task, sizes by name, the read-out of a classifier.
//!
//! ```text
//! task         masked_lm, encoder, embed, causal_lm, seq2seq, classify, tag, images: the kinds that a record describes
//! sizes        vocab_size, n_token_types, pad_id, seq_len, source_len, target_len, begin_id, height, …
//! read_out     of classify and images
//! ```
//!
//! A run has the task in its configuration and the sizes in its manifest; an exported folder has all of it in
//! `tealight.json`. The record of a model of another task has whatever its run recorded, and describes no kind.

use std::collections::BTreeMap;

use super::causal_lm::CausalLmSpec;
use super::classifier::ClassifierSpec;
use super::image_classifier::ImageClassifierSpec;
use super::masked_lm::MaskedLmSpec;
use super::read_out::ReadOut;
use super::seq2seq::Seq2SeqSpec;
use super::spec::ModelSpec;
use super::tagger::TaggerSpec;
use crate::patches::PictureSize;

const MASKED_LM: &str = "masked_lm";
const ENCODER: &str = "encoder";
/// The task that trains encoders; an exported one is recorded as [`ENCODER`].
const EMBED: &str = "embed";
const CAUSAL_LM: &str = "causal_lm";
const SEQ2SEQ: &str = "seq2seq";
const CLASSIFY: &str = "classify";
const TAG: &str = "tag";
const IMAGES: &str = "images";

/// A [`ModelSpec`] as files record it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecRecord {
    /// The word of the task that trains such models.
    pub task: String,
    /// Sizes and token ids by name.
    pub sizes: BTreeMap<String, u64>,
    /// The read-out of a classifier.
    pub read_out: Option<ReadOut>,
}

impl SpecRecord {
    /// The kind of model that it describes; `None` if its task is another, or if a size is missing. `pad_id` is the
    /// padding of the model's tokenizer, for records without it.
    pub fn spec(&self, pad_id: Option<u32>) -> Option<ModelSpec> {
        let size = |name: &str| self.sizes.get(name).map(|&size| size as usize);
        let id = |name: &str| self.sizes.get(name).and_then(|&id| id.try_into().ok());
        let n_token_types = size("n_token_types").unwrap_or(0);
        let pad_id = id("pad_id").or(pad_id);
        let vocab_size = || size("vocab_size");
        let masked_lm = || {
            let (vocab_size, seq_len, packed) = (vocab_size()?, size("seq_len")?, false);
            Some(MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed })
        };
        Some(match &*self.task {
            MASKED_LM => ModelSpec::MaskedLm(masked_lm()?),
            ENCODER | EMBED => ModelSpec::Encoder(masked_lm()?),
            CAUSAL_LM => {
                let (vocab_size, seq_len) = (vocab_size()?, size("seq_len")?);
                ModelSpec::CausalLm(CausalLmSpec { vocab_size, seq_len, packed: false })
            }
            SEQ2SEQ => {
                let (source_len, target_len) = (size("source_len")?, size("target_len")?);
                let spec = Seq2SeqSpec { vocab_size: vocab_size()?, source_len, target_len };
                ModelSpec::Seq2Seq { spec, begin_id: id("begin_id") }
            }
            CLASSIFY => ModelSpec::TextClassifier(ClassifierSpec {
                vocab_size: vocab_size()?,
                n_token_types,
                pad_id,
                seq_len: size("seq_len")?,
                n_classes: size("n_classes")?,
                read_out: self.read_out?,
            }),
            TAG => ModelSpec::Tagger(TaggerSpec {
                vocab_size: vocab_size()?,
                n_token_types,
                pad_id,
                seq_len: size("seq_len")?,
                n_classes: size("n_classes")?,
            }),
            IMAGES => {
                let (height, width, channels) =
                    (size("height")?, size("width")?, size("channels")?);
                ModelSpec::ImageClassifier(ImageClassifierSpec {
                    size: PictureSize { height, width, channels },
                    n_classes: size("n_classes")?,
                    read_out: self.read_out?,
                })
            }
            _ => return None,
        })
    }

    /// The record of a model of this kind; `None` if records do not describe it.
    pub fn new(spec: &ModelSpec) -> Option<Self> {
        let size = |name: &'static str, size: usize| Some((name, size as u64));
        let id = |name: &'static str, id: Option<u32>| Some((name, u64::from(id?)));
        let of_texts = |vocab_size, n_token_types, pad_id, seq_len| {
            vec![
                size("vocab_size", vocab_size),
                size("n_token_types", n_token_types),
                id("pad_id", pad_id),
                size("seq_len", seq_len),
            ]
        };
        let (task, sizes) = match spec {
            ModelSpec::MaskedLm(one) | ModelSpec::Encoder(one) => {
                let has_head = matches!(spec, ModelSpec::MaskedLm(_));
                let sizes = of_texts(one.vocab_size, one.n_token_types, one.pad_id, one.seq_len);
                (if has_head { MASKED_LM } else { ENCODER }, sizes)
            }
            ModelSpec::CausalLm(one) => {
                let sizes = [size("vocab_size", one.vocab_size), size("seq_len", one.seq_len)];
                (CAUSAL_LM, sizes.to_vec())
            }
            ModelSpec::Seq2Seq { spec: one, begin_id } => {
                let sizes = vec![
                    size("vocab_size", one.vocab_size),
                    size("source_len", one.source_len),
                    size("target_len", one.target_len),
                    id("begin_id", *begin_id),
                ];
                (SEQ2SEQ, sizes)
            }
            ModelSpec::TextClassifier(one) => {
                let mut sizes =
                    of_texts(one.vocab_size, one.n_token_types, one.pad_id, one.seq_len);
                sizes.push(size("n_classes", one.n_classes));
                (CLASSIFY, sizes)
            }
            ModelSpec::Tagger(one) => {
                let mut sizes =
                    of_texts(one.vocab_size, one.n_token_types, one.pad_id, one.seq_len);
                sizes.push(size("n_classes", one.n_classes));
                (TAG, sizes)
            }
            ModelSpec::ImageClassifier(one) => {
                let sizes = vec![
                    size("height", one.size.height),
                    size("width", one.size.width),
                    size("channels", one.size.channels),
                    size("n_classes", one.n_classes),
                ];
                (IMAGES, sizes)
            }
            ModelSpec::Forecaster(_) => return None,
        };
        let sizes = sizes.into_iter().flatten().map(|(name, size)| (name.to_owned(), size));
        let read_out = spec.read_out();
        Some(Self { task: task.to_owned(), sizes: sizes.collect(), read_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_describes_the_kind_that_it_was_made_of() {
        let masked = MaskedLmSpec {
            vocab_size: 13,
            n_token_types: 2,
            pad_id: Some(3),
            seq_len: 7,
            packed: false,
        };
        let seq2seq = Seq2SeqSpec { vocab_size: 13, source_len: 5, target_len: 7 };
        let size = PictureSize { height: 5, width: 7, channels: 3 };
        let picture = ImageClassifierSpec { size, n_classes: 11, read_out: ReadOut::Attention };
        for spec in [
            ModelSpec::MaskedLm(masked),
            ModelSpec::Encoder(masked),
            ModelSpec::MaskedLm(masked).with_classes(5, ReadOut::Mean),
            ModelSpec::MaskedLm(masked).with_tags(5),
            ModelSpec::CausalLm(CausalLmSpec { vocab_size: 13, seq_len: 7, packed: false }),
            ModelSpec::Seq2Seq { spec: seq2seq, begin_id: None },
            ModelSpec::Seq2Seq { spec: seq2seq, begin_id: Some(2) },
            ModelSpec::ImageClassifier(picture),
        ] {
            let record = SpecRecord::new(&spec).unwrap();
            assert_eq!(record.spec(None), Some(spec), "{record:?}");
            for missing in ["vocab_size", "seq_len", "target_len", "height", "n_classes"] {
                let mut record = record.clone();
                if record.sizes.remove(missing).is_some() {
                    assert_eq!(record.spec(None), None, "{spec:?} without {missing}");
                }
            }
        }
    }

    #[test]
    fn the_padding_of_a_tokenizer_is_for_records_without_it() {
        let sizes = BTreeMap::from([("vocab_size".to_owned(), 13), ("seq_len".to_owned(), 7)]);
        let mut record = SpecRecord { task: MASKED_LM.to_owned(), sizes, read_out: None };
        assert_eq!(record.spec(Some(5)).unwrap().pad_id(), Some(5));
        record.sizes.insert("pad_id".to_owned(), 0);
        assert_eq!(record.spec(Some(5)).unwrap().pad_id(), Some(0));
        let other = SpecRecord { task: "listops".to_owned(), ..record };
        assert_eq!(other.spec(None), None);
    }
}
