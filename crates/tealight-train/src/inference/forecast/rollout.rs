//! Forecasting several days: by sampling, or by beam search.
//!
//! If fewer days are given than the model reads, the days before them are unknown. The forecast is then the
//! mean over many pasts that the model itself has generated, each weighed by the probability of the given
//! days after it (importance sampling from the model's stationary weather). If several days are given, few
//! pasts fit them, and the probabilities have a sampling error of up to .1.

use tealight_model::models::forecaster::ReadOut;
use tealight_ops::rng::{Purpose, Stream};

use super::DayForecaster;
use crate::data::weather::{Distribution, N_CLASSES};
use crate::error::{Error, Result};
use crate::inference::check_finite;

/// Pasts where days are unknown; more are more exact and slower.
const N_PASTS: u64 = 1024;

/// Windows of days that are generated after a random past, before the given days. `dotmod` forgets slowly:
/// after 20 days its forecasts are still off by .1, after 60 by .01.
const BURN_IN: u64 = 6;

/// The most days of a forecast: each is a forward pass.
const MAX_DAYS: usize = 10_000;
/// The most beams: each is a sequence with its pasts.
const MAX_BEAMS: usize = 1000;

/// How the days after the first are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoding {
    /// Each day is drawn from its distribution.
    Sample {
        /// The same seed gives the same days.
        seed: u64,
        /// Exponent 1/temperature on the probabilities; 0 takes the likeliest day.
        temperature: f64,
        /// Only so many of the likeliest kinds of weather are considered.
        top_k: Option<usize>,
    },
    /// Beam search for the likeliest sequences, with so many beams.
    Beams(usize),
}

/// A forecast.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// The distribution of the first day after those given.
    pub next: Distribution,
    /// The forecast days: one sequence, or as many as there are beams, likeliest first.
    pub sequences: Vec<Sequence>,
    /// Days that the model reads before those given.
    pub n_unknown: usize,
}

/// Forecast days, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    /// The days.
    pub days: Vec<u8>,
    /// ln P(days | the days given).
    pub log_probability: f64,
}

/// Forecasts the `n_days` after `start`.
///
/// # Errors
/// If a setting is out of range, or if the forecasts of the model are not finite.
pub fn rollout(
    model: DayForecaster<'_>,
    start: &[u8],
    n_days: usize,
    decoding: &Decoding,
) -> Result<Rollout> {
    check(n_days, decoding)?;
    let first = World::new(model, start)?;
    let n_unknown = first.n_unknown;
    let next = first.next()?.mean;
    let sequences = match *decoding {
        Decoding::Sample { seed, temperature, top_k } => {
            let stream = Stream::new(seed, Purpose::Sampling);
            let mut world = first;
            for index in 0..n_days as u64 {
                let next = world.next()?;
                let day = stream.categorical(index, &sharpen(&next.mean, temperature, top_k));
                world.observe(day, &next);
            }
            vec![world.sequence]
        }
        Decoding::Beams(n_beams) => search(first, n_days, n_beams)?,
    };
    Ok(Rollout { next, sequences, n_unknown })
}

fn check(n_days: usize, decoding: &Decoding) -> Result<()> {
    let fault = match *decoding {
        _ if n_days == 0 => "`--days` = 0 must be positive".to_owned(),
        _ if n_days > MAX_DAYS => format!("`--days` = {n_days} must be at most {MAX_DAYS}"),
        Decoding::Beams(0) => "`--beams` = 0 must be positive".to_owned(),
        Decoding::Beams(n) if n > MAX_BEAMS => {
            format!("`--beams` = {n} must be at most {MAX_BEAMS}")
        }
        Decoding::Sample { top_k: Some(0), .. } => "`--top-k` = 0 must be positive".to_owned(),
        Decoding::Sample { temperature, .. } if !(temperature.is_finite() && temperature >= 0.) => {
            format!("`--temperature` = {temperature} must be a number that is not negative")
        }
        _ => return Ok(()),
    };
    Err(Error::input(fault))
}

/// Weights to draw from: the `top_k` largest probabilities, raised to 1/temperature.
fn sharpen(forecast: &Distribution, temperature: f64, top_k: Option<usize>) -> Distribution {
    let mut by_rank = [0, 1, 2];
    by_rank.sort_by(|&a, &b| forecast[b].total_cmp(&forecast[a]));
    let n_kept = if temperature == 0. { 1 } else { top_k.unwrap_or(N_CLASSES).min(N_CLASSES) };
    let largest = forecast[by_rank[0]];
    let mut weights = [0.; N_CLASSES];
    for &day in &by_rank[..n_kept] {
        // Divided by the largest: a low temperature must not underflow.
        let exponent = if temperature == 0. { 1. } else { 1. / temperature };
        weights[day] = (forecast[day] / largest).powf(exponent);
    }
    weights
}

fn search(first: World<'_>, n_days: usize, n_beams: usize) -> Result<Vec<Sequence>> {
    let mut beams = vec![first];
    for _ in 0..n_days {
        let mut candidates = Vec::with_capacity(N_CLASSES * beams.len());
        for beam in &beams {
            let next = beam.next()?;
            for day in 0..N_CLASSES {
                let mut longer = beam.clone();
                longer.observe(day, &next);
                candidates.push(longer);
            }
        }
        candidates
            .sort_by(|a, b| b.sequence.log_probability.total_cmp(&a.sequence.log_probability));
        candidates.truncate(n_beams);
        beams = candidates;
    }
    Ok(beams.into_iter().map(|beam| beam.sequence).collect())
}

/// The state of a forecast: the days so far, after each possible past.
#[derive(Clone)]
struct World<'a> {
    model: DayForecaster<'a>,
    pasts: Vec<Past>,
    sequence: Sequence,
    n_unknown: usize,
}

#[derive(Clone)]
struct Past {
    days: Vec<u8>,
    weight: f64,
}

/// Random pasts of a whole window: the model is trained on no shorter one.
fn random_pasts(window: usize) -> Vec<Past> {
    let stream = Stream::new(0, Purpose::Sampling);
    let past = |number| {
        let stream = stream.fork(number);
        let days = (0..window as u64).map(|i| stream.below(i, N_CLASSES as u64) as u8);
        Past { days: days.collect(), weight: 1. }
    };
    (0..N_PASTS).map(past).collect()
}

/// The distribution of the next day: after each past, and their weighed mean.
struct Next {
    by_past: Vec<Distribution>,
    mean: Distribution,
}

impl<'a> World<'a> {
    fn new(model: DayForecaster<'a>, start: &[u8]) -> Result<Self> {
        // A model that forecasts at every position is trained on shorter windows, too.
        let needed = match model.spec.read_out {
            ReadOut::EveryPosition => 1,
            ReadOut::Mean | ReadOut::Cls | ReadOut::Last => model.spec.seq_len,
        };
        let n_unknown = needed.saturating_sub(start.len());
        let known = || vec![Past { days: Vec::new(), weight: 1. }];
        let pasts = if n_unknown == 0 { known() } else { random_pasts(needed) };
        let mut world = Self { model, pasts, sequence: Sequence::default(), n_unknown };
        if n_unknown > 0 {
            world.settle(BURN_IN * needed as u64)?;
        }
        for &day in start {
            if n_unknown == 0 {
                // The weight of a single past has no effect.
                world.pasts.iter_mut().for_each(|past| past.days.push(day));
            } else {
                let next = world.next()?;
                world.observe(usize::from(day), &next);
            }
        }
        world.sequence = Sequence::default();
        Ok(world)
    }

    /// Generates `n_days` after each past, towards the model's stationary distribution.
    fn settle(&mut self, n_days: u64) -> Result<()> {
        let stream = Stream::new(1, Purpose::Sampling);
        for index in 0..n_days {
            let Next { by_past, .. } = self.next()?;
            for (number, (past, forecast)) in self.pasts.iter_mut().zip(&by_past).enumerate() {
                past.days.push(stream.fork(number as u64).categorical(index, forecast) as u8);
            }
        }
        Ok(())
    }

    fn next(&self) -> Result<Next> {
        let seen = self.pasts[0].days.len().min(self.model.spec.seq_len);
        let windows: Vec<u8> = self
            .pasts
            .iter()
            .flat_map(|past| &past.days[past.days.len() - seen..])
            .copied()
            .collect();
        let by_past = self.model.forecast(&windows, seen)?;
        check_finite(by_past.iter().flatten())?;
        let total: f64 = self.pasts.iter().map(|past| past.weight).sum();
        let mut mean = [0.; N_CLASSES];
        for (past, forecast) in self.pasts.iter().zip(&by_past) {
            for day in 0..N_CLASSES {
                mean[day] += past.weight / total * forecast[day];
            }
        }
        Ok(Next { by_past, mean })
    }

    fn observe(&mut self, day: usize, next: &Next) {
        for (past, forecast) in self.pasts.iter_mut().zip(&next.by_past) {
            past.days.push(day as u8);
            past.weight *= forecast[day];
        }
        // Rescaled: many days must not underflow. Pasts weigh the same if the day has probability 0 after
        // each of them.
        let largest = self.pasts.iter().map(|past| past.weight).fold(0., f64::max);
        let rescaled = |weight: f64| if largest > 0. { weight / largest } else { 1. };
        self.pasts.iter_mut().for_each(|past| past.weight = rescaled(past.weight));
        self.sequence.days.push(day as u8);
        self.sequence.log_probability += next.mean[day].ln();
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use tealight_model::embedding::InputSpec;
    use tealight_model::models::forecaster::{Forecaster, ForecasterSpec};
    use tealight_model::{ModelConfig, ParamStore};

    use super::*;

    #[test]
    fn temperature_and_top_k_reshape_the_distribution() {
        let forecast = [0.2, 0.5, 0.3];
        assert_eq!(sharpen(&forecast, 0., None), [0., 1., 0.]);
        assert_eq!(sharpen(&forecast, 1., Some(2)), [0., 1., 0.6]);
        let sharper = sharpen(&forecast, 0.5, None);
        assert!((sharper[2] - 0.36).abs() < 1e-12 && (sharper[0] - 0.16).abs() < 1e-12);
        assert_eq!(sharpen(&forecast, 1e-9, None), [0., 1., 0.]);
    }

    const SPEC: ForecasterSpec = ForecasterSpec {
        input: InputSpec::Tokens { vocab_size: N_CLASSES, n_token_types: 0, pad_id: None },
        seq_len: 5,
        n_classes: N_CLASSES,
        read_out: ReadOut::Mean,
    };

    fn forecaster() -> (Forecaster, ParamStore) {
        let config = ModelConfig { d_model: 8, n_heads: 2, ..Default::default() };
        let params = ParamStore::new(17, DType::F32, &Device::Cpu);
        let model = Forecaster::build(&config, &SPEC, &params.trainable()).unwrap();
        (model, params)
    }

    /// A model with weights that are NaN.
    fn diverged() -> Forecaster {
        let (model, params) = forecaster();
        for (_name, weights) in params.iter() {
            weights.set(&weights.affine(f64::NAN, 0.).unwrap()).unwrap();
        }
        model
    }

    fn with_days(model: &Forecaster) -> DayForecaster<'_> {
        DayForecaster { model, spec: SPEC, device: &Device::Cpu }
    }

    #[test]
    fn a_model_of_whole_windows_is_never_shown_a_shorter_one() {
        let (model, _) = forecaster();
        let world = World::new(with_days(&model), &[0, 1]).unwrap();
        assert_eq!(world.n_unknown, 3);
        assert!(world.pasts.iter().all(|past| past.days.len() >= 5 + 2));
        assert!(world.pasts.iter().all(|past| past.days.ends_with(&[0, 1])));
    }

    #[test]
    fn a_model_that_diverged_is_an_error_and_no_panic() {
        let model = diverged();
        let greedy = Decoding::Sample { seed: 0, temperature: 0., top_k: None };
        let some = Decoding::Sample { seed: 0, temperature: 1., top_k: Some(2) };
        for decoding in [greedy, some, Decoding::Beams(2)] {
            for start in [&[0, 1, 2, 0, 1][..], &[0]] {
                let refused = rollout(with_days(&model), start, 3, &decoding);
                assert!(matches!(refused, Err(Error::NotFinite)), "{decoding:?}");
            }
        }
    }

    #[test]
    fn days_before_a_known_window_need_no_forward_pass() {
        let (model, _) = forecaster();
        // A forward pass over a day that does not exist would fail.
        let beams = Decoding::Beams(1);
        let after = |start: &[u8]| rollout(with_days(&model), start, 2, &beams);
        let long = after(&[9, 0, 1, 2, 0, 1]).unwrap();
        assert_eq!(long, after(&[0, 1, 2, 0, 1]).unwrap());
        assert!(after(&[9, 0, 1, 2, 0]).is_err());
    }

    #[test]
    fn impossible_settings_are_refused() {
        let sampling = |temperature, top_k| Decoding::Sample { seed: 0, temperature, top_k };
        assert!(check(0, &sampling(1., None)).is_err());
        assert!(check(1, &sampling(-1., None)).is_err());
        assert!(check(1, &sampling(f64::NAN, None)).is_err());
        assert!(check(1, &sampling(1., Some(0))).is_err());
        assert!(check(1, &Decoding::Beams(0)).is_err());
        assert!(check(1, &Decoding::Beams(usize::MAX)).is_err());
        assert!(check(usize::MAX, &sampling(1., None)).is_err());
        assert!(check(1, &sampling(0., Some(1))).is_ok());
    }
}
