//! The test data of a run (`training.test_data`).

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use candle_core::Device;
use tealight_train::data::DataFile;
use tealight_train::run::RunDirectory;
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::RegisteredTask as _;
use tealight_train::task::report::Report;

use super::config::{LoadedConfig, TEST_DATA};
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
    let test = tested.test.as_deref().and_then(canonical);
    if let Some(same) = data.iter().find(|file| test.is_some() && canonical(&file.path) == test) {
        bail!("{TEST_DATA} is the file of `{}`, which training reads", same.key);
    }
    task_of(&tested, device, Some(run)).map(drop).context(TEST_DATA)
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
    let other = scores(&tested, run, &weights, device).context(TEST_DATA)?;
    let name = tested.test.as_deref().and_then(Path::file_name).unwrap_or_default();
    report.add_test(&name.to_string_lossy(), other);
    Ok(())
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
