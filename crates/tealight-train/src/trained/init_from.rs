//! `init_from`: what a run takes from a trained model, its settings and its parameters.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use candle_core::Tensor;
use serde::Serialize;
use serde_json::{Value, json};
use tealight_model::classifier_head::ClassifierHead;
use tealight_model::patches::Grid;
use tealight_model::patches::interpolation::interpolated;
use tealight_model::{ModelConfig, ModelSpec, ParamStore};

use super::TrainedModel;
use super::hugging_face::nearest;
use super::rows::{RowMap, RowReport};
use crate::data::text::tokenizer::Side;
use crate::error::{Error, Result};
use crate::inference::embed::{
    Dense, DenseActivation, Normalize, SentenceSettings, Settings as Embedding, dense,
};
use crate::inference::image_classifier::Preprocessing;
use crate::inference::labels::Objective;
use crate::inference::readers::Readers;
use crate::settings::{ConfigSource, to_resolved_toml};
use crate::storage::tensors::NamedTensors;
use crate::task::RowMeanings;
use crate::task::imitation::MODEL;

/// Which parameters of a run were initialised from a trained model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitReport {
    /// Number of parameters that were copied from the model.
    pub n_loaded: usize,
    /// Parameters that the model does not have; they keep their random initial values.
    pub fresh: Vec<String>,
    /// Parameters of the model that the run does not have.
    pub unused: Vec<String>,
    /// Where the rows of tokens and labels are from, if the run has others than the model.
    pub rows: Vec<RowReport>,
}

impl fmt::Display for InitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors", self.n_loaded)?;
        for rows in &self.rows {
            write!(f, "; {rows}")?;
        }
        let lists = [("randomly initialised", &self.fresh), ("not used", &self.unused)];
        for (what, names) in lists {
            if !names.is_empty() {
                write!(f, "; {what}: {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}

// The tasks that take settings from a model.
const MASKED_LM: &str = "masked_lm";
const CAUSAL_LM: &str = "causal_lm";
const CLASSIFY: &str = "classify";
const TAG: &str = "tag";
const EMBED: &str = "embed";
const RERANK: &str = "rerank";
const IMAGES: &str = "images";

/// The parameters with a row for each token, in models of tokens.
const TOKEN_ROWS: [&str; 3] = ["embedding.token.weight", "output.weight", "output.bias"];
/// The parameters with a row for each label, in classifiers.
const LABEL_ROWS: [&str; 2] = ["classifier.weight", "classifier.bias"];
/// The names of prompts before passages; the first that a folder has is taken.
const PASSAGE_PROMPTS: [&str; 3] = ["document", "passage", "corpus"];
/// The most tokens of a text of an encoder whose files do not say it.
const USUAL_LEN: usize = 256;
/// The table of learned positions.
const POSITIONS: &str = "position.weight";

/// What a run takes from a model.
#[derive(Serialize)]
pub(super) struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Value>,
}

impl TrainedModel {
    /// Fills in what `source` leaves out from this model: `[model]` and, for a task with a tokenizer, the
    /// tokenizer and the sizes of its vocabulary.
    pub fn fill_in(&self, source: ConfigSource) -> Result<ConfigSource> {
        let mut settings = self.settings_for(source.kind("task"))?;
        // The width of the model, unless a map says otherwise: a teacher may.
        if let Some(Value::Object(task)) = &mut settings.task
            && task.get("dim").is_some_and(|dim| *dim == self.config.d_model)
        {
            task.remove("dim");
        }
        self.filled_in(source, settings)
    }

    /// Fills in what `source` leaves out of `[task]` from this model, whose parameters a run does not have: a teacher.
    pub fn fill_in_task(&self, source: ConfigSource) -> Result<ConfigSource> {
        let settings = of_teacher(self.settings_for(source.kind("task")))?;
        self.filled_in(source, Settings { model: None, ..settings })
    }

    fn filled_in(&self, source: ConfigSource, mut settings: Settings) -> Result<ConfigSource> {
        // Another tokenizer has another number of tokens.
        let has_own_tokenizer = source.kind("task.tokenizer").is_some_and(|kind| kind != "file")
            || source.value::<PathBuf>("task.tokenizer.path")?.is_some();
        if let (true, Some(Value::Object(task))) = (has_own_tokenizer, &mut settings.task) {
            task.remove("vocab_size");
        }
        let base = to_resolved_toml(&settings)?;
        Ok(source.filled_in(&format!("the model in {}", self.origin.display()), &base)?)
    }

    /// The settings of this model as a teacher, and those of a task of this kind that follow from them.
    ///
    /// # Errors
    /// If the task is for other models.
    pub(crate) fn settings_of(&self, kind: &str) -> Result<(ModelConfig, Value)> {
        let Settings { model, task } = of_teacher(self.settings_for(Some(kind)))?;
        Ok((model.unwrap_or_default(), task.unwrap_or_default()))
    }

    /// The settings that a task of this kind takes from this model.
    pub(super) fn settings_for(&self, kind: Option<&str>) -> Result<Settings> {
        let task = match kind {
            Some(IMAGES) => Some(self.picture_settings()?),
            Some(kind @ (MASKED_LM | CAUSAL_LM | CLASSIFY | TAG | EMBED | RERANK)) => {
                Some(self.text_settings(kind)?)
            }
            _ => None,
        };
        // Only a masked language model has `[model.lm_head]`, only classifiers have `[model.classifier]`, and
        // classifiers and encoders have no output over the vocabulary.
        let mut model = self.config.clone();
        if kind != Some(MASKED_LM) {
            model.lm_head = None;
        }
        if matches!(kind, Some(CLASSIFY | TAG | EMBED | RERANK | IMAGES)) {
            (model.tied_output, model.scale_output) = (false, false);
        }
        let is_tagger = matches!(self.spec, Some(ModelSpec::Tagger(_)));
        model.classifier = match kind {
            Some(kind @ (CLASSIFY | TAG | RERANK)) => {
                let of_model = model.classifier.filter(|_| is_tagger == (kind == TAG));
                of_model.or_else(|| self.usual_head(kind))
            }
            Some(IMAGES) => model.classifier,
            _ => None,
        };
        Ok(Settings { model: Some(model), task })
    }

    /// Copies into `params` every parameter of the same name. `rows` are those of the run: tokens and labels take the
    /// rows that they have here, and learned positions of another grid of patches are interpolated.
    ///
    /// # Errors
    /// If another parameter of the same name has another shape, or if no name is the same.
    pub fn initialise(&self, params: &ParamStore, rows: RowMeanings<'_>) -> Result<InitReport> {
        let Readers { tokenizer, labels, .. } = &self.readers;
        let tokens = rows.tokenizer.zip(tokenizer.as_ref());
        let tokens = tokens.map(|(new, old)| RowMap::of_tokens(new, old)).transpose()?;
        let labels = rows.labels.zip(labels.as_ref()).map(|(new, old)| RowMap::of_labels(new, old));
        let variables: BTreeMap<_, _> = params.iter().collect();
        let mut head = self.classification_head.clone();
        if variables.contains_key(dense::WEIGHT) {
            head.extend(self.dense_of_folder()?);
        }
        let has = |name: &String| self.weights.contains_key(name) || head.contains_key(name);
        let fresh = variables.keys().filter(|&name| !has(name)).cloned();
        let mut report = InitReport { fresh: fresh.collect(), ..InitReport::default() };
        let head = head.iter().filter(|(name, _)| variables.contains_key(*name));
        // A temperature corrects probabilities of this model; what is trained further has others.
        let weights = self.weights_as_trained();
        for (name, tensor) in weights.iter().chain(head) {
            let Some(variable) = variables.get(name) else {
                report.unused.push(name.clone());
                continue;
            };
            let of_rows = [(&TOKEN_ROWS[..], &tokens), (&LABEL_ROWS, &labels)];
            let map = of_rows.into_iter().find(|(names, _)| names.contains(&name.as_str()));
            let map = map.and_then(|(_, map)| map.as_ref());
            let map = map.filter(|map| !map.is_identity || variable.shape() != tensor.shape());
            let mapped = map.map(|map| map.apply(tensor, variable)).transpose()?.flatten();
            if let (Some(map), true) = (map, mapped.is_some())
                && !report.rows.contains(&map.report)
            {
                report.rows.push(map.report.clone());
            }
            let tensor = match mapped {
                Some(tensor) => tensor,
                None => self.fitted(name, tensor, rows.grid)?,
            };
            if variable.shape() != tensor.shape() {
                let (expected, actual) = (variable.shape().clone(), tensor.shape().clone());
                let (origin, name) = ("model in `init_from`", name.clone());
                return Err(Error::MisshapenTensor { origin, name, expected, actual });
            }
            variable.set(&tensor.to_device(variable.device())?.to_dtype(variable.dtype())?)?;
            report.n_loaded += 1;
        }
        if report.n_loaded == 0 {
            let origin = self.origin.display();
            let message = format!("`init_from`: this model has no parameter of `{origin}`");
            return Err(Error::config(["init_from"], message));
        }
        Ok(report)
    }

    /// The tensor of the parameter `name`; learned positions for the patches of `grid`.
    fn fitted(&self, name: &str, tensor: &Tensor, grid: Option<Grid>) -> Result<Tensor> {
        let (Some(ModelSpec::ImageClassifier(spec)), Some(grid), POSITIONS) =
            (&self.spec, grid, name)
        else {
            return Ok(tensor.clone());
        };
        let own = spec.grid(&self.config).map_err(|error| Error::unusable(&self.origin, &error))?;
        interpolated(tensor, own, grid)
            .map_err(|error| Error::config(["init_from"], format!("`init_from`: {error}")))
    }

    /// The head that `transformers` puts on an encoder of this family, or of the family that this model could be
    /// exported as, for the task `kind`.
    fn usual_head(&self, kind: &str) -> Option<ClassifierHead> {
        let family = if let Some(hf) = &self.hf {
            hf.family
        } else {
            let tokenizer = self.readers.tokenizer.as_ref();
            nearest(&self.config, self.portable_spec()?, tokenizer, None).ok()?.family
        };
        if kind == TAG {
            return family.tagger_head(&self.config);
        }
        family.classifier_head(&self.config)
    }

    /// The settings of a classifier that follow from the outputs of this one.
    fn classify_settings(&self) -> Option<Value> {
        let (Some(ModelSpec::TextClassifier(spec)), Some(labels)) =
            (&self.spec, &self.readers.labels)
        else {
            return None;
        };
        let outputs = self.hf.as_ref().and_then(|hf| hf.classification.as_ref());
        let is_undecided = outputs.is_some_and(|outputs| outputs.problem_type.is_none());
        // As transformers decides when it is trained.
        let is_number = is_undecided && labels.names().len() == 1;
        let objective = if is_number { Objective::Regression } else { labels.objective() };
        Some(json!({
            "objective": objective,
            "labels": labels.names(),
            "read_out": spec.read_out,
        }))
    }

    /// The settings of a task of pictures that follow from this model: its read-out, and how it prepares pictures.
    fn picture_settings(&self) -> Result<Value> {
        let Some(ModelSpec::ImageClassifier(spec)) = &self.spec else {
            let message = format!(
                "`init_from`: `{}` is {}, and this task needs a classifier of pictures",
                self.origin.display(),
                self.description()
            );
            return Err(Error::config(["init_from"], message));
        };
        let mut task = json!({ "read_out": spec.read_out });
        let Some(Preprocessing { colour, fit, filter, mean, deviation, .. }) =
            &self.readers.preprocessing
        else {
            return Ok(task);
        };
        let f64s = |values: &[f32]| json!(values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        let settings = [
            ("colour", json!(colour)),
            ("fit", json!(fit)),
            ("filter", json!(filter)),
            ("mean", f64s(mean)),
            ("deviation", f64s(deviation)),
        ];
        for (key, value) in settings {
            task[key] = value;
        }
        if spec.size.height == spec.size.width {
            task["size"] = json!(spec.size.height);
        }
        Ok(task)
    }

    /// How this model embeds texts, where its folder or its run says it.
    ///
    /// # Errors
    /// If training does not read texts as the folder says.
    fn embed_settings(&self) -> Result<Value> {
        let SentenceSettings { settings, prompts, is_stated, .. } = self.sentence_settings()?;
        let dim = settings.whole_dim(self.config.d_model);
        let Embedding {
            poolings, dense, normalize, max_seq_len, truncated_side, lowercase, ..
        } = settings;
        let refused = |what: &str| {
            let folder = self.folder.display();
            let message = format!("`init_from`: `{folder}` {what}, which training does not");
            Err(Error::config(["init_from"], message))
        };
        if truncated_side == Side::Left {
            return refused("truncates texts on the left (`truncation_side`)");
        }
        let tokenizer = self.tokenizer()?;
        let keeps_case =
            lowercase && tokenizer.lowercasing()?.fingerprint()? != tokenizer.fingerprint()?;
        if keeps_case {
            return refused("converts texts to lower case before its tokenizer (`do_lower_case`)");
        }
        let [pooling] = poolings[..] else {
            return refused("concatenates several poolings (`1_Pooling/config.json`)");
        };
        let is_trainable = |one: &Dense| {
            one.activation == DenseActivation::Identity && one.n_out != self.config.d_model
        };
        if dense.len() > 1 || !dense.iter().all(is_trainable) {
            return refused(
                "has more than one linear map behind its pooling, one with a function, or one that keeps the length (`Dense` in `modules.json`)",
            );
        }
        let mut task = json!({ "dim": dim });
        let longest = max_seq_len.or(self.config.max_seq_len.map(|len| len.min(USUAL_LEN)));
        if let Some(longest) = longest {
            task["seq_len"] = json!(longest);
        }
        if is_stated {
            task["pooling"] = json!(pooling);
            task["normalize"] = json!(normalize != Normalize::No);
            let prompt = |names: &[&str]| {
                let found = names.iter().find_map(|name| prompts.get(*name));
                found.cloned().unwrap_or_default()
            };
            let document = prompt(&PASSAGE_PROMPTS);
            task["prompts"] = json!({ "query": prompt(&["query"]), "document": document });
        }
        Ok(task)
    }

    /// The linear map behind the pooling, which a folder of sentence-transformers has beside the parameters of the model.
    fn dense_of_folder(&self) -> Result<NamedTensors> {
        if self.weights.contains_key(dense::WEIGHT) {
            return Ok(NamedTensors::new());
        }
        let mut found = NamedTensors::new();
        for one in self.sentence_settings()?.settings.dense {
            let [weight, bias] = one.tensors()?;
            found.insert(dense::WEIGHT.to_owned(), weight);
            found.insert(dense::BIAS.to_owned(), bias);
        }
        Ok(found)
    }

    /// The settings of a task of texts that follow from this model: its tokenizer and the sizes of its vocabulary.
    fn text_settings(&self, kind: &str) -> Result<Value> {
        let is_of_tokens =
            |spec: &&ModelSpec| matches!(spec, ModelSpec::CausalLm(_)) || spec.encoder().is_some();
        let spec = self.spec.as_ref().filter(is_of_tokens).ok_or_else(|| {
            let message = format!(
                "`init_from`: `{}` is {}, and this task needs a language model, a classifier of texts or a tagger",
                self.origin.display(),
                self.description()
            );
            Error::config(["init_from"], message)
        })?;
        self.tokenizer()?;
        let path = std::path::absolute(&self.folder).map_err(Error::io("find", &self.folder))?;
        let mut task = json!({ "vocab_size": spec.vocab_size() });
        if kind != CAUSAL_LM {
            task["n_token_types"] = json!(spec.n_token_types());
        }
        let further = match kind {
            CLASSIFY => self.classify_settings(),
            EMBED => Some(self.embed_settings()?),
            RERANK => {
                self.spec.and_then(|spec| spec.read_out()).map(|own| json!({ "read_out": own }))
            }
            _ => None,
        };
        if let Some(Value::Object(settings)) = further {
            settings.into_iter().for_each(|(key, value)| task[key] = value);
        }
        task["tokenizer"] = json!({ "kind": "file", "path": path.display().to_string() });
        Ok(task)
    }
}

/// The same error about a teacher.
fn of_teacher<T>(result: Result<T>) -> Result<T> {
    result.map_err(|error| match error {
        Error::Config(mut fault) => {
            for key in fault.keys.iter_mut().filter(|key| *key == "init_from") {
                MODEL.clone_into(key);
            }
            fault.message = fault.message.replace("`init_from`", &format!("`{MODEL}`"));
            Error::Config(fault)
        }
        other => other,
    })
}
