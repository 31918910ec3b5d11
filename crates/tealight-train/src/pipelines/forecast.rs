//! Forecasts of the weather, by a model that was trained here.

use std::sync::Arc;

use candle_core::Device;
use tealight_model::ModelSpec;
use tealight_model::models::forecaster::{Forecaster, ForecasterSpec};

use super::Pipeline;
use crate::data::weather::{Distribution, Generator};
use crate::error::Result;
use crate::inference::attention_map::AttentionMap;
use crate::inference::forecast::{DayForecaster, Decoding, Rollout, rollout};
use crate::trained::TrainedModel;

/// A model that forecasts the weather.
#[derive(Debug)]
pub struct Forecast {
    model: Forecaster,
    spec: ForecasterSpec,
    rule: Option<Arc<dyn Generator>>,
    device: Device,
}

/// Days after which the weather is forecast.
#[derive(Clone, Debug)]
pub struct Request {
    /// The days, oldest first.
    pub start: Vec<u8>,
    /// The number of days to forecast.
    pub n_days: usize,
    /// How the days after the first are chosen.
    pub decoding: Decoding,
}

/// A forecast.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What the model forecasts.
    pub rollout: Rollout,
    /// The exact distribution of the first day, by the rule that draws the weather. `None` if the weather comes from a
    /// file, or if the rule depends on more days than are given.
    pub exact: Option<Distribution>,
}

impl Pipeline for Forecast {
    const NAME: &'static str = "weather-forecast";
    type Request = Request;
    type Answer = Answer;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let Some(ModelSpec::Forecaster(spec)) = model.spec else {
            return Err(model.wrong_kind("a run of the task \"weather\""));
        };
        Ok(Self {
            model: model.build(device, |vb| Forecaster::build(&model.config, &spec, vb))?,
            spec,
            rule: model.readers.rule.clone(),
            device: device.clone(),
        })
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Answer>> {
        let answer = |request: &&Request| {
            let Request { start, n_days, decoding } = request;
            let rollout = rollout(self.forecaster(), start, *n_days, decoding)?;
            let rule = self.rule.as_ref().filter(|rule| start.len() >= rule.memory());
            Ok(Answer { rollout, exact: rule.map(|rule| rule.next(start)) })
        };
        requests.iter().map(answer).collect()
    }
}

impl Forecast {
    /// The number of days that the model reads.
    pub fn window(&self) -> usize {
        self.spec.seq_len
    }

    /// The last of these days that the model reads, and their attention maps.
    pub(super) fn attention_maps<'d>(
        &self,
        days: &'d [u8],
    ) -> Result<(&'d [u8], Vec<AttentionMap>)> {
        let days = self.forecaster().window(days)?;
        Ok((days, self.forecaster().attention_maps(days)?))
    }

    fn forecaster(&self) -> DayForecaster<'_> {
        DayForecaster { model: &self.model, spec: self.spec, device: &self.device }
    }
}
