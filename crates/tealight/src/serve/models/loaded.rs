//! A model in memory, with the pipelines that have been asked.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, bail};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tealight_ops::{ProductPrecision, product_precision};
use tealight_train::pipelines::feature_extraction::FeatureExtraction;
use tealight_train::pipelines::fill_mask::FillMask;
use tealight_train::pipelines::forecast::Forecast;
use tealight_train::pipelines::image_classification::ImageClassification;
use tealight_train::pipelines::text_classification::TextClassification;
use tealight_train::pipelines::text_generation::TextGeneration;
use tealight_train::pipelines::token_classification::TokenClassification;
use tealight_train::pipelines::{Pipeline, name_of};
use tealight_train::text::tokenizer::Tokenizer;
use tealight_train::trained::TrainedModel;

use super::examples::{Example, examples};
use crate::args::shared::{Model, Weights};
use crate::runs::load::open_model;
use crate::serve::fault::Fault;
use crate::terminal::failure;

/// A pipeline that the server can use, by its name.
type Served = (&'static str, fn(&Loaded) -> tealight_train::Result<()>);

/// The pipelines that the server can use. A model is opened for the one that it was trained for.
const SERVED: [Served; 7] = [
    served::<FillMask>(),
    served::<TextGeneration>(),
    served::<FeatureExtraction>(),
    served::<TextClassification>(),
    served::<TokenClassification>(),
    served::<ImageClassification>(),
    served::<Forecast>(),
];

const fn served<P: Pipeline>() -> Served {
    (P::NAME, |loaded| loaded.open_pipeline::<P>().map(drop))
}

/// Whether the server can use the pipeline of this name.
pub(in crate::serve) fn is_served(pipeline: &str) -> bool {
    SERVED.iter().any(|(name, _)| *name == pipeline)
}

/// The error that a model of the task `own` cannot do `task`.
pub(in crate::serve) fn other_task(own: &str, task: &str) -> Fault {
    Fault::bad(format!("the model is one of the task \"{own}\", and cannot do \"{task}\""))
}

/// A model in memory.
pub(in crate::serve) struct Loaded {
    pub(in crate::serve) model: TrainedModel,
    device: Device,
    /// What the playground opens with.
    examples: Vec<Example>,
    /// The pipeline that the model was trained for.
    task: &'static str,
    /// Those that have been opened, by type.
    pipelines: RefCell<BTreeMap<TypeId, Rc<dyn Any>>>,
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
        let (model, device) = open_model(&Model { path: path.to_owned(), weights })?;
        let of_model = name_of(&model);
        let Some(&(task, open)) = SERVED.iter().find(|(name, _)| Some(*name) == of_model) else {
            let (name, what) = (model.origin.display(), model.description());
            bail!("`{name}` is {what}, which `tealight serve` cannot use");
        };
        let examples = examples(path, task, model.readers.tokenizer.as_ref());
        let loaded = Self { model, device, examples, task, pipelines: RefCell::default() };
        open(&loaded)?;
        Ok(loaded)
    }

    /// The pipeline that the model was trained for.
    pub(in crate::serve) fn task(&self) -> &'static str {
        self.task
    }

    /// What a client needs to know of the model.
    pub(in crate::serve) fn describe(&self) -> Value {
        let tokenizer = self.model.readers.tokenizer.as_ref();
        let mask = tokenizer.and_then(|tokenizer| tokenizer.token(tokenizer.special().mask?));
        let forecast = self.pipeline::<Forecast>().ok();
        let window = forecast.map(|forecast| forecast.window());
        let longest = self.model.config.max_seq_len.filter(|_| window.is_none());
        json!({
            "task": self.task,
            "mask_token": mask,
            "max_seq_len": longest,
            "window": window,
            "examples": self.examples,
        })
    }

    /// A pipeline of the model, which is built when it is first asked.
    pub(in crate::serve) fn pipeline<P: Pipeline>(&self) -> Result<Rc<P>, Fault> {
        self.open_pipeline().map_err(|error| match error {
            tealight_train::Error::OtherKind { .. } => self.cannot(P::NAME),
            error => error.into(),
        })
    }

    fn open_pipeline<P: Pipeline>(&self) -> tealight_train::Result<Rc<P>> {
        let known = self.pipelines.borrow().get(&TypeId::of::<P>()).cloned();
        if let Some(known) = known {
            return Ok(known.downcast().expect("invariant: the key is the type"));
        }
        let opened = Rc::new(P::open(&self.model, &self.device)?);
        self.pipelines.borrow_mut().insert(TypeId::of::<P>(), opened.clone());
        Ok(opened)
    }

    /// The bytes of its parameters; in int8 also those of the weights of linear maps once more, in a byte each.
    pub(super) fn n_bytes(&self) -> u64 {
        let is_int8 = product_precision() == ProductPrecision::Int8;
        let bytes = |tensor: &Tensor| {
            let n_copies = usize::from(is_int8 && tensor.rank() == 2);
            tensor.elem_count() * (tensor.dtype().size_in_bytes() + n_copies)
        };
        self.model.weights.values().map(bytes).sum::<usize>() as u64
    }

    /// The error that the model cannot do a task.
    fn cannot(&self, task: &str) -> Fault {
        other_task(self.task, task)
    }

    pub(in crate::serve) fn tokenizer(&self) -> Result<&Tokenizer, Fault> {
        if self.task == Forecast::NAME {
            return Err(self.cannot("text"));
        }
        Ok(self.model.tokenizer()?)
    }
}
