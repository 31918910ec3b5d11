//! Rotary frequencies for sequences longer than those of the first training.
//!
//! ```text
//! linear   θᵢ ← θᵢ / factor                                  Chen et al. 2023, eq. (4)
//! llama3   θᵢ ← (1 − γᵢ) θᵢ / factor + γᵢ θᵢ                  Llama 3.1
//!          γᵢ = clamp((L θᵢ/2π − low) / (high − low), 0, 1)
//! ```
//!
//! Positions divided by `factor` are frequencies divided by it. L is the length of the first training, and
//! L θᵢ/2π the number of turns that pair i makes in it: pairs of at least `high` turns keep their frequency,
//! those of at most `low` turns are slowed down by `factor`.
//!
//! Linear: <https://arxiv.org/abs/2306.15595>. Llama 3.1 has no paper with the formula; its code has:
//! <https://github.com/meta-llama/llama-models>, `apply_scaling`.

use std::f64::consts::TAU;

use crate::choice::choice;
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult, positive};

choice! {
    /// `[model.position.scaling]`: how the frequencies of rotary positions differ from base^(−2i/head_dim).
    pub enum Scaling = "none" {
        /// They do not.
        "none" => None,
        /// All are divided by a factor (Chen et al. 2023).
        "linear" => Linear(Linear),
        /// Low ones are divided by a factor (Llama 3.1 and later).
        "llama3" => Llama3(Llama3),
    }
}

settings! {
    /// `[model.position.scaling] kind = "linear"`
    pub struct Linear {
        /// The new length divided by that of the first training.
        pub factor: f64 = 2.,
    }

    /// `[model.position.scaling] kind = "llama3"`, with the values of Llama 3.1.
    pub struct Llama3 {
        /// Low frequencies are divided by it.
        pub factor: f64 = 8.,
        /// Pairs of at most so many turns within `original_max_seq_len` are slowed down by `factor`.
        pub low_freq_factor: f64 = 1.,
        /// Pairs of at least so many turns keep their frequency.
        pub high_freq_factor: f64 = 4.,
        /// The longest sequence of the first training.
        pub original_max_seq_len: usize = 8192,
    }
}

impl Scaling {
    /// Whether the frequencies are the paper's.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Checks the settings.
    pub(super) fn validate(&self) -> BuildResult<()> {
        let check = |name: &str, value| positive(&format!("model.position.scaling.{name}"), value);
        match *self {
            Self::None => Ok(()),
            Self::Linear(Linear { factor }) => check("factor", factor),
            Self::Llama3(Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_seq_len,
            }) => {
                check("factor", factor)?;
                check("low_freq_factor", low)?;
                check("high_freq_factor", high)?;
                check("original_max_seq_len", original_max_seq_len as f64)?;
                if low < high {
                    return Ok(());
                }
                let keys = ["low", "high"];
                let keys = keys.map(|end| format!("model.position.scaling.{end}_freq_factor"));
                let message =
                    format!("`{}` = {low} must be less than `{}` = {high}", keys[0], keys[1]);
                Err(BuildError::config(keys.each_ref().map(String::as_str), message))
            }
        }
    }

    /// The frequency used for a pair of frequency `theta`.
    pub(super) fn apply(&self, theta: f64) -> f64 {
        match *self {
            Self::None => theta,
            Self::Linear(Linear { factor }) => theta / factor,
            Self::Llama3(Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_seq_len,
            }) => {
                let turns = original_max_seq_len as f64 * theta / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0., 1.);
                (1. - kept) * theta / factor + kept * theta
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_frequencies_are_divided_and_high_ones_kept() {
        let scaling = Scaling::default_of("llama3").expect("a kind");
        let of_turns = |turns: f64| turns * TAU / 8192.;
        for (turns, expected) in [(100., 100.), (4., 4.), (1., 0.125), (0.5, 0.0625)] {
            let scaled = scaling.apply(of_turns(turns)) / of_turns(1.);
            assert!((scaled - expected).abs() < 1e-12, "{turns}: {scaled}");
        }
        // γ = ½: the mean of θ / 8 and θ.
        let scaled = scaling.apply(of_turns(2.5)) / of_turns(2.5);
        assert!((scaled - 0.5625).abs() < 1e-12, "{scaled}");
        assert_eq!(Scaling::Linear(Linear { factor: 4. }).apply(3.), 0.75);
        assert_eq!(Scaling::None.apply(3.), 3.);
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let llama3 = Llama3::default();
        let refused = |scaling: Scaling| scaling.validate().expect_err("refused").to_string();
        for factor in [0., f64::NAN, f64::INFINITY] {
            for scaling in [
                Scaling::Linear(Linear { factor }),
                Scaling::Llama3(Llama3 { factor, ..llama3.clone() }),
            ] {
                let error = refused(scaling);
                assert!(error.starts_with("`model.position.scaling.factor` = "), "{error}");
            }
        }
        let error = refused(Scaling::Llama3(Llama3 { low_freq_factor: 4., ..llama3.clone() }));
        assert_eq!(
            error,
            "`model.position.scaling.low_freq_factor` = 4 must be less than \
             `model.position.scaling.high_freq_factor` = 4"
        );
        let error = refused(Scaling::Llama3(Llama3 { original_max_seq_len: 0, ..llama3 }));
        assert!(error.contains("original_max_seq_len` = 0 must be positive"), "{error}");
    }
}
