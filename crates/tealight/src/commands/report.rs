//! `tealight report RUN…`: a page of runs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail};
use tealight_train::storage::files::replace;

use crate::args::report::Report;
use crate::report::ablation::Ablation;
use crate::report::attention;
use crate::report::page::{Form, page};
use crate::report::read::RunData;
use crate::terminal::numbers::format_bytes;
use crate::terminal::output::{log, print_paths};

/// The most runs of a comparison: the colours of more cannot be told apart.
const MAX_RUNS: usize = 40;

pub(crate) fn run(args: &Report) -> Result<()> {
    let ablation = match &args.runs[..] {
        [folder] => Ablation::read(folder)?,
        _ => None,
    };
    let mut runs = match &ablation {
        Some(ablation) => of_ablation(ablation),
        None => args.runs.iter().map(|path| RunData::read(path)).collect::<Result<_>>()?,
    };
    if runs.len() > MAX_RUNS {
        bail!("there are {} runs, and a page compares at most {MAX_RUNS}", runs.len());
    }
    name_apart(&mut runs, &args.runs);
    if let ([run], false) = (&mut runs[..], args.no_attention) {
        run.attention = Some(attention::compute(run, &args.weights));
    }
    let html = page(&runs, ablation.as_ref(), Form::File)?;
    let output = output(args, ablation.is_some(), &runs);
    replace(&output, html.as_bytes())?;
    log(&format_bytes(html.len() as f64));
    print_paths(&[output])
}

/// The runs of an ablation that still exist.
fn of_ablation(ablation: &Ablation) -> Vec<RunData> {
    let paths = ablation.runs().into_iter().take(MAX_RUNS);
    paths.filter_map(|path| RunData::read(&path).ok()).collect()
}

/// Names runs of the same name by their paths.
fn name_apart(runs: &mut [RunData], paths: &[PathBuf]) {
    let names: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    if names.len() < runs.len() && paths.len() == runs.len() {
        for (run, path) in runs.iter_mut().zip(paths) {
            run.name = path.display().to_string();
        }
    }
}

fn output(args: &Report, is_ablation: bool, runs: &[RunData]) -> PathBuf {
    const FILE: &str = "report.html";
    match (&args.output, &args.runs[..], runs) {
        (Some(output), ..) => output.clone(),
        (None, [folder], _) if is_ablation => folder.join(FILE),
        (None, _, [run]) => run.directory.path().join(FILE),
        _ => PathBuf::from(FILE),
    }
}
