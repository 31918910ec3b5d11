//! The settings of `[task] kind = "embed"`.

use std::collections::BTreeSet;
use std::path::Path;

use tealight_model::{ModelSpec, Outputs, SpecRecord};

use super::evaluations::{RetrievalConfig, SimilarityConfig};
use super::loss::{CoSent, LossConfig, MatryoshkaConfig};
use super::remarks::remarks;
use super::rows::{Negatives, Wanted, Wants, read};
use super::source::{DataConfig, Duplicates, Generated};
use crate::checks::{MAX_SIZE, at_most, check, positive};
use crate::data::text::tokenizer::TokenizerConfig;
use crate::error::{Error, Result};
use crate::inference::embed::{Normalize, Pooling, SentenceSettings, Settings};
use crate::inference::readers::Readers;
use crate::settings::settings;
use crate::task::parts::{PATH, Source as _};
use crate::task::settings::absolute_path;
use crate::task::{Imitated, TaskSettings};

/// The longest sequence: the time of attention grows with its square.
const MAX_SEQ_LEN: u64 = 1 << 16;

settings! {
    /// `[task] kind = "embed"`
    pub struct Config {
        /// How the hidden states of a text become its vector.
        pub pooling: Pooling = Pooling::Mean,
        /// The length of a vector; another than `model.d_model` adds a linear map behind the pooling. `model.d_model` when
        /// absent.
        pub dim: Option<usize> = None,
        /// Whether vectors get length 1.
        pub normalize: bool = true,
        /// The most tokens of a text, special ones included; longer texts are truncated.
        pub seq_len: usize = 128,
        /// Token types that the model has embeddings for, 2 in BERT.
        pub n_token_types: usize = 0,
        /// Rows of the token embedding; as many as the tokenizer has tokens when absent. A pretrained model may
        /// have more.
        pub vocab_size: Option<usize> = None,
        /// `[task.prompts]`: what is put before texts.
        pub prompts: Prompts = Prompts::default(),
        /// `[task.loss]`: what vectors are trained for.
        pub loss: LossConfig = LossConfig::default(),
        /// `[task.matryoshka]`: vectors whose first numbers are vectors, too.
        pub matryoshka: MatryoshkaConfig = MatryoshkaConfig::default(),
        /// `[task.data]`: the rows of texts.
        pub data: DataConfig = DataConfig::default(),
        /// `[[task.similarity]]`: pairs with a score, by which evaluations judge the model, too.
        pub similarity: Vec<SimilarityConfig> = Vec::new(),
        /// `[[task.retrieval]]`: queries with the documents that answer them, by which evaluations judge the model, too.
        pub retrieval: Vec<RetrievalConfig> = Vec::new(),
        /// `[task.tokenizer]`; it is trained on the training texts unless it comes from a file.
        pub tokenizer: TokenizerConfig = TokenizerConfig::default(),
    }

    /// `[task.prompts]`
    pub struct Prompts {
        /// Before an anchor; `embed --prompt-name query` puts it before a text, too.
        pub query: String = String::new(),
        /// Before a positive or negative; `embed --prompt-name document` puts it before a text, too.
        pub document: String = String::new(),
    }
}

impl Config {
    /// What is read of a file.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        let wants = self.loss.settings().wants();
        Wanted { data: &self.data, wants, loss: self.loss.kind() }
    }

    /// What happens to rows with a text in common; nothing under losses without negatives of other rows.
    pub(super) fn duplicates(&self) -> Duplicates {
        match self.loss {
            LossConfig::MultipleNegatives(_) => self.data.duplicates.unwrap_or(Duplicates::Wait),
            _ => Duplicates::Keep,
        }
    }

    /// How a model that is trained with these settings embeds texts.
    pub(super) fn sentence_settings(&self) -> SentenceSettings {
        let Self { pooling, normalize, seq_len, prompts, .. } = self;
        let settings = Settings {
            poolings: vec![*pooling],
            normalize: if *normalize { Normalize::Pooled } else { Normalize::No },
            max_seq_len: Some(*seq_len),
            ..Settings::default()
        };
        let prompts = [("query", &prompts.query), ("document", &prompts.document)];
        let prompts = prompts.map(|(name, prompt)| (name.to_owned(), prompt.clone()));
        SentenceSettings {
            settings,
            prompts: prompts.into(),
            default_prompt: None,
            is_stated: true,
        }
    }

    /// Names the columns of test data. Rows with a label are pairs with a score, whatever the model was trained with.
    pub fn test_columns(
        &mut self,
        text: Option<String>,
        text_pair: Option<String>,
        label: Option<String>,
    ) {
        let DataConfig {
            anchor,
            positive,
            self_positive,
            label: own,
            duplicates,
            negatives,
            group,
            ..
        } = &mut self.data;
        *self_positive &= text_pair.is_none() && label.is_none();
        *anchor = text.unwrap_or_else(|| anchor.clone());
        *positive = text_pair.unwrap_or_else(|| positive.clone());
        if let Some(label) = label {
            *own = label;
            (*duplicates, *negatives, *group) = (None, None, None);
            self.loss = LossConfig::CoSent(CoSent::default());
        }
    }

    fn check_source(&self) -> Result<()> {
        let DataConfig { generated, n_generated, .. } = &self.data;
        let drawn = (generated.is_some(), *n_generated);
        self.files().check_generated(drawn, "pairs", "a file of pairs, such as a .jsonl")?;
        if generated.is_some() && self.loss.settings().wants() != Wants::pairs() {
            let message = format!(
                "`task.data.generated` = \"paraphrases\" has pairs without labels, and `task.loss.kind` = \"{}\" needs \
                 more",
                self.loss.kind()
            );
            return Err(Error::config(["task.data.generated", "task.loss.kind"], message));
        }
        Ok(())
    }

    /// Checks the settings of data that the loss has no use for.
    fn check_data_settings(&self) -> Result<()> {
        let DataConfig { self_positive, duplicates, negatives, group, .. } = &self.data;
        let (loss, wants) = (self.loss.kind(), self.loss.settings().wants());
        let is_pairs = matches!(self.loss, LossConfig::MultipleNegatives(_));
        let key = match (duplicates, negatives) {
            (Some(_), _) if !is_pairs => "task.data.duplicates",
            (_, Some(_)) if wants.negatives == Negatives::None => "task.data.negatives",
            _ if *self_positive && !is_pairs => "task.data.self_positive",
            _ if group.is_some() && wants.has_labels() => "task.data.group",
            _ => return Ok(()),
        };
        let message = format!("`{key}` has no effect under `task.loss.kind` = \"{loss}\"");
        Err(Error::config([key, "task.loss.kind"], message))
    }

    fn check_names(&self) -> Result<()> {
        let similarity = self.similarity.iter().map(SimilarityConfig::name);
        let mut names = BTreeSet::new();
        for name in similarity.chain(self.retrieval.iter().map(RetrievalConfig::name)) {
            if !names.insert(name.clone()) {
                let keys = ["task.similarity.name", "task.retrieval.name"];
                let message =
                    format!("two evaluations are called \"{name}\": `name` tells them apart");
                return Err(Error::config(keys, message));
            }
        }
        Ok(())
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        let Self { seq_len, n_token_types, .. } = *self;
        at_most("task.seq_len", seq_len as u64, MAX_SEQ_LEN)?;
        at_most("task.n_token_types", n_token_types as u64, MAX_SEQ_LEN)?;
        positive("task.dim", self.dim.unwrap_or(1))?;
        at_most("task.dim", self.dim.unwrap_or(1) as u64, MAX_SIZE)?;
        self.loss.settings().validate()?;
        self.matryoshka.validate()?;
        self.check_source()?;
        self.check_data_settings()?;
        self.check_names()?;
        let is_scale = |scale: f64| scale.is_finite() && scale > 0.;
        check("task.data.label_scale", self.data.label_scale, is_scale, "must be positive")?;
        self.tokenizer.validate()
    }

    fn absolute_paths(&mut self) -> Result<()> {
        let DataConfig { path, validation_path, .. } = &mut self.data;
        absolute_path(path)?;
        validation_path.as_mut().map_or(Ok(()), absolute_path)?;
        self.similarity.iter_mut().try_for_each(|one| absolute_path(&mut one.path))?;
        self.retrieval.iter_mut().try_for_each(|one| absolute_path(&mut one.folder))?;
        self.tokenizer.absolute_paths()
    }

    fn test_share(&self) -> Option<(&Path, f64)> {
        self.files().test_share()
    }

    fn test_on(&mut self, data: &Path) -> Result<()> {
        let DataConfig { path, generated, validation_path, test, .. } = &mut self.data;
        (*generated, *validation_path, *test) = (None, None, 0.);
        (self.similarity, self.retrieval) = (Vec::new(), Vec::new());
        data.clone_into(path);
        absolute_path(path)
    }

    fn languages(&self) -> Vec<&'static str> {
        self.data.generated.map(|Generated::Paraphrases| "en").into_iter().collect()
    }

    fn next_command(&self, run: &Path) -> String {
        format!("tealight embed {} \"…\" --similar FILE", run.display())
    }

    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Vectors)
    }

    fn outputs(&self) -> Option<Outputs> {
        (self.pooling == Pooling::Cls).then_some(Outputs::First)
    }

    fn pipeline(&self) -> Option<&'static str> {
        Some("feature-extraction")
    }

    fn model_spec(&self, mut record: SpecRecord, pad_id: Option<u32>) -> Option<ModelSpec> {
        record.sizes.insert("n_token_types".to_owned(), self.n_token_types as u64);
        record.spec(pad_id)
    }

    fn unused_model_settings(&self) -> &'static [&'static str] {
        &["model.lm_head.", "model.tied_output", "model.scale_output", "model.classifier."]
    }

    fn check_data(&self) -> Result<Vec<String>> {
        if self.data.generated.is_some() {
            return Ok(Vec::new());
        }
        let read = read(PATH, &self.data.path, self.wanted())?;
        Ok(read.notes.into_iter().chain(remarks(&read.all.iter().collect::<Vec<_>>())).collect())
    }

    fn add_readers(&self, readers: &mut Readers) -> Result<()> {
        readers.sentence = Some(self.sentence_settings());
        Ok(())
    }
}
