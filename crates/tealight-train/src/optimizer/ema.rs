//! Exponential moving average of the weights, used in evaluation
//! (Polyak & Juditsky 1992; with the bias correction of Adam, Kingma & Ba 2015, §3).
//!
//! ```text
//! θ̄_t = (1 − β)/(1 − βᵗ) · Σ_k β^(t−k) θ_k      the mean of θ_1 … θ_t, weighted towards the last
//!     = θ̄_(t−1) + (1 − β)/(1 − βᵗ) · (θ_t − θ̄_(t−1))
//! ```
//!
//! `θ_t` are the weights after update t. The initial weights are not part of the mean, so it needs no warm-up. t is
//! an argument, so there is no counter to save.
//!
//! Cost: one copy of the weights, and one pass over them per update.

use std::collections::BTreeMap;

use candle_core::{Tensor, Var};

use crate::checks::check;
use crate::error::{Error, Result};
use crate::storage::tensors::{self, NamedTensors};

/// The weights and their averages.
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    parameter: Var,
    average: Var,
}

impl Ema {
    /// An average over `variables` with β = `decay`, from 0 (the last weights) to below 1.
    pub fn new(decay: f64, variables: Vec<(String, Var)>) -> Result<Self> {
        validate(decay)?;
        let slots = variables.into_iter().map(|(name, parameter)| {
            let average = Var::from_tensor(&parameter.as_detached_tensor().copy()?)?;
            Ok(Slot { name, parameter, average })
        });
        Ok(Self { decay, slots: slots.collect::<Result<_>>()? })
    }

    /// Adds the weights after update number `step`, counted from 1.
    pub fn update(&mut self, step: u64) -> Result<()> {
        let share = (1. - self.decay) / (1. - self.decay.powf(step.max(1) as f64));
        for Slot { parameter, average, .. } in &self.slots {
            let old = average.as_detached_tensor();
            let change = ((parameter.as_detached_tensor() - &old)? * share)?;
            average.set(&(old + change)?)?;
        }
        Ok(())
    }

    /// Runs `body` with the averages in place of the weights, and restores the weights afterwards, also if `body`
    /// fails.
    pub fn with_averages<T, E: From<Error>>(
        &mut self,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.swap()?;
        let result = body();
        self.swap()?;
        result
    }

    /// The averages by the names of their parameters: views of them, not copies.
    pub fn state(&self) -> NamedTensors {
        let views = |slot: &Slot| (slot.name.clone(), slot.average.as_detached_tensor());
        self.slots.iter().map(views).collect()
    }

    /// Continues from the averages of a checkpoint.
    pub fn load_state(&mut self, state: &BTreeMap<String, Tensor>) -> Result<()> {
        let targets = self.slots.iter().map(|slot| (slot.name.as_str(), &slot.average));
        tensors::assign("moving average", targets, state)
    }

    fn swap(&mut self) -> Result<()> {
        for Slot { parameter, average, .. } in &self.slots {
            let weights = parameter.as_detached_tensor().copy()?;
            parameter.set(average)?;
            average.set(&weights)?;
        }
        Ok(())
    }
}

/// Checks β.
pub(crate) fn validate(decay: f64) -> Result<()> {
    let is_valid = |decay: f64| (0. ..1.).contains(&decay);
    check("training.ema_decay", decay, is_valid, "must be at least 0 and below 1")
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn variable(values: &[f64]) -> Var {
        Var::new(values, &Device::Cpu).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f64> {
        tensor.to_vec1().unwrap()
    }

    #[test]
    fn averages_are_the_weighted_mean_of_all_weights_since_the_first_update() {
        let weight = variable(&[100.]);
        let mut ema = Ema::new(0.5, vec![("w".into(), weight.clone())]).unwrap();
        for (step, value) in [(1, 7.), (2, 1.), (3, 3.)] {
            weight.set(&Tensor::new(&[value], &Device::Cpu).unwrap()).unwrap();
            ema.update(step).unwrap();
        }
        // (¼·7 + ½·1 + 1·3) / (¼ + ½ + 1) = 5.25/1.75
        assert!((values(&ema.state()["w"])[0] - 3.).abs() < 1e-15);
    }

    #[test]
    fn averages_stand_in_for_the_weights_and_leave_again() {
        let weight = variable(&[1., 2., 3.]);
        let mut ema = Ema::new(0.9, vec![("w".into(), weight.clone())]).unwrap();
        let averages = BTreeMap::from([("w".into(), (&weight.as_detached_tensor() * 2.).unwrap())]);
        ema.load_state(&averages).unwrap();
        let seen = ema.with_averages(|| Ok::<_, Error>(values(&weight))).unwrap();
        assert_eq!(seen, [2., 4., 6.]);
        let failed = ema.with_averages(|| Err::<(), _>(Error::config(["a"], "no")));
        assert!(failed.is_err());
        assert_eq!((values(&weight), values(&ema.state()["w"])), (vec![1., 2., 3.], seen));
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused_by_name() {
        let mut ema = Ema::new(0.9, vec![("w".into(), variable(&[1., 2., 3.]))]).unwrap();
        let message = ema.load_state(&BTreeMap::new()).unwrap_err().to_string();
        assert_eq!(message, "the moving average has no tensor `w` of shape (3)");
        let message = Ema::new(1., Vec::new()).unwrap_err().to_string();
        assert_eq!(message, "`training.ema_decay` = 1 must be at least 0 and below 1");
    }
}
