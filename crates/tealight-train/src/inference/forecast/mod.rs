//! Forecasts of the weather from a window of days.

mod rollout;

use candle_core::{DType, Device, Tensor};
use tealight_model::embedding::{Input, InputSpec};
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec, ReadOut};
use tealight_model::{Mask, Mode};
use tealight_ops::device::tensor_of;

pub use rollout::{Decoding, Rollout, Sequence, rollout};

use super::attention_map::AttentionMap;
use super::probabilities;
use crate::data::weather::{Distribution, N_CLASSES, format};
use crate::error::{Error, Result};

/// Windows in one forward pass: 1024, or fewer if they are longer than 64 days, because the memory of attention grows
/// with the square of their length.
pub(crate) fn n_together(window: usize) -> usize {
    (1024 * 64 * 64 / (window * window)).clamp(1, 1024)
}

/// A model that forecasts the weather, with what encodes its days.
#[derive(Clone, Copy, Debug)]
pub struct DayForecaster<'a> {
    /// Built without gradients, unless it is trained.
    pub(crate) model: &'a Forecaster,
    /// The sizes of the model, with the encoding of a day.
    pub(crate) spec: ForecasterSpec,
    pub(crate) device: &'a Device,
}

impl DayForecaster<'_> {
    /// The distribution of the day after each window. `windows (n, window)` holds days row by row.
    pub(crate) fn forecast(&self, windows: &[u8], window: usize) -> Result<Vec<Distribution>> {
        let mut forecasts = Vec::with_capacity(windows.len() / window);
        for rows in windows.chunks(n_together(window) * window) {
            let ids = rows.iter().map(|&day| u32::from(day)).collect();
            let inputs = inputs(&self.spec, ids, (rows.len() / window, window), self.device)?;
            let logits = last(&self.spec, &self.logits(&inputs, Mode::Eval)?)?; // (batch, 3)
            forecasts.extend(probabilities(&logits)?.iter().map(|row| [row[0], row[1], row[2]]));
        }
        Ok(forecasts)
    }

    /// The attention maps of a window of days.
    pub(crate) fn attention_maps(&self, days: &[u8]) -> Result<Vec<AttentionMap>> {
        let ids = days.iter().map(|&day| u32::from(day)).collect();
        let inputs = inputs(&self.spec, ids, (1, days.len()), self.device)?;
        let layers = self.model.attention_maps(&self.input(&inputs), &Mask::none())?;
        let days = days.iter().map(|&day| format(&[day]));
        let cls = (self.spec.read_out == ReadOut::Cls).then(|| "[CLS]".to_owned());
        let positions: Vec<String> = cls.into_iter().chain(days).collect();
        Ok(AttentionMap::of_layers("layer", &positions, layers))
    }

    /// The last days that the model reads, of those that a user typed.
    pub(crate) fn window<'d>(&self, days: &'d [u8]) -> Result<&'d [u8]> {
        let ForecasterSpec { seq_len: window, read_out, .. } = self.spec;
        let n = days.len();
        if n == 0 {
            let message =
                "the sequence is empty; expected days: 🌧️ ☁️ ☀️ or the letters R C S, oldest first";
            return Err(Error::input(message));
        }
        // A model that forecasts at every position is trained on shorter windows, too.
        if n < window && read_out != ReadOut::EveryPosition {
            let message = format!("the sequence has {n} days, and the model requires {window}");
            return Err(Error::input(message));
        }
        Ok(&days[n.saturating_sub(window)..])
    }

    /// `(batch, 3)`, or `(batch, seq_len, 3)` when every position forecasts.
    pub(crate) fn logits(&self, inputs: &Tensor, mode: Mode) -> Result<Tensor> {
        Ok(self.model.forward(&self.input(inputs), &Mask::none(), mode)?)
    }

    fn input<'i>(&self, inputs: &'i Tensor) -> Input<'i> {
        match self.spec.input {
            InputSpec::Features { .. } => Input::Features(inputs),
            InputSpec::Tokens { .. } | InputSpec::Pictures { .. } => Input::tokens(inputs),
        }
    }
}

/// Days as a model of these sizes reads them: ids `(batch, seq_len)`, or one-hot `(batch, seq_len, 3)`.
pub(crate) fn inputs(
    spec: &ForecasterSpec,
    ids: Vec<u32>,
    shape: (usize, usize),
    device: &Device,
) -> Result<Tensor> {
    let ids = tensor_of(ids, shape, device)?;
    Ok(match spec.input {
        InputSpec::Features { .. } => {
            let identity = Tensor::eye(N_CLASSES, DType::F32, device)?;
            tealight_ops::embedding::embedding(&identity, &ids)?
        }
        InputSpec::Tokens { .. } | InputSpec::Pictures { .. } => ids,
    })
}

/// The logits for the day after the window: `(batch, 3)`.
pub(crate) fn last(spec: &ForecasterSpec, logits: &Tensor) -> Result<Tensor> {
    if spec.read_out != ReadOut::EveryPosition {
        return Ok(logits.clone());
    }
    let (_batch, seq_len, _n_classes) = logits.dims3()?;
    Ok(logits.narrow(1, seq_len - 1, 1)?.squeeze(1)?)
}
