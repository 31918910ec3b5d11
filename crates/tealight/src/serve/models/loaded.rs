//! A model in memory, with all that answers need.

use std::cell::OnceCell;
use std::path::Path;

use anyhow::{Result, bail};
use candle_core::Device;
use serde_json::{Value, json};
use tealight_model::models::causal_lm::CausalLm;
use tealight_model::models::classifier::Classifier;
use tealight_model::models::image_classifier::ImageClassifier;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_train::Session;
use tealight_train::inference::continuation::Continuer;
use tealight_train::inference::embed::Embedder;
use tealight_train::inference::fill_mask::FillMask;
use tealight_train::pretrained::{Pretrained, Purpose};
use tealight_train::task::classify::Classify;
use tealight_train::task::images::Images;
use tealight_train::task::weather::Weather;
use tealight_train::text::tokenizer::Tokenizer;

use crate::args::shared::{Model, Weights};
use crate::runs::load::RunOrFolder;
use crate::serve::fault::Fault;
use crate::terminal::failure;

/// A model, by what it is for.
pub(in crate::serve) enum Kind {
    MaskedLm(MaskedLm),
    CausalLm(CausalLm),
    /// Embeds texts only.
    Encoder,
    Texts(Box<(Classify, Classifier)>),
    Pictures(Box<(Images, ImageClassifier)>),
    Weather(Box<Session<Weather>>),
}

/// A model in memory.
pub(in crate::serve) struct Loaded {
    pub(in crate::serve) kind: Kind,
    pub(in crate::serve) device: Device,
    /// `None` for the weather, which has no text.
    pretrained: Option<Pretrained>,
    embedder: OnceCell<Embedder>,
}

impl Loaded {
    /// Loads the model at `path`.
    pub(in crate::serve) fn open(path: &Path, weights: Weights) -> Result<Self, Fault> {
        Self::read(path, weights).map_err(|error| {
            let text = failure::text(&error);
            let reason = text.trim_start_matches("error: ").trim_end();
            Fault::busy(format!("cannot load the model: {reason}"))
        })
    }

    fn read(path: &Path, weights: Weights) -> Result<Self> {
        let args = Model { path: path.to_owned(), weights };
        let (pretrained, device) = match RunOrFolder::open(&args)? {
            RunOrFolder::Run(run) => {
                if let Some(settings) = run.loaded.config.task.settings().forecaster() {
                    let session = Box::new(run.load(run.task(settings)?)?);
                    return Ok(Self::new(Kind::Weather(session), None, run.device));
                }
                (Pretrained::open(path, weights.checkpoint)?, run.device)
            }
            RunOrFolder::Folder(pretrained, device) => (*pretrained, device),
        };
        Ok(Self::new(kind(&pretrained, &device)?, Some(pretrained), device))
    }

    fn new(kind: Kind, pretrained: Option<Pretrained>, device: Device) -> Self {
        Self { kind, device, pretrained, embedder: OnceCell::new() }
    }

    /// The task, in the words of Hugging Face where they have one.
    pub(in crate::serve) fn task(&self) -> &'static str {
        match self.kind {
            Kind::MaskedLm(_) => "fill-mask",
            Kind::CausalLm(_) => "text-generation",
            Kind::Encoder => "feature-extraction",
            Kind::Texts(_) => "text-classification",
            Kind::Pictures(_) => "image-classification",
            Kind::Weather(_) => "weather-forecast",
        }
    }

    /// What a client needs to know of the model.
    pub(in crate::serve) fn describe(&self) -> Value {
        let tokenizer = self.pretrained.as_ref().and_then(|model| model.tokenizer.as_ref());
        let mask = tokenizer.and_then(|tokenizer| tokenizer.token(tokenizer.special().mask?));
        let window = match &self.kind {
            Kind::Weather(session) => Some(session.task.config.window),
            _ => None,
        };
        let longest = self.pretrained.as_ref().and_then(|model| model.model.max_seq_len);
        json!({ "task": self.task(), "mask_token": mask, "max_seq_len": longest, "window": window })
    }

    /// The error that the model cannot do a task.
    pub(in crate::serve) fn cannot(&self, task: &str) -> Fault {
        let own = self.task();
        Fault::bad(format!("the model is one of the task \"{own}\", and cannot do \"{task}\""))
    }

    pub(in crate::serve) fn pretrained(&self) -> Result<&Pretrained, Fault> {
        self.pretrained.as_ref().ok_or_else(|| self.cannot("text"))
    }

    pub(in crate::serve) fn tokenizer(&self) -> Result<&Tokenizer, Fault> {
        Ok(self.pretrained()?.tokenizer()?)
    }

    pub(in crate::serve) fn fill_mask(&self) -> Result<FillMask<'_>, Fault> {
        let Kind::MaskedLm(model) = &self.kind else { return Err(self.cannot("fill-mask")) };
        let config = &self.pretrained()?.model;
        Ok(FillMask::new(model, config, self.tokenizer()?, &self.device))
    }

    pub(in crate::serve) fn continuer(&self) -> Result<Continuer<'_>, Fault> {
        let Kind::CausalLm(model) = &self.kind else { return Err(self.cannot("text-generation")) };
        let (tokenizer, vocabulary) = (self.tokenizer()?, self.pretrained()?.vocabulary());
        Ok(Continuer { model, tokenizer, device: &self.device, vocabulary })
    }

    /// Embeds texts as the model's folder says. Built when it is first needed.
    pub(in crate::serve) fn embedder(&self) -> Result<&Embedder, Fault> {
        if let Some(embedder) = self.embedder.get() {
            return Ok(embedder);
        }
        let pretrained = self.pretrained()?;
        let settings = pretrained.sentence_settings()?.settings;
        let embedder = pretrained.embedder(settings, &self.device)?;
        Ok(self.embedder.get_or_init(|| embedder))
    }
}

/// A model of texts or pictures. The tasks whose runs the server can use say so in `TaskSettings::is_served`.
fn kind(model: &Pretrained, device: &Device) -> Result<Kind> {
    Ok(match &model.purpose {
        Purpose::MaskedLm(_) => Kind::MaskedLm(model.masked_lm(device)?),
        Purpose::CausalLm(_) => Kind::CausalLm(model.causal_lm(device)?),
        Purpose::Encoder(_) => Kind::Encoder,
        Purpose::Classifier(_) => Kind::Texts(Box::new(model.classifier(device)?)),
        Purpose::Pictures(_) => Kind::Pictures(Box::new(model.image_classifier(device)?)),
        other @ (Purpose::Seq2Seq { .. } | Purpose::Other(_)) => {
            let name = model.origin.display();
            bail!("`{name}` is {other}, which `tealight serve` cannot use");
        }
    })
}
