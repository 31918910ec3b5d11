//! Learning-rate schedules: pure functions of the step, so a checkpoint saves only the step.
//!
//! ```text
//! η(s) = η_max · (s + 1)/W    for s < W     linear warm-up, not starting at 0
//!      = η_max · f(s)         for s ≥ W     depends on the kind
//! ```
//!
//! s = `step` counts updates from 0, W = `warmup_steps`, S = `total_steps`, r = `final_lr_ratio`.
//! The decays start at f(W) = 1 and end at f(S) = r, one update after the last: like PyTorch's, no
//! update is spent at a rate of zero.

use std::f64::consts::PI;

use crate::error::{Error, Result};
use crate::settings::settings;

tealight_model::choice! {
    /// `[schedule]`: the learning rate over the course of a run.
    pub enum ScheduleConfig = "cosine" {
        /// The peak throughout, after a warm-up.
        "constant" => Constant(Constant),
        /// A straight line from the peak to the final rate (Devlin et al. 2018).
        "linear" => Linear(Linear),
        /// Half a cosine from the peak to the final rate (Loshchilov & Hutter 2017).
        "cosine" => Cosine(Cosine),
        /// Warm-up, stable, decay: the peak until shortly before the end (Hu et al. 2024).
        "wsd" => Wsd(Wsd),
        /// Falls with the square root of the step (Vaswani et al. 2017).
        "inverse_sqrt" => InverseSqrt(InverseSqrt),
    }
}

settings! {
    /// `kind = "constant"`: f(s) = 1.
    ///
    /// By default there is no warm-up.
    pub struct Constant {
        /// Updates until the peak is reached.
        pub warmup_steps: u64 = 0,
    }

    /// `kind = "linear"`, BERT's schedule (Devlin et al. 2018, <https://arxiv.org/abs/1810.04805>).
    ///
    /// ```text
    /// f(s) = (1 − p) + r·p,    p = (s − W)/(S − W)
    /// ```
    ///
    /// By default it falls to zero, as in the paper, and there is no warm-up: the paper's 10,000
    /// updates belong to its run of 1,000,000.
    pub struct Linear {
        /// Updates until the peak is reached.
        pub warmup_steps: u64 = 0,
        /// The final rate over the peak, from 0 to 1.
        pub final_lr_ratio: f64 = 0.,
    }

    /// `kind = "cosine"` (Loshchilov & Hutter 2017, <https://arxiv.org/abs/1608.03983>), without
    /// restarts.
    ///
    /// ```text
    /// f(s) = r + (1 − r)·½(1 + cos πp),    p = (s − W)/(S − W)                              eq. (5)
    /// ```
    ///
    /// By default r is 0.1, as for GPT-3 (Brown et al. 2020, appendix B), and there is no warm-up.
    pub struct Cosine {
        /// Updates until the peak is reached.
        pub warmup_steps: u64 = 0,
        /// The final rate over the peak, from 0 to 1.
        pub final_lr_ratio: f64 = 0.1,
    }

    /// `kind = "wsd"`, the schedule of `MiniCPM` (Hu et al. 2024, <https://arxiv.org/abs/2404.06395>).
    ///
    /// ```text
    /// f(s) = 1                    for W ≤ s < S − D
    ///      = r^((s − S + D)/D)    for s ≥ S − D        D = decay_steps                      eq. (1)
    /// ```
    ///
    /// The paper writes the decay as 0.5^((s − S + D)/T); our r is 0.5^(D/T). By default D is a tenth of
    /// the run, which the paper finds enough, r is 0.1, and there is no warm-up.
    pub struct Wsd {
        /// Updates until the peak is reached.
        pub warmup_steps: u64 = 0,
        /// Updates of the final decay; a tenth of the run if not given.
        pub decay_steps: Option<u64> = None,
        /// The final rate over the peak, above 0 (the decay is exponential) and at most 1.
        pub final_lr_ratio: f64 = 0.1,
    }

    /// `kind = "inverse_sqrt"` (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
    ///
    /// ```text
    /// f(s) = √(W/(s + 1))                                                                   eq. (3)
    /// ```
    ///
    /// The paper's step number is our s + 1, and its factor `d_model^−0.5·W^−0.5` is our peak. T5
    /// (Raffel et al. 2020) holds the peak for W = 10,000 updates, where the paper and we climb. By
    /// default W is 4,000, as in the paper, or a tenth of the run where that is less: the paper's run has
    /// 100,000 updates.
    pub struct InverseSqrt {
        /// Updates until the peak is reached, at least 1: the decay depends on them, too. If not
        /// given, 4,000, or a tenth of a run shorter than 40,000.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub warmup_steps: Option<u64> = None,
    }
}

impl ScheduleConfig {
    /// The learning rate of update `step`, counted from 0, in a run of `total_steps`.
    pub fn lr(&self, step: u64, total_steps: u64, peak_lr: f64) -> f64 {
        let warmup_steps = self.warmup_steps(total_steps);
        if step < warmup_steps {
            return peak_lr * ((step + 1) as f64 / warmup_steps as f64);
        }
        let progress = progress(step, warmup_steps, total_steps);
        peak_lr
            * match self {
                Self::Constant(_) => 1.,
                Self::Linear(linear) => lerp(linear.final_lr_ratio, 1. - progress),
                Self::Cosine(cosine) => lerp(cosine.final_lr_ratio, half_cosine(progress)),
                Self::Wsd(wsd) => wsd.decay(step, total_steps),
                Self::InverseSqrt(_) => (warmup_steps as f64 / (step + 1) as f64).sqrt(),
            }
    }

    /// Checks the settings against the length of the run.
    pub fn validate(&self, total_steps: u64) -> Result<()> {
        let warmup_steps = self.warmup_steps(total_steps);
        if warmup_steps > total_steps {
            let rule = format!(
                "is longer than the run of {total_steps} steps: set it to {}, for instance",
                (total_steps / 20).max(1)
            );
            return Err(fault("warmup_steps", warmup_steps, &rule));
        }
        match self {
            Self::Linear(Linear { final_lr_ratio, .. })
            | Self::Cosine(Cosine { final_lr_ratio, .. }) => validate_ratio(*final_lr_ratio),
            Self::Wsd(wsd) => wsd.validate(total_steps),
            Self::InverseSqrt(_) if warmup_steps == 0 => {
                Err(fault("warmup_steps", warmup_steps, "must be at least 1: it scales the decay"))
            }
            Self::Constant(_) | Self::InverseSqrt(_) => Ok(()),
        }
    }

    /// Updates until the peak, in a run of `total_steps`.
    pub(crate) fn warmup_steps(&self, total_steps: u64) -> u64 {
        match self {
            Self::Constant(Constant { warmup_steps })
            | Self::Linear(Linear { warmup_steps, .. })
            | Self::Cosine(Cosine { warmup_steps, .. })
            | Self::Wsd(Wsd { warmup_steps, .. }) => *warmup_steps,
            Self::InverseSqrt(InverseSqrt { warmup_steps }) => {
                warmup_steps.unwrap_or((total_steps / 10).clamp(1, 4_000))
            }
        }
    }
}

impl Wsd {
    fn decay_steps(&self, total_steps: u64) -> u64 {
        self.decay_steps.unwrap_or(total_steps / 10)
    }

    fn decay(&self, step: u64, total_steps: u64) -> f64 {
        let start = total_steps.saturating_sub(self.decay_steps(total_steps));
        if step < start { 1. } else { self.final_lr_ratio.powf(progress(step, start, total_steps)) }
    }

    fn validate(&self, total_steps: u64) -> Result<()> {
        let Self { warmup_steps, final_lr_ratio, .. } = *self;
        validate_ratio(final_lr_ratio)?;
        if final_lr_ratio == 0. {
            let rule = "must be above 0: the decay is exponential";
            return Err(fault("final_lr_ratio", final_lr_ratio, rule));
        }
        let decay_steps = self.decay_steps(total_steps);
        if decay_steps > total_steps - warmup_steps {
            let message = format!(
                "`schedule.decay_steps` = {decay_steps} and `schedule.warmup_steps` = \
                 {warmup_steps} are longer than the run of {total_steps} steps"
            );
            return Err(Error::config(["schedule.decay_steps", "schedule.warmup_steps"], message));
        }
        Ok(())
    }
}

/// The progress of `step` from `start` to `end`: 0 to 1.
fn progress(step: u64, start: u64, end: u64) -> f64 {
    if step >= end { 1. } else { (step - start) as f64 / (end - start) as f64 }
}

/// From `final_ratio` at `height` 0 to 1 at `height` 1, both exactly.
fn lerp(final_ratio: f64, height: f64) -> f64 {
    height + final_ratio * (1. - height)
}

/// ½(1 + cos πp): from 1 to 0.
fn half_cosine(progress: f64) -> f64 {
    0.5 * (1. + (PI * progress).cos())
}

fn validate_ratio(final_lr_ratio: f64) -> Result<()> {
    if (0. ..=1.).contains(&final_lr_ratio) {
        return Ok(());
    }
    Err(fault("final_lr_ratio", final_lr_ratio, "must lie between 0 and 1"))
}

fn fault(key: &str, value: impl std::fmt::Display, rule: &str) -> Error {
    let key = format!("schedule.{key}");
    Error::config([key.as_str()], format!("`{key}` = {value} {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEAK: f64 = 0.5;
    const TOTAL: u64 = 47;
    const WARMUP: u64 = 7;

    fn linear(warmup_steps: u64, final_lr_ratio: f64) -> ScheduleConfig {
        ScheduleConfig::Linear(Linear { warmup_steps, final_lr_ratio })
    }

    fn cosine(warmup_steps: u64, final_lr_ratio: f64) -> ScheduleConfig {
        ScheduleConfig::Cosine(Cosine { warmup_steps, final_lr_ratio })
    }

    fn wsd(warmup_steps: u64, decay_steps: Option<u64>, final_lr_ratio: f64) -> ScheduleConfig {
        ScheduleConfig::Wsd(Wsd { warmup_steps, decay_steps, final_lr_ratio })
    }

    fn inverse_sqrt(warmup_steps: u64) -> ScheduleConfig {
        ScheduleConfig::InverseSqrt(InverseSqrt { warmup_steps: Some(warmup_steps) })
    }

    /// One of each kind, with the same warm-up.
    fn every_kind() -> [ScheduleConfig; 5] {
        [
            ScheduleConfig::Constant(Constant { warmup_steps: WARMUP }),
            linear(WARMUP, 0.25),
            cosine(WARMUP, 0.25),
            wsd(WARMUP, Some(11), 0.25),
            inverse_sqrt(WARMUP),
        ]
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-15, "{actual} is not {expected}");
    }

    #[test]
    fn values_worked_by_hand() {
        // W = 4, S = 12, r = 0.2: halfway through the decay at s = 8, a quarter at s = 6.
        assert_close(linear(4, 0.2).lr(8, 12, 1.), 0.6);
        assert_close(linear(4, 0.2).lr(6, 12, 1.), 0.8);
        assert_close(cosine(4, 0.2).lr(8, 12, 1.), 0.6);
        assert_close(cosine(4, 0.2).lr(6, 12, 1.), 0.2 + 0.8 * 0.5 * (1. + 0.5_f64.sqrt()));
        // The decay of 4 starts at s = 8: 0.25^(1/2) = 0.5 at s = 10.
        let wsd = wsd(4, Some(4), 0.25);
        assert_eq!([4, 7, 8, 10, 12].map(|s| wsd.lr(s, 12, 1.)), [1., 1., 1., 0.5, 0.25]);
        // A tenth of the run, if nothing is said.
        let wsd = self::wsd(0, None, 0.25);
        assert_eq!([70, 90, 95, 100].map(|s| wsd.lr(s, 100, 1.)), [1., 1., 0.5, 0.25]);
        // √(4/(s + 1)) at s = 3, 15, 63.
        assert_eq!([3, 15, 63].map(|s| inverse_sqrt(4).lr(s, 99, 1.)), [1., 0.5, 0.25]);
    }

    #[test]
    fn warm_up_is_linear_and_starts_above_zero() {
        for schedule in every_kind() {
            for step in 0..WARMUP {
                let expected = PEAK * (step + 1) as f64 / WARMUP as f64;
                assert_close(schedule.lr(step, TOTAL, PEAK), expected);
            }
            assert_eq!(schedule.lr(WARMUP - 1, TOTAL, PEAK), PEAK);
        }
    }

    #[test]
    fn decays_end_at_the_final_rate_and_stay_there() {
        for schedule in [linear(WARMUP, 0.3), cosine(WARMUP, 0.3), wsd(WARMUP, None, 0.3)] {
            for step in [TOTAL, TOTAL + 1, 10 * TOTAL] {
                assert_eq!(schedule.lr(step, TOTAL, PEAK), PEAK * 0.3, "{schedule:?}");
            }
            assert!(schedule.lr(TOTAL - 1, TOTAL, PEAK) > PEAK * 0.3);
        }
        assert_eq!(linear(0, 0.).lr(0, TOTAL, PEAK), PEAK);
    }

    #[test]
    fn rises_then_never_rises_again_and_never_jumps() {
        for schedule in every_kind() {
            let lr: Vec<f64> = (0..=TOTAL).map(|step| schedule.lr(step, TOTAL, PEAK)).collect();
            let (rising, falling) = lr.split_at(WARMUP as usize);
            assert!(rising.windows(2).all(|pair| pair[0] < pair[1]), "{schedule:?}");
            assert!(falling.windows(2).all(|pair| pair[0] >= pair[1]), "{schedule:?}");
            let jump = lr.windows(2).map(|pair| (pair[0] - pair[1]).abs()).fold(0., f64::max);
            assert!(jump <= PEAK / WARMUP as f64 + 1e-15, "{schedule:?} jumps by {jump}");
        }
    }

    #[test]
    fn inverse_sqrt_warms_up_for_a_tenth_of_a_run_shorter_than_the_papers() {
        let default = ScheduleConfig::InverseSqrt(InverseSqrt::default());
        for (total, warmup_steps) in [(1, 1), (47, 4), (1_000, 100), (100_000, 4_000)] {
            default.validate(total).unwrap();
            assert_eq!(default.lr(warmup_steps - 1, total, PEAK), PEAK);
            assert!(default.lr(warmup_steps, total, PEAK) < PEAK);
        }
        assert_eq!(toml::to_string(&default).unwrap(), "kind = \"inverse_sqrt\"\n");
    }

    #[test]
    fn a_warm_up_of_the_whole_run_is_finite() {
        for schedule in [linear(5, 0.), cosine(5, 0.1), wsd(5, Some(0), 0.1), inverse_sqrt(5)] {
            schedule.validate(5).unwrap();
            assert!((0..9).all(|step| schedule.lr(step, 5, 1.).is_finite()));
        }
    }

    #[test]
    fn broken_rules_name_their_keys() {
        let message = |schedule: ScheduleConfig| schedule.validate(10).unwrap_err().to_string();
        let longer = "`schedule.warmup_steps` = 11 is longer than the run of 10 steps: set it to 1, for instance";
        assert_eq!(message(ScheduleConfig::Constant(Constant { warmup_steps: 11 })), longer);
        let ratio = "`schedule.final_lr_ratio` = 1.5 must lie between 0 and 1";
        assert_eq!(message(cosine(0, 1.5)), ratio);
        assert!(message(linear(0, f64::NAN)).contains("NaN"));
        assert!(message(wsd(0, None, 0.)).contains("must be above 0"));
        assert!(message(wsd(6, Some(5), 0.1)).contains("= 5 and `schedule.warmup_steps` = 6 are"));
        assert!(message(inverse_sqrt(0)).contains("at least 1"));
        assert!(every_kind().iter().all(|schedule| schedule.validate(TOTAL).is_ok()));
    }

    #[test]
    fn every_kind_survives_toml() {
        for schedule in every_kind() {
            let text = toml::to_string(&schedule).unwrap();
            assert_eq!(toml::from_str::<ScheduleConfig>(&text).unwrap(), schedule, "{text}");
        }
        assert!(toml::from_str::<ScheduleConfig>("kind = 'linear'\nwarmup = 3").is_err());
    }
}
