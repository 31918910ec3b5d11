//! Equal parameters: the width of the feed-forward network is chosen so that all kinds have about as many.
//!
//! Kinds differ by gates and further maps. The width of the stream and the number of layers stay, because they set the size
//! of a state; what the feed-forward network has less, the attention has more.

use anyhow::{Result, bail};
use candle_core::Device;
use tealight_model::ParamStore;
use tealight_train::task::Task as _;

use super::plan::Panel;
use crate::runs::config::{InitModels, LoadedConfig};
use crate::runs::load::task_of;

/// Widths are multiples of it.
const STEP: u64 = 4;
/// The least width.
const LEAST: u64 = 16;

/// The setting of the width with which the parameters of a model come closest to `wanted`, and their number; without
/// `wanted`, those of the configuration.
///
/// # Errors
/// If the model cannot be built.
pub(super) fn choose(
    panel: &Panel,
    settings: &[String],
    wanted: Option<u64>,
) -> Result<(Option<String>, u64)> {
    let Some(wanted) = wanted else { return Ok((None, count(panel, settings, None)?)) };
    let [least, more] = [LEAST, LEAST + STEP];
    let (of_least, of_more) =
        (count(panel, settings, Some(least))?, count(panel, settings, Some(more))?);
    let Some(by_step) = of_more.checked_sub(of_least).filter(|&by_step| by_step > 0) else {
        bail!("`model.feed_forward.d_ff` does not change the number of parameters");
    };
    // It is linear in the width.
    let n_steps = (wanted.saturating_sub(of_least) + by_step / 2) / by_step;
    Ok((Some(setting(least + n_steps * STEP)), of_least + n_steps * by_step))
}

/// Whether the settings can be read.
///
/// # Errors
/// If a setting is unknown or has another type.
pub(super) fn check(panel: &Panel, settings: &[String], wanted: Option<u64>) -> Result<()> {
    let width = wanted.map(|_| setting(LEAST));
    let settings: Vec<String> = settings.iter().cloned().chain(width).collect();
    let source = panel.source(&settings)?;
    LoadedConfig::from_source(source, &mut InitModels::new()).map(drop)
}

fn setting(width: u64) -> String {
    format!("model.feed_forward.d_ff={width}")
}

/// The parameters outside of embedding and output, with this width.
fn count(panel: &Panel, settings: &[String], width: Option<u64>) -> Result<u64> {
    let settings: Vec<String> = settings.iter().cloned().chain(width.map(setting)).collect();
    let source = panel.source(&settings)?;
    let loaded = LoadedConfig::from_source(source, &mut InitModels::new())?;
    let task = task_of(&loaded, &Device::Cpu, None)?;
    let store = ParamStore::new(0, candle_core::DType::F32, &Device::Cpu);
    task.build_model(&loaded.config.model, &store.trainable())?;
    let is_counted = |name: &str| {
        !["embedding.", "output.", "position."].iter().any(|start| name.starts_with(start))
    };
    let parameters = store.tensors().into_iter().filter(|(name, _)| is_counted(name));
    Ok(parameters.map(|(_, tensor)| tensor.elem_count() as u64).sum())
}
