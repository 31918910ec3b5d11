//! Bad steps: the loss or the gradient norm is not finite, or the loss spikes.
//!
//! The update of a bad step is never applied. Depending on `training.bad_step` the run stops, skips the
//! batch, or rolls back to its last checkpoint and continues with a lower learning rate. The decision
//! depends only on the losses and gradient norms, and its state is part of the checkpoint: a resumed run
//! decides as an uninterrupted one.

use serde::{Deserialize, Serialize};

use crate::checks::check;
use crate::error::{Result, StepFault, StepQuantity};
use crate::settings::settings;

tealight_model::choice! {
    /// `training.bad_step`: what to do about a bad step.
    pub enum BadStep = "stop" {
        /// Save a checkpoint of the state before the step, and stop.
        "stop" => Stop,
        /// Skip the batch.
        "skip" => Skip(Skip),
        /// Return to the last checkpoint and continue with a lower learning rate.
        "roll_back" => RollBack(RollBack),
    }
}

settings! {
    /// `kind = "skip"`
    pub struct Skip {
        /// Most bad steps in a row; one more stops the run.
        pub max_in_a_row: u64 = 10,
    }

    /// `kind = "roll_back"`: back to the last checkpoint that was saved because of `checkpoint.every` or of a
    /// best evaluation. Checkpoints saved on a signal do not count.
    ///
    /// This helps if the learning rate is too high for a part of the run. If the data are the cause, or if the
    /// weights of the checkpoint are already bad, the fault happens again and the run stops after `max_times`.
    /// Use `skip` against bad data.
    pub struct RollBack {
        /// Most roll-backs of a run; one more stops it.
        pub max_times: u64 = 3,
        /// Factor on the learning rate at each roll-back, above 0 and at most 1.
        pub lr_factor: f64 = 0.5,
    }
}

impl BadStep {
    /// Checks that the settings are in range.
    pub fn validate(&self) -> Result<()> {
        let Self::RollBack(RollBack { lr_factor, .. }) = self else { return Ok(()) };
        let is_valid = |factor| factor > 0. && factor <= 1.;
        check("training.bad_step.lr_factor", *lr_factor, is_valid, "must be above 0 and at most 1")
    }
}

settings! {
    /// `[training.loss_spike]`: when a finite loss makes a step bad.
    ///
    /// ```text
    /// loss > mean + deviations · σ      over the losses of the last `window` updates, once there are that many
    /// ```
    ///
    /// The default is six standard deviations over a hundred updates.
    pub struct LossSpike {
        /// Bound above the mean, in standard deviations.
        pub deviations: f64 = 6.,
        /// Number of updates that mean and σ are taken over, from 2 to 10,000.
        pub window: usize = 100,
    }
}

impl LossSpike {
    /// Checks that the settings are in range.
    pub fn validate(&self) -> Result<()> {
        let Self { deviations, window } = *self;
        let is_positive = |number: f64| number.is_finite() && number > 0.;
        check("training.loss_spike.deviations", deviations, is_positive, "must be positive")?;
        let is_valid = |window| (2..=10_000).contains(&window);
        check("training.loss_spike.window", window, is_valid, "must be from 2 to 10000")
    }
}

/// The state of the detection and of its counters; part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadStepState {
    /// The losses of the last updates; empty if `training.loss_spike` is not set.
    pub losses: Vec<f64>,
    /// Number of consecutive skipped steps up to now.
    pub n_skipped_in_a_row: u64,
    /// Number of all skipped steps.
    pub n_skipped: u64,
    /// Number of roll-backs.
    pub n_roll_backs: u64,
    /// The step of the checkpoint to roll back to, if the run rolls back.
    pub roll_back_to: Option<u64>,
    /// Factor on the learning rate of the schedule.
    pub lr_factor: f64,
}

impl Default for BadStepState {
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

/// The decision about a step: its update is applied, or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StepVerdict {
    Apply,
    Stop(StepFault),
    Skip(StepFault),
    RollBack(StepFault),
}

impl BadStepState {
    /// Decides whether the update of a step is applied, from its loss and its gradient norm, and updates the
    /// state. The loss is `None` if no position of the batch has a label.
    pub(crate) fn judge(
        &mut self,
        policy: &BadStep,
        spike: Option<&LossSpike>,
        loss: Option<f64>,
        gradient_norm: f64,
    ) -> StepVerdict {
        let fault = self.fault(spike, loss.unwrap_or(0.), gradient_norm);
        let Some(fault) = fault else {
            self.n_skipped_in_a_row = 0;
            if let (Some(spike), Some(loss)) = (spike, loss) {
                self.losses.push(loss);
                let too_many = self.losses.len().saturating_sub(spike.window);
                self.losses.drain(..too_many);
            }
            return StepVerdict::Apply;
        };
        match policy {
            BadStep::Skip(Skip { max_in_a_row }) if self.n_skipped_in_a_row < *max_in_a_row => {
                self.n_skipped_in_a_row += 1;
                self.n_skipped += 1;
                StepVerdict::Skip(fault)
            }
            BadStep::RollBack(RollBack { max_times, .. }) if self.n_roll_backs < *max_times => {
                StepVerdict::RollBack(fault)
            }
            _ => StepVerdict::Stop(fault),
        }
    }

    fn fault(&self, spike: Option<&LossSpike>, loss: f64, gradient_norm: f64) -> Option<StepFault> {
        let checked = [(StepQuantity::Loss, loss), (StepQuantity::GradientNorm, gradient_norm)];
        for (quantity, value) in checked {
            if !value.is_finite() {
                return Some(StepFault::NotFinite { quantity, value });
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
        let is_spike = deviation > 0. && loss > mean + deviations * deviation;
        is_spike.then_some(StepFault::Spike { loss, mean, deviation })
    }

    /// The state after rolling back to a checkpoint that holds `restored`.
    pub(crate) fn rolled_back(&self, policy: &BadStep, restored: Self) -> Self {
        let BadStep::RollBack(RollBack { lr_factor, .. }) = policy else { return restored };
        let lr_factor = self.lr_factor * lr_factor;
        Self { n_roll_backs: self.n_roll_backs + 1, lr_factor, ..restored }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: Option<f64> = Some(f64::NAN);

    #[test]
    fn what_is_not_finite_is_named() {
        let mut state = BadStepState::default();
        let mut judge = |loss, norm| state.judge(&BadStep::Stop, None, loss, norm);
        assert_eq!(judge(Some(1e30), 1e30), StepVerdict::Apply);
        assert_eq!(judge(None, 0.), StepVerdict::Apply);
        let StepVerdict::Stop(fault) = judge(NAN, f64::NAN) else { panic!("applied") };
        assert_eq!(fault.to_string(), "the loss is NaN");
        let StepVerdict::Stop(fault) = judge(Some(1.), f64::INFINITY) else { panic!("applied") };
        assert_eq!(fault.to_string(), "the gradient norm is inf");
    }

    #[test]
    fn so_many_bad_steps_in_a_row_are_skipped_and_no_more() {
        let skip = BadStep::Skip(Skip { max_in_a_row: 2 });
        let mut state = BadStepState::default();
        let mut verdicts = Vec::new();
        for loss in [NAN, NAN, Some(1.), NAN, NAN, NAN] {
            verdicts.push(state.judge(&skip, None, loss, 1.));
        }
        let are_skips: Vec<bool> =
            verdicts.iter().map(|verdict| matches!(verdict, StepVerdict::Skip(_))).collect();
        assert_eq!(are_skips, [true, true, false, true, true, false]);
        assert!(matches!(verdicts[5], StepVerdict::Stop(_)));
    }

    #[test]
    fn going_back_slows_the_run_down_and_ends() {
        let roll_back = BadStep::RollBack(RollBack { max_times: 2, lr_factor: 0.5 });
        let mut state = BadStepState::default();
        for factor in [0.5, 0.25] {
            assert!(matches!(state.judge(&roll_back, None, NAN, 1.), StepVerdict::RollBack(_)));
            state = state.rolled_back(&roll_back, BadStepState::default());
            assert_eq!(state.lr_factor, factor);
        }
        assert!(matches!(state.judge(&roll_back, None, NAN, 1.), StepVerdict::Stop(_)));
    }

    #[test]
    fn a_leap_counts_once_the_window_is_full() {
        let spike = LossSpike { deviations: 3., window: 4 };
        let mut state = BadStepState::default();
        let mut judge = |loss| state.judge(&BadStep::Stop, Some(&spike), Some(loss), 1.);
        // Mean 2 and deviation 1 over the window.
        for loss in [99., 1., 3., 1., 3.] {
            assert_eq!(judge(loss), StepVerdict::Apply, "{loss}");
        }
        let StepVerdict::Stop(fault) = judge(5.5) else { panic!("applied") };
        let message = "the loss is 5.5000, 3.5 standard deviations above the mean 2.0000";
        assert_eq!(fault.to_string(), message);
        assert_eq!(judge(5.), StepVerdict::Apply);
        assert_eq!(judge(-100.), StepVerdict::Apply);
        assert_eq!(state.losses, [1., 3., 5., -100.]);
    }

    #[test]
    fn losses_that_are_all_alike_allow_any() {
        let spike = LossSpike { deviations: 1., window: 2 };
        let mut state = BadStepState { losses: vec![1., 1.], ..BadStepState::default() };
        assert_eq!(state.judge(&BadStep::Stop, Some(&spike), Some(9.), 1.), StepVerdict::Apply);
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
