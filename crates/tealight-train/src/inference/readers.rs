//! The parts of a trained model that encode its inputs and name its outputs.

use std::path::Path;
use std::sync::Arc;

use tealight_model::ModelSpec;

use super::embed::SentenceSettings;
use super::image_classifier::Preprocessing;
use super::labels::Labels;
use super::symbols::Vocabulary;
use super::text_classifier::Activation;
use crate::data::text::tokenizer::Tokenizer;
use crate::data::weather::Generator;
use crate::error::{Error, Result};

/// Tokenizer, labels, preprocessing and vocabulary of a trained model: they encode its inputs and name its outputs. A
/// part that its files do not have is `None`.
#[derive(Debug, Default)]
pub struct Readers {
    /// The tokenizer, for models of text. Of a causal language model that was trained here, its template is one for
    /// prompts.
    pub tokenizer: Option<Tokenizer>,
    /// The classes of a classifier, in the order of its outputs.
    pub labels: Option<Labels>,
    /// How files become what a classifier of pictures reads.
    pub preprocessing: Option<Preprocessing>,
    /// The symbols of an encoder-decoder of the task `seq2seq`, which has no tokenizer.
    pub vocabulary: Option<Vocabulary>,
    /// The fields of a table of texts.
    pub fields: TextFields,
    /// How an encoder that was trained to embed texts does so; a folder of another encoder may have files that say it.
    pub sentence: Option<SentenceSettings>,
    /// The function that makes a score of the output of a model that was trained to rank passages.
    pub activation: Option<Activation>,
    /// The rule that draws the weather; `None` for other models, and for weather from a file.
    pub rule: Option<Arc<dyn Generator>>,
}

/// The fields or columns of the texts in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFields {
    /// The field of the text.
    pub text: String,
    /// The field of the second text of a pair.
    pub text_pair: Option<String>,
}

impl Default for TextFields {
    fn default() -> Self {
        Self { text: "text".to_owned(), text_pair: None }
    }
}

impl Readers {
    /// Reads what the model of this kind needs from `folder`, that of a run or one that Tealight exported, beside the
    /// `tokenizer`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or does not fit the model.
    pub(crate) fn read(
        spec: Option<&ModelSpec>,
        tokenizer: Option<Tokenizer>,
        folder: &Path,
    ) -> Result<Self> {
        let labels = labels(spec, folder)?;
        let (preprocessing, vocabulary) = (preprocessing(spec, folder)?, vocabulary(spec, folder)?);
        Ok(Self { tokenizer, labels, preprocessing, vocabulary, ..Self::default() })
    }
}

/// The labels of a classifier or a tagger; `None` for other models.
fn labels(spec: Option<&ModelSpec>, folder: &Path) -> Result<Option<Labels>> {
    let n_classes = match spec {
        Some(ModelSpec::TextClassifier(spec)) => spec.n_classes,
        Some(ModelSpec::Tagger(spec)) => spec.n_classes,
        Some(ModelSpec::ImageClassifier(spec)) if spec.n_classes > 0 => spec.n_classes,
        _ => return Ok(None),
    };
    let labels = Labels::read(folder)?;
    let n = labels.names().len();
    if n != n_classes {
        let rule = format!("it has {n} labels, and its model has {n_classes} classes");
        return Err(Error::unusable(folder, &rule));
    }
    Ok(Some(labels))
}

/// How a classifier of pictures prepares them; `None` for other models.
fn preprocessing(spec: Option<&ModelSpec>, folder: &Path) -> Result<Option<Preprocessing>> {
    let Some(ModelSpec::ImageClassifier(spec)) = spec else { return Ok(None) };
    if !Preprocessing::is_in(folder) && spec.n_classes == 0 {
        return Ok(None);
    }
    let preprocessing = Preprocessing::read(folder)?;
    let (size, wanted) = (preprocessing.size(), spec.size);
    if size != wanted {
        let rule = format!(
            "it prepares pictures of {size} with {} channels, and its model reads {wanted} with {} channels",
            size.channels, wanted.channels
        );
        return Err(Error::unusable(folder, &rule));
    }
    Ok(Some(preprocessing))
}

/// The symbols of an encoder-decoder; `None` for other models, and where there are none, as in a folder that an older
/// version exported.
fn vocabulary(spec: Option<&ModelSpec>, folder: &Path) -> Result<Option<Vocabulary>> {
    let Some(ModelSpec::Seq2Seq { spec, .. }) = spec else { return Ok(None) };
    if !Vocabulary::is_in(folder) {
        return Ok(None);
    }
    let vocabulary = Vocabulary::read(folder)?;
    let (n, wanted) = (vocabulary.size(), spec.vocab_size);
    if n != wanted {
        let rule = format!("it has a vocabulary of {n} tokens, and its model has {wanted}");
        return Err(Error::unusable(folder, &rule));
    }
    Ok(Some(vocabulary))
}
