//! The configurations in `configs/`.

use std::fs;
use std::path::{Path, PathBuf};

use tealight_train::RunConfig;
use tealight_train::config::ConfigSource;
use tealight_train::data::images::shapes;
use tealight_train::task::TaskConfig;
use tealight_train::task::images::{self, SourceConfig};
use tealight_train::task::{seq2seq, weather};
use tealight_train::text::corpus::CorpusConfig;
use tealight_train::text::diary;

use crate::common::Result;

/// Every `configs/*/*.toml` with its path, sorted by path. A file beside the folders is a plan of many runs.
pub(crate) fn shipped() -> Result<Vec<(String, RunConfig)>> {
    shipped_with(&[])
}

/// The same with overrides, as of `--set`.
pub(crate) fn shipped_with(overrides: &[String]) -> Result<Vec<(String, RunConfig)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    for folder in fs::read_dir(root.join("configs"))? {
        let folder = folder?.path();
        if folder.is_dir() {
            collect(&folder, &mut paths)?;
        }
    }
    paths.sort();
    assert!(!paths.is_empty(), "there are no configurations");
    let named = |path: PathBuf| {
        let name = path.strip_prefix(&root)?.display().to_string();
        Ok((name, read(&path, &root, overrides)?))
    };
    paths.into_iter().map(named).collect()
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) -> Result {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
    }
    Ok(())
}

/// Replaces a corpus of files, which tests do not download, by generated diaries.
fn stand_in(corpus: &mut CorpusConfig) {
    if let CorpusConfig::Files(_) = corpus {
        *corpus = CorpusConfig::default();
    }
}

/// Replaces files of pictures, which tests do not download, by drawn ones; folders are part of the repository.
fn pictures_of(task: &mut images::Config) -> Option<&mut PathBuf> {
    match &mut task.data {
        SourceConfig::Folders(folders) => {
            task.cache = Some(std::env::temp_dir().join("tealight-tests"));
            Some(&mut folders.path)
        }
        data => {
            *data = SourceConfig::Shapes(shapes::Config {
                n_train: 64,
                n_validation: 8,
                ..Default::default()
            });
            None
        }
    }
}

/// Makes the model and the data of a task of texts or of pictures as small as possible.
pub(crate) fn shrink(config: &mut RunConfig) {
    if let TaskConfig::Images(_) = &config.task {
        config.model.d_model = 16 * config.model.n_heads;
        config.model.n_layers = config.model.n_layers.min(2);
        config.model.dropout = 0.;
    }
    let few = diary::Config { n_documents: 64, n_validation: 8, n_days: 2, ..Default::default() };
    let (corpus, seq_len) = match &mut config.task {
        TaskConfig::MaskedLm(task) => (&mut task.corpus, &mut task.seq_len),
        TaskConfig::CausalLm(task) => (&mut task.corpus, &mut task.seq_len),
        _ => return,
    };
    *corpus = CorpusConfig::Diary(few);
    *seq_len = 40;
    config.model.d_model = 8 * config.model.n_heads;
    config.model.n_layers = config.model.n_layers.min(2);
    config.model.dropout = 0.;
}

/// Reads a configuration. Its paths of data are relative to the root of the repository.
fn read(path: &Path, root: &Path, overrides: &[String]) -> Result<RunConfig> {
    let mut config: RunConfig = ConfigSource::read(path, overrides)?.deserialize()?;
    let path = match &mut config.task {
        TaskConfig::Weather(weather) => match &mut weather.source {
            weather::SourceConfig::File(file) => Some(&mut file.path),
            _ => None,
        },
        TaskConfig::Seq2Seq(seq2seq) => match &mut seq2seq.source {
            seq2seq::SourceConfig::File(file) => Some(&mut file.path),
            _ => None,
        },
        TaskConfig::MaskedLm(task) => {
            stand_in(&mut task.corpus);
            None
        }
        TaskConfig::CausalLm(task) => {
            stand_in(&mut task.corpus);
            None
        }
        TaskConfig::ListOps(_)
        | TaskConfig::Recall(_)
        | TaskConfig::MarkovIcl(_)
        | TaskConfig::StateTracking(_)
        | TaskConfig::Copying(_) => None,
        TaskConfig::Classify(classify) => Some(&mut classify.data.path),
        TaskConfig::Tag(task) if task.data.generated.is_some() => None,
        TaskConfig::Tag(task) => Some(&mut task.data.path),
        TaskConfig::Embed(task) if task.data.generated.is_some() => {
            task.data.n_generated = 100;
            None
        }
        TaskConfig::Embed(task) => Some(&mut task.data.path),
        TaskConfig::Rerank(task) if task.data.generated.is_some() => {
            task.data.n_generated = 60;
            None
        }
        TaskConfig::Rerank(task) => Some(&mut task.data.path),
        TaskConfig::Images(images) => pictures_of(images),
    };
    if let Some(path) = path {
        *path = root.join(&*path);
    }
    Ok(config)
}
