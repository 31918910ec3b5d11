//! The test data of a run: a file (`training.test_data`), or a share of that of the training data (`task.data.test`).

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use candle_core::Device;
use tealight_train::data::DataFile;
use tealight_train::run::RunDirectory;
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::RegisteredTask as _;
use tealight_train::task::report::Report;

use super::config::{LoadedConfig, TEST_DATA, TEST_SHARE};
use super::load::task_of;

/// Reads the test data of a run that is about to begin, or goes on with other ones, so that a mistake in them is told before
/// training. The directory of the run has the files that it keeps, such as its tokenizer.
///
/// # Errors
/// If the test data cannot be read, or are one of the files `data`, which training reads.
pub(crate) fn check(
    loaded: &LoadedConfig,
    data: &[DataFile],
    run: &RunDirectory,
    device: &Device,
) -> Result<()> {
    let Some(tested) = loaded.on_test_data()? else { return Ok(()) };
    let canonical = |path: &Path| path.canonicalize().ok();
    let file = loaded.config.training.test_data.as_deref().and_then(canonical);
    if let Some(same) = data.iter().find(|other| file.is_some() && canonical(&other.path) == file) {
        bail!("{TEST_DATA} is the file of `{}`, which training reads", same.key);
    }
    task_of(&tested, device, Some(run)).map(drop).context(setting(loaded))
}

/// Adds the scores of a model with these `weights` on the test data of the run to its `report`.
pub(crate) fn add_scores(
    report: &mut Report,
    (loaded, run): (&LoadedConfig, &RunDirectory),
    weights: &NamedTensors,
    device: &Device,
) -> Result<()> {
    let Some(tested) = loaded.on_test_data()? else { return Ok(()) };
    // Test data are scored with the calibrated probabilities, as `classify` would give them.
    let mut weights = weights.clone();
    report.decision.iter().try_for_each(|decision| decision.fold(&mut weights).map(drop))?;
    let other = scores(&tested, run, &weights, device).context(setting(loaded))?;
    let name = tested.test.as_deref().and_then(Path::file_name).unwrap_or_default();
    let name = name.to_string_lossy();
    let name = match loaded.config.task.test_share() {
        Some((_, share)) => format!("a share of {share} of {name}"),
        None => name.into_owned(),
    };
    report.add_test(&name, other);
    Ok(())
}

/// The setting that names the test data.
fn setting(loaded: &LoadedConfig) -> &'static str {
    if loaded.config.task.test_share().is_some() { TEST_SHARE } else { TEST_DATA }
}

/// The scores of a model with these `weights` on the data that `tested` names.
fn scores(
    tested: &LoadedConfig,
    run: &RunDirectory,
    weights: &NamedTensors,
    device: &Device,
) -> Result<Report> {
    let session = tested.session(task_of(tested, device, Some(run))?, device)?;
    session.load_weights(weights)?;
    Ok(session.task.report(&session.eval_model)?)
}
