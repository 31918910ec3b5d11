//! Classes, labels or numbers of texts and pairs of texts, by a classifier.

use std::path::Path;

use candle_core::Device;
use tealight_model::ModelSpec;
use tealight_model::models::classifier::{Classifier, ClassifierSpec};

use super::{Pipeline, divided};
use crate::data::survey::{self, Columns};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::labels::{Classified, Labels, Objective, Score};
use crate::inference::readers::TextFields;
use crate::inference::text_classifier::encoder::Encoder;
use crate::inference::text_classifier::{Text, TextClassifier};
use crate::task::classify::{self, BrokenRows, TableTexts};
use crate::trained::TrainedModel;
use crate::trained::sentence::longest_text;

/// A classifier of texts with its tokenizer and labels.
#[derive(Debug)]
pub struct TextClassification {
    model: Classifier,
    encoder: Encoder,
    labels: Labels,
    fields: TextFields,
    required_len: Option<usize>,
    device: Device,
}

impl Pipeline for TextClassification {
    const NAME: &'static str = "text-classification";
    type Request = Vec<Text>;
    /// The labels of each text, with all scores.
    type Answer = Vec<Classified>;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let (Some(ModelSpec::TextClassifier(spec)), Some(labels)) =
            (&model.spec, &model.readers.labels)
        else {
            return Err(model.wrong_kind("a classifier of texts"));
        };
        let ClassifierSpec { seq_len, n_token_types, .. } = *spec;
        let required_len = model.config.required_len();
        let longest = required_len.map_or(seq_len, |len| len.min(seq_len));
        let longest = longest_text(&model.folder)?.map_or(longest, |limit| limit.min(longest));
        let encoder = Encoder::new(model.tokenizer()?.clone(), longest, n_token_types)?;
        Ok(Self {
            model: model.build(device, |vb| Classifier::build(&model.config, spec, vb))?,
            encoder,
            labels: labels.clone(),
            fields: model.readers.fields.clone(),
            required_len,
            device: device.clone(),
        })
    }

    fn answers(&self, requests: &[&Vec<Text>]) -> Result<Vec<Self::Answer>> {
        let texts: Vec<Text> = requests.iter().flat_map(|texts| texts.iter().cloned()).collect();
        let classified = self.classifier().classify(&texts)?;
        Ok(divided(classified, requests.iter().map(|texts| texts.len())))
    }
}

impl TextClassification {
    /// What the outputs predict.
    pub fn objective(&self) -> Objective {
        self.labels.objective()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.encoder.tokenizer
    }

    /// The number of tokens, special ones included, to which longer texts and pairs are truncated.
    pub fn max_seq_len(&self) -> usize {
        self.encoder.seq_len
    }

    /// The number of `texts` that have more tokens, and lose the rest.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn n_truncated(&self, texts: &[Text]) -> Result<usize> {
        let truncated = texts.iter().map(|text| self.encoder.truncates(text));
        let truncated = truncated.collect::<Result<Vec<bool>>>()?;
        Ok(truncated.into_iter().filter(|&is_truncated| is_truncated).count())
    }

    /// For each text whether it was truncated, and the outputs of the model before any softmax or sigmoid.
    ///
    /// # Errors
    /// If a text is empty, or if the outputs are not finite.
    pub(super) fn logits(&self, texts: &[Text]) -> Result<Vec<(bool, Vec<f64>)>> {
        let of_text = |((n_tokens, logits), text): ((usize, Vec<f64>), &Text)| {
            // Only a text that fills the model can have lost tokens.
            let is_truncated = n_tokens >= self.max_seq_len() && self.encoder.truncates(text)?;
            Ok((is_truncated, logits))
        };
        self.classifier().logits(texts)?.into_iter().zip(texts).map(of_text).collect()
    }

    /// The labels of each text with the outputs of the model as scores, the highest first.
    ///
    /// # Errors
    /// If a text is empty, or if the outputs are not finite.
    pub fn raw_scores(&self, texts: &[Text]) -> Result<Vec<Vec<Score>>> {
        let scores = |(_, logits): (bool, Vec<f64>)| {
            let labels = self.labels.names().iter().cloned().zip(logits);
            let score = |(label, score)| Score { label, score, accepted: None };
            let mut scores: Vec<Score> = labels.map(score).collect();
            scores.sort_by(|a, b| b.score.total_cmp(&a.score));
            scores
        };
        Ok(self.logits(texts)?.into_iter().map(scores).collect())
    }

    /// The texts of a table, in the fields that the run of the model reads or, if the file has others, in those that
    /// look like texts; and what a user should know about how they were read, a line each.
    ///
    /// # Errors
    /// If the file cannot be read, or a row has no text, and such rows are refused.
    pub fn texts_of(&self, path: &Path, broken_rows: BrokenRows) -> Result<TableTexts> {
        let TextFields { text, text_pair } = self.fields.clone();
        let wanted = Columns { text: Some(text), text_pair, label: None };
        // What is wrong with the file is told when its texts are read.
        let found = survey::texts(path, &wanted).unwrap_or(wanted);
        let text = found.text.unwrap_or_else(|| self.fields.text.clone());
        let is_other = text != self.fields.text;
        let other =
            is_other.then(|| format!("`{}`: reads texts from the column `{text}`", path.display()));
        let fields = TextFields { text, text_pair: found.text_pair };
        let mut read = classify::texts(path, &fields, broken_rows)?;
        read.notes.extend(other);
        Ok(read)
    }

    /// The rows of the file at `path` that are read ([`TableTexts::is_read`]), whose texts are `classified`, each with its
    /// labels and probabilities.
    ///
    /// # Errors
    /// If the file cannot be read, or has columns of their names.
    pub fn annotated(
        &self,
        path: &Path,
        is_read: &[bool],
        classified: &[Classified],
    ) -> Result<Vec<u8>> {
        classify::annotated(path, self.objective(), is_read, classified)
    }

    /// The attention maps of a text.
    ///
    /// # Errors
    /// If the text is empty.
    pub fn attention_maps(&self, text: &Text) -> Result<Vec<AttentionMap>> {
        let classifier = self.classifier();
        classifier.attention_maps(&classifier.tokens(text)?)
    }

    fn classifier(&self) -> TextClassifier<'_> {
        let Self { model, encoder, labels, required_len, device, .. } = self;
        TextClassifier { model, encoder, labels, required_len: *required_len, device }
    }
}
