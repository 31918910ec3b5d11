//! Steps that would ruin a model: a loss or a gradient that is not finite, or a loss that leaps.
//!
//! Such an update is never made. What follows is the run's choice (`training.bad_step`): it ends, it
//! passes over the batch, or it goes back to its last checkpoint and learns more slowly from there on.
//! All of it follows from the losses, and what must be remembered is part of the checkpoint: a run that
//! is resumed meets the same fate.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Fault, Result};

tealight_model::choice! {
    /// `training.bad_step`: what becomes of a step whose update would ruin the model.
    pub enum BadStep {
        /// The run ends, with a checkpoint of what was before.
        "stop" => Stop,
        /// The batch is passed over.
        "skip" => Skip(Skip),
        /// The run goes back to its last checkpoint, and on from there at a lower learning rate.
        "roll_back" => RollBack(RollBack),
    }
}

#[expect(clippy::derivable_impls, reason = "`choice!` takes no attributes of variants")]
impl Default for BadStep {
    fn default() -> Self {
        Self::Stop
    }
}

/// `kind = "skip"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Skip {
    /// The run ends where more steps than these are bad in a row.
    pub max_in_a_row: u64,
}

impl Default for Skip {
    fn default() -> Self {
        Self { max_in_a_row: 10 }
    }
}

/// `kind = "roll_back"`: back to the last checkpoint that `checkpoint.every` or a best evaluation asked
/// for, and not to one that a signal has left.
///
/// It helps against a rate that is too high for a stretch of the run. Where the data are to blame, or the
/// weights of that checkpoint are spoilt already, the same fault comes again and the run ends after
/// `max_times`; against bad data there is `skip`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RollBack {
    /// The run ends where it would go back more often than this.
    pub max_times: u64,
    /// Multiplies the learning rate each time, above 0 and at most 1.
    pub lr_factor: f64,
}

impl Default for RollBack {
    fn default() -> Self {
        Self { max_times: 3, lr_factor: 0.5 }
    }
}

impl BadStep {
    /// Checks what does not depend on the data.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::RollBack(RollBack { lr_factor, .. })
                if !(*lr_factor > 0. && *lr_factor <= 1.) =>
            {
                let key = "training.bad_step.lr_factor";
                let message = format!("`{key}` = {lr_factor} must be above 0 and at most 1");
                Err(Error::config([key], message))
            }
            _ => Ok(()),
        }
    }
}

/// `[training.loss_spike]`: a loss that counts as a fault although it is finite.
///
/// ```text
/// loss > mean + deviations · σ      over the last `window` steps that were taken, once there are so many
/// ```
///
/// By default six standard deviations over a hundred steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossSpike {
    /// How many standard deviations above the mean.
    pub deviations: f64,
    /// How many steps are looked back on, from 2 to 10,000.
    pub window: usize,
}

impl Default for LossSpike {
    fn default() -> Self {
        Self { deviations: 6., window: 100 }
    }
}

impl LossSpike {
    /// Checks what does not depend on the data.
    pub fn validate(&self) -> Result<()> {
        const WINDOWS: std::ops::RangeInclusive<usize> = 2..=10_000;
        let Self { deviations, window } = self;
        if !(deviations.is_finite() && *deviations > 0.) {
            let key = "training.loss_spike.deviations";
            return Err(Error::config([key], format!("`{key}` = {deviations} must be positive")));
        }
        if !WINDOWS.contains(window) {
            let key = "training.loss_spike.window";
            let message = format!("`{key}` = {window} must be from 2 to 10000");
            return Err(Error::config([key], message));
        }
        Ok(())
    }
}

/// What is remembered from step to step; part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The last losses, where spikes are looked for.
    pub losses: Vec<f64>,
    /// Steps in a row, up to this one, that were passed over.
    pub n_skipped_in_a_row: u64,
    /// Steps that were passed over in all.
    pub n_skipped: u64,
    /// How often the run has gone back.
    pub n_roll_backs: u64,
    /// The step of the checkpoint to go back to, in runs that do so.
    pub roll_back_to: Option<u64>,
    /// What the learning rate of the schedule is multiplied with.
    pub lr_factor: f64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            losses: Vec::new(),
            n_skipped_in_a_row: 0,
            n_skipped: 0,
            n_roll_backs: 0,
            roll_back_to: None,
            lr_factor: 1.,
        }
    }
}

/// What is to be done about a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Take,
    Stop(Fault),
    Skip(Fault),
    RollBack(Fault),
}

impl State {
    /// Judges a step by its loss, which is absent where there was nothing to guess, and its gradient
    /// norm; and remembers what later steps are judged by.
    pub(crate) fn judge(
        &mut self,
        bad_step: &BadStep,
        spike: Option<&LossSpike>,
        loss: Option<f64>,
        gradient_norm: f64,
    ) -> Verdict {
        let fault = self.fault(spike, loss.unwrap_or(0.), gradient_norm);
        let Some(fault) = fault else {
            self.n_skipped_in_a_row = 0;
            if let (Some(spike), Some(loss)) = (spike, loss) {
                self.losses.push(loss);
                let too_many = self.losses.len().saturating_sub(spike.window);
                self.losses.drain(..too_many);
            }
            return Verdict::Take;
        };
        match bad_step {
            BadStep::Skip(Skip { max_in_a_row }) if self.n_skipped_in_a_row < *max_in_a_row => {
                self.n_skipped_in_a_row += 1;
                self.n_skipped += 1;
                Verdict::Skip(fault)
            }
            BadStep::RollBack(RollBack { max_times, .. }) if self.n_roll_backs < *max_times => {
                Verdict::RollBack(fault)
            }
            _ => Verdict::Stop(fault),
        }
    }

    fn fault(&self, spike: Option<&LossSpike>, loss: f64, gradient_norm: f64) -> Option<Fault> {
        for (what, value) in [("loss", loss), ("gradient norm", gradient_norm)] {
            if !value.is_finite() {
                return Some(Fault::NotFinite { what, value });
            }
        }
        let LossSpike { deviations, window } = spike?;
        if self.losses.len() < *window {
            return None;
        }
        let n = self.losses.len() as f64;
        let mean = self.losses.iter().sum::<f64>() / n;
        let variance = self.losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / n;
        let deviation = variance.sqrt();
        let has_leapt = deviation > 0. && loss > mean + deviations * deviation;
        has_leapt.then_some(Fault::Spike { loss, mean, deviation })
    }

    /// What is remembered after going back to a checkpoint with the state `then`.
    pub(crate) fn rolled_back(&self, bad_step: &BadStep, then: Self) -> Self {
        let BadStep::RollBack(RollBack { lr_factor, .. }) = bad_step else { return then };
        let lr_factor = self.lr_factor * lr_factor;
        Self { n_roll_backs: self.n_roll_backs + 1, lr_factor, ..then }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: Option<f64> = Some(f64::NAN);

    #[test]
    fn what_is_not_finite_is_named() {
        let mut state = State::default();
        let mut judge = |loss, norm| state.judge(&BadStep::Stop, None, loss, norm);
        assert_eq!(judge(Some(1e30), 1e30), Verdict::Take);
        assert_eq!(judge(None, 0.), Verdict::Take);
        let Verdict::Stop(fault) = judge(NAN, f64::NAN) else { panic!("taken") };
        assert_eq!(fault.to_string(), "the loss is NaN");
        let Verdict::Stop(fault) = judge(Some(1.), f64::INFINITY) else { panic!("taken") };
        assert_eq!(fault.to_string(), "the gradient norm is inf");
    }

    #[test]
    fn so_many_bad_steps_in_a_row_are_skipped_and_no_more() {
        let skip = BadStep::Skip(Skip { max_in_a_row: 2 });
        let mut state = State::default();
        let mut verdicts = Vec::new();
        for loss in [NAN, NAN, Some(1.), NAN, NAN, NAN] {
            verdicts.push(state.judge(&skip, None, loss, 1.));
        }
        let are_skips: Vec<bool> =
            verdicts.iter().map(|verdict| matches!(verdict, Verdict::Skip(_))).collect();
        assert_eq!(are_skips, [true, true, false, true, true, false]);
        assert!(matches!(verdicts[5], Verdict::Stop(_)));
    }

    #[test]
    fn going_back_slows_the_run_down_and_ends() {
        let roll_back = BadStep::RollBack(RollBack { max_times: 2, lr_factor: 0.5 });
        let mut state = State::default();
        for factor in [0.5, 0.25] {
            assert!(matches!(state.judge(&roll_back, None, NAN, 1.), Verdict::RollBack(_)));
            state = state.rolled_back(&roll_back, State::default());
            assert_eq!(state.lr_factor, factor);
        }
        assert!(matches!(state.judge(&roll_back, None, NAN, 1.), Verdict::Stop(_)));
    }

    #[test]
    fn a_leap_counts_once_the_window_is_full() {
        let spike = LossSpike { deviations: 3., window: 4 };
        let mut state = State::default();
        let mut judge = |loss| state.judge(&BadStep::Stop, Some(&spike), Some(loss), 1.);
        // Mean 2 and deviation 1 over the window.
        for loss in [99., 1., 3., 1., 3.] {
            assert_eq!(judge(loss), Verdict::Take, "{loss}");
        }
        let Verdict::Stop(fault) = judge(5.5) else { panic!("taken") };
        let message = "the loss is 5.5000, 3.5 standard deviations above the mean 2.0000";
        assert_eq!(fault.to_string(), message);
        assert_eq!(judge(5.), Verdict::Take);
        assert_eq!(judge(-100.), Verdict::Take);
        assert_eq!(state.losses, [1., 3., 5., -100.]);
    }

    #[test]
    fn losses_that_are_all_alike_allow_any() {
        let spike = LossSpike { deviations: 1., window: 2 };
        let mut state = State { losses: vec![1., 1.], ..State::default() };
        assert_eq!(state.judge(&BadStep::Stop, Some(&spike), Some(9.), 1.), Verdict::Take);
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for lr_factor in [0., -1., 1.5, f64::NAN] {
            let bad_step = BadStep::RollBack(RollBack { lr_factor, ..RollBack::default() });
            let message = bad_step.validate().unwrap_err().to_string();
            assert!(message.starts_with("`training.bad_step.lr_factor` = "), "{message}");
        }
        for (deviations, window, key) in [
            (0., 9, "deviations"),
            (f64::INFINITY, 9, "deviations"),
            (1., 1, "window"),
            (1., 10_001, "window"),
        ] {
            let message = LossSpike { deviations, window }.validate().unwrap_err().to_string();
            assert!(message.starts_with(&format!("`training.loss_spike.{key}` = ")), "{message}");
        }
        for bad_step in
            [BadStep::Stop, BadStep::Skip(Skip::default()), BadStep::RollBack(RollBack::default())]
        {
            bad_step.validate().unwrap();
        }
        LossSpike::default().validate().unwrap();
    }
}
