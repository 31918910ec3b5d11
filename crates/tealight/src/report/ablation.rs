//! The results of an ablation: its table, with the spread over the seeds, and charts of it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use maud::{Markup, html};
use serde_json::Value;
use tealight_train::storage::files::read_value;

use super::read::plot::Plot;
use super::text::{key, metric_name, number, spaced};

/// The table of an ablation.
const TABLE: &str = "table.json";
/// How the names of charts of final results begin; lines over the steps are drawn from the runs.
const OF_RESULTS: &str = "result_";
/// Charts that are put into the page.
const MAX_PLOTS: usize = 12;

/// The folder of an ablation.
#[derive(Debug)]
pub(crate) struct Ablation {
    folder: PathBuf,
    table: Value,
    plots: Vec<Plot>,
}

impl Ablation {
    /// Reads the ablation in `folder`; `None` if it has no table of one.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(TABLE);
        if !path.exists() {
            return Ok(None);
        }
        let table = read_value(&path)?;
        Ok(Some(Self { folder: folder.to_owned(), table, plots: plots(folder) }))
    }

    /// The directories of its runs, which are in its folder wherever that is now.
    pub(crate) fn runs(&self) -> Vec<PathBuf> {
        let names = variants(&self.table).flat_map(runs_of);
        names.map(|name| self.folder.join(name)).collect()
    }

    /// The names of the variants.
    pub(super) fn labels(&self) -> Vec<String> {
        variants(&self.table).map(|variant| label(variant).to_owned()).collect()
    }

    /// The variant of the run in `directory`; the first variant if the table does not list the run.
    pub(super) fn variant_of(&self, directory: &Path) -> usize {
        let is_of =
            |variant: &Value| runs_of(variant).any(|name| directory.file_name() == Some(name));
        variants(&self.table).position(is_of).unwrap_or(0)
    }

    /// What the labels of the variants are values of.
    fn varied(&self) -> String {
        match self.table["vary"].as_object().into_iter().flatten().collect::<Vec<_>>()[..] {
            [(key, _)] => key.clone(),
            _ => "variant".to_owned(),
        }
    }

    /// The section of the page.
    pub(super) fn section(&self) -> Markup {
        let mut metrics: Vec<&str> = variants(&self.table)
            .flat_map(|variant| {
                variant["metrics"].as_object().into_iter().flat_map(|metrics| metrics.keys())
            })
            .map(String::as_str)
            .collect();
        metrics.sort_unstable();
        metrics.dedup();
        html! {
            div.scroll { table {
                caption { "Mean ± standard deviation over the seeds" }
                thead { tr {
                    th scope="col" { (self.varied()) } th scope="col" { "runs" }
                    @for metric in &metrics { th scope="col" { (metric_name(metric)) } }
                    th scope="col" { "parameters" } th scope="col" { "examples per second" }
                } }
                tbody { @for (index, variant) in variants(&self.table).enumerate() { tr {
                    th scope="row" { (key(index)) " " (label(variant)) }
                    td { (variant["n_finished"].as_u64().unwrap_or(0)) }
                    @for metric in &metrics { td { (spread(&variant["metrics"][*metric])) } }
                    @for mean in ["n_parameters", "examples_per_second"] {
                        td { (variant["means"][mean].as_f64().map_or_else(|| "–".to_owned(), |mean| format!("{mean:.0}"))) }
                    }
                } } }
            } }
            p.hint { "These are the colours of all charts." }
            div.plots { @for plot in &self.plots { (plot.figure()) } }
        }
    }
}

fn variants(table: &Value) -> impl Iterator<Item = &Value> {
    table["variants"].as_array().into_iter().flatten()
}

/// The names of the directories of a variant's runs.
fn runs_of(variant: &Value) -> impl Iterator<Item = &OsStr> {
    let runs = variant["runs"].as_array().into_iter().flatten();
    runs.filter_map(|run| Path::new(run["directory"].as_str()?).file_name())
}

fn label(variant: &Value) -> &str {
    variant["label"].as_str().unwrap_or("–")
}

/// `0.9600 ± 0.0002`
fn spread(value: &Value) -> String {
    let Some(mean) = value["mean"].as_f64() else { return "–".to_owned() };
    let deviation =
        value["sd"].as_f64().map_or_else(String::new, |sd| format!(" ± {}", number(sd)));
    format!("{}{deviation}", number(mean))
}

/// The charts of final results that the ablation has drawn, by name.
fn plots(folder: &Path) -> Vec<Plot> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "svg")).collect();
    files.retain(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OF_RESULTS))
    });
    files.sort();
    let title = |path: &Path| spaced(&path.file_stem().unwrap_or_default().to_string_lossy());
    files.iter().take(MAX_PLOTS).filter_map(|path| Plot::read(path, &title(path))).collect()
}
