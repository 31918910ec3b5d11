//! Configurations: read from a file with `--set` overrides, or from the directory of a run.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context as _, Error, Result, bail};
use candle_core::Device;
use serde_json::json;
use tealight_model::ModelSpec;
use tealight_train::Session;
use tealight_train::config::{ConfigSource, Difference, InitFrom, RunConfig};
use tealight_train::data::survey::Columns;
use tealight_train::run::RunDirectory;
use tealight_train::task::{Task, TaskConfig};
use tealight_train::trained::TrainedModel;

use super::origin::{self, Origin};
use crate::args::shared::TextColumns;
use crate::terminal::escape::quoted;
use crate::terminal::failure::at_its_place;
use crate::terminal::output::log;

/// The configuration of a file or of a run, and the places of its settings.
pub(crate) struct LoadedConfig {
    pub(crate) source: ConfigSource,
    pub(crate) config: RunConfig,
    /// Where the file was read from; that of a run is a file.
    pub(crate) origin: Origin,
    /// The model of `init_from`; `None` for a run, which has all settings of that model.
    pub(crate) init_model: Option<Rc<TrainedModel>>,
    /// The data that a trained model is tested on, all of which are held out.
    pub(crate) test: Option<PathBuf>,
}

/// What an error in the test data of a run begins with: in a file of their own, or in a share.
pub(crate) const TEST_DATA: &str = "`training.test_data`";
pub(crate) const TEST_SHARE: &str = "`task.data.test`";

/// The setting of the warm-up.
const WARM_UP: &str = "schedule.warmup_steps";

/// A cache of `init_from` models, by path and layers.
pub(crate) type InitModels = BTreeMap<(PathBuf, Vec<usize>), Rc<TrainedModel>>;

impl LoadedConfig {
    /// Reads the configuration that `typed` stands for, with the `--set` overrides.
    pub(crate) fn read(typed: &Path, overrides: &[String]) -> Result<Self> {
        let (source, origin) = origin::read(typed, overrides)?;
        Ok(Self { origin, ..Self::from_source(source, &mut InitModels::new())? })
    }

    /// Opens the model of `init_from`, if there is one, and takes the settings that `source` omits from it.
    pub(crate) fn from_source(source: ConfigSource, init_models: &mut InitModels) -> Result<Self> {
        let Some(init_from) = source.value::<InitFrom>("init_from")? else {
            return Self::new(with_task_of_teacher(source)?, None);
        };
        let model = match init_models.entry((init_from.path, init_from.layers)) {
            Entry::Occupied(opened) => opened.get().clone(),
            Entry::Vacant(new) => {
                let (path, layers) = new.key();
                let model = TrainedModel::open(path, None).map_err(|error| {
                    let message = format!("{:#}", Error::from(error));
                    source.conflict_error(&["init_from"], &message)
                })?;
                let model = model.with_layers(layers);
                let model = model.map_err(|error| at_its_place(error, &source))?;
                new.insert(Rc::new(model)).clone()
            }
        };
        let filled_in = model.fill_in(source.clone());
        let filled_in = filled_in.map_err(|error| at_its_place(error, &source))?;
        let loaded = Self::new(with_task_of_teacher(filled_in)?, Some(model.clone()))?;
        let checked = model.check_settings(&loaded.config);
        checked.map_err(|error| at_its_place(error, &loaded.source))?;
        Ok(loaded)
    }

    /// Reads the resolved configuration of a run, with all defaults written out, and further `overrides`.
    pub(crate) fn of_run(directory: &RunDirectory, overrides: &[String]) -> Result<Self> {
        // Rejects a manifest of a newer format version, whose configuration could be misread.
        directory.manifest()?;
        Self::new(directory.resolved(overrides)?, None)
    }

    /// The configuration of a new run with the settings of the run in `directory`, and further `overrides`, that starts from
    /// its parameters and has this number of `steps`. Its warm-up is the same share of them, unless `overrides` say otherwise.
    pub(crate) fn from_parameters_of(
        directory: &RunDirectory,
        overrides: Vec<String>,
        steps: u64,
    ) -> Result<Self> {
        directory.manifest()?;
        let Some(path) = directory.path().to_str() else {
            bail!("`{}` is not UTF-8, as a configuration is", directory.path().display());
        };
        let init_from = format!("init_from={}", quoted(path));
        let before = directory.resolved(&[])?;
        let number = |key: &str| before.value::<u64>(key);
        let warm_up = match (number(WARM_UP)?, number("training.steps")?) {
            (Some(warm_up @ 1..), Some(all @ 1..)) => {
                let share = warm_up as f64 / all as f64;
                Some(format!("{WARM_UP}={}", ((share * steps as f64).round() as u64).max(1)))
            }
            _ => None,
        };
        let overrides: Vec<String> =
            [init_from].into_iter().chain(warm_up).chain(overrides).collect();
        let source = directory.resolved(&overrides)?;
        Self::from_source(source, &mut InitModels::new())
    }

    fn new(source: ConfigSource, init_model: Option<Rc<TrainedModel>>) -> Result<Self> {
        let mut config = RunConfig::from_source(&source)?;
        config.absolute_paths().map_err(|error| at_its_place(error, &source))?;
        Ok(Self { source, config, origin: Origin::File, init_model, test: None })
    }

    /// The configuration of a run that could have trained `model`, without data: [`Self::test_on`] names them.
    pub(crate) fn to_test(model: &TrainedModel) -> Result<Self> {
        // Of a language model: few texts have its longest sequence, which takes much memory.
        const MAX_SEQ_LEN: usize = 512;
        let task = match &model.spec {
            Some(ModelSpec::TextClassifier(_)) => "classify",
            Some(ModelSpec::Tagger(_)) => "tag",
            Some(ModelSpec::Encoder(_)) => "embed",
            Some(ModelSpec::ImageClassifier(_)) => "images",
            Some(ModelSpec::MaskedLm(_)) => "masked_lm",
            Some(ModelSpec::CausalLm(_)) => "causal_lm",
            _ => bail!(
                "`{}` is {}: `evaluate --data` scores classifiers, taggers, encoders and language models",
                model.origin.display(),
                model.description()
            ),
        };
        let most = if ["classify", "tag"].contains(&task) { usize::MAX } else { MAX_SEQ_LEN };
        let spec_len = model.spec.and_then(|spec| spec.seq_len());
        let more = match (task, &model.readers.labels, spec_len.or(model.config.max_seq_len)) {
            // JSON writes a list of strings as TOML does.
            ("images", Some(labels), _) => format!("labels = {}", json!(labels.names())),
            ("images", None, _) => bail!("`{}` names no labels", model.origin.display()),
            ("tag", Some(labels), Some(len)) => {
                format!("seq_len = {len}, labels = {}", json!(labels.names()))
            }
            // How its folder embeds texts, the longest one included.
            ("embed", ..) => String::new(),
            (_, _, Some(len)) => format!("seq_len = {}", len.min(most)),
            (_, _, None) => bail!("`{}` has no longest sequence", model.origin.display()),
        };
        let comma = if more.is_empty() { "" } else { ", " };
        let text = format!("task = {{ kind = \"{task}\"{comma}{more} }}\n");
        let source = ConfigSource::parse(Path::new("<evaluate>"), &text, &[])?;
        Self::new(model.fill_in(source)?, None)
    }

    /// This configuration with the test data of the run (`training.test_data`, or the share `task.data.test`) in place of
    /// all others; `None` if it has none.
    pub(crate) fn on_test_data(&self) -> Result<Option<Self>> {
        let (source, config) = (self.source.clone(), self.config.clone());
        let mut tested =
            Self { source, config, origin: Origin::File, init_model: None, test: None };
        match (&self.config.training.test_data, self.config.task.test_share()) {
            (None, None) => return Ok(None),
            (Some(data), None) => {
                tested.test_on(data, &TextColumns::default()).context(TEST_DATA)?;
            }
            (None, Some((path, _))) => tested.test = Some(path.to_owned()),
            (Some(data), Some((_, share))) => bail!(
                "{TEST_DATA} = \"{}\" and {TEST_SHARE} = {share} are two tests: leave out one of them",
                data.display()
            ),
        }
        Ok(Some(tested))
    }

    /// Replaces the data by those in `data`, all of which are held out. `reading` is for texts with labels.
    pub(crate) fn test_on(&mut self, data: &Path, reading: &TextColumns) -> Result<()> {
        let named = |task: &TaskConfig| match task {
            TaskConfig::Classify(task) => Some((task.data.text.clone(), task.data.label.clone())),
            _ => None,
        };
        let before = named(&self.config.task);
        let tested = self.config.task.test_on(data);
        tested.map_err(|error| at_its_place(error, &self.source))?;
        self.test = Some(data.to_owned());
        let columns = reading.columns();
        match &mut self.config.task {
            TaskConfig::Classify(task) => task.data.skip_broken |= reading.skip_broken,
            TaskConfig::Embed(task) => task.data.skip_broken |= reading.skip_broken,
            TaskConfig::Rerank(task) => task.data.skip_broken |= reading.skip_broken,
            _ if reading.skip_broken => bail!("`--skip-broken` leaves out rows of tables of texts"),
            _ => {}
        }
        if columns == Columns::default() {
            let now = named(&self.config.task);
            if let (true, Some((text, label))) = (now != before, now) {
                log(&format!("reads texts from the column `{text}` and labels from `{label}`"));
            }
            return Ok(());
        }
        let Columns { text, text_pair, label } = columns;
        let task = match &mut self.config.task {
            TaskConfig::Classify(task) => task,
            TaskConfig::Embed(task) => {
                task.test_columns(text, text_pair, label);
                return Ok(());
            }
            TaskConfig::Rerank(task) => {
                task.test_columns(text, text_pair, label);
                return Ok(());
            }
            _ => bail!("`--text`, `--text-pair` and `--label` name columns of tables of texts"),
        };
        task.data.text = text.unwrap_or_else(|| task.data.text.clone());
        task.data.text_pair = text_pair.or_else(|| task.data.text_pair.clone());
        task.data.label = label.unwrap_or_else(|| task.data.label.clone());
        Ok(())
    }

    /// A session at step 0.
    pub(crate) fn session<T: Task>(&self, task: T, device: &Device) -> Result<Session<T>> {
        Session::new(&self.config, task, device).map_err(|error| at_its_place(error, &self.source))
    }

    /// Sets the teacher of a session that is to be trained (`[teacher]`), and returns it; `None` without one.
    pub(crate) fn set_teacher<T: Task>(
        &self,
        session: &mut Session<T>,
    ) -> Result<Option<TrainedModel>> {
        let Some(path) = self.config.teacher.as_ref().map(|teacher| &teacher.model) else {
            return Ok(None);
        };
        let teacher = teacher_at(path, &self.source)?;
        session.learn_from(&teacher).map_err(|error| at_its_place(error, &self.source))?;
        Ok(Some(teacher))
    }
}

/// Opens the teacher of a run.
fn teacher_at(path: &Path, source: &ConfigSource) -> Result<TrainedModel> {
    let opened = TrainedModel::open(path, None);
    opened.map_err(|error| {
        let message = format!("{:#}", Error::from(error));
        source.conflict_error(&["teacher.model"], &message).into()
    })
}

/// Takes the settings of `[task]` that `source` leaves out from the teacher, if there is one.
fn with_task_of_teacher(source: ConfigSource) -> Result<ConfigSource> {
    let path = source.value::<PathBuf>("teacher.model")?;
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return Ok(source) };
    let teacher = teacher_at(&path, &source)?;
    let filled_in = teacher.fill_in_task(source.clone());
    filled_in.map_err(|error| at_its_place(error, &source))
}

/// Fails if `config` differs from that of a run in settings that a run keeps; otherwise returns that of the
/// run. `than` names the origin of `config` and gives advice.
pub(crate) fn check_same_run(
    directory: &RunDirectory,
    config: &RunConfig,
    than: &str,
) -> Result<RunConfig> {
    let before = LoadedConfig::of_run(directory, &[])?.config;
    let Err(differences) = before.same_run(config) else { return Ok(before) };
    bail!(
        "`{}` was started with other settings than {than}:\n{}",
        directory.path().display(),
        list_differences(&differences)
    );
}

/// One line per setting that differs; beyond ten, their number.
fn list_differences(differences: &[Difference]) -> String {
    const MAX: usize = 10;
    let mut lines: Vec<String> = differences.iter().take(MAX).map(|d| format!("  {d}")).collect();
    if differences.len() > MAX {
        lines.push(format!("  and {} more", differences.len() - MAX));
    }
    lines.join("\n")
}
