//! How a run is doing: its state, its step, the time that is left.

use std::time::Duration;

use tealight_train::run::Lock;
use tealight_train::task::table::thousands;

use super::read::RunData;
use crate::runs::ended::Ended;

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A process trains it now.
    Running,
    /// It made all its steps, and was evaluated.
    Finished,
    /// Early stopping ended it, and it was evaluated.
    StoppedEarly,
    /// It was stopped, for this reason, and can be resumed.
    Stopped(String),
    /// It ended with this error.
    Failed(String),
    /// No process trains it, and none has said why it ended: it was killed, or it has ended before its evaluation.
    Interrupted,
}

impl State {
    /// From what the directory holds: a lock that is held, why the last process ended, steps of the final evaluation.
    pub(super) fn new(
        is_held: bool,
        ended: Option<Ended>,
        evaluated: Option<u64>,
        total: u64,
    ) -> Self {
        match (is_held, evaluated, ended) {
            (true, ..) => Self::Running,
            (_, Some(steps), _) if steps >= total => Self::Finished,
            (_, Some(_), _) => Self::StoppedEarly,
            (.., Some(Ended { error: Some(error), .. })) => Self::Failed(error),
            (.., Some(Ended { reason, .. })) => Self::Stopped(reason),
            (.., None) => Self::Interrupted,
        }
    }

    /// One word, also the name of its colour in the style sheet.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::StoppedEarly => "stopped early",
            Self::Stopped(_) => "stopped",
            Self::Failed(_) => "failed",
            Self::Interrupted => "interrupted",
        }
    }

    /// What the word leaves open.
    pub(super) fn detail(&self) -> Option<&str> {
        match self {
            Self::StoppedEarly => Some("its evaluations no longer improved"),
            Self::Stopped(reason) => Some(reason),
            Self::Failed(error) => Some(error),
            Self::Interrupted => {
                Some("its process ended without saying why, for example because it was killed")
            }
            Self::Running | Self::Finished => None,
        }
    }
}

/// Whether a process trains the run at this moment.
pub(super) fn is_running(run: &std::path::Path) -> bool {
    Lock::is_held(run)
}

/// `1,200 of 5,000`
pub(super) fn steps(run: &RunData) -> String {
    format!("{} of {}", thousands(run.step()), thousands(run.config.training.steps))
}

/// The time until the last step at the speed of the last lines: `4 min`; `None` unless the run is going on.
pub(super) fn time_left(run: &RunData) -> Option<String> {
    if run.state != State::Running {
        return None;
    }
    let left = run.config.training.steps.saturating_sub(run.step());
    Some(duration(left as f64 * seconds_per_step(run)?))
}

/// Over the last tenth of the lines of training.
fn seconds_per_step(run: &RunData) -> Option<f64> {
    let clock = &run.clock;
    let last = clock.steps.len().checked_sub(1)?;
    let first = last - (last / 10).max(1).min(last);
    let before = if first == last { (0, 0.) } else { (clock.steps[first], clock.seconds[first]) };
    let steps = clock.steps[last].checked_sub(before.0).filter(|steps| *steps > 0)?;
    Some((clock.seconds[last] - before.1) / steps as f64)
}

/// `42 s`, `12 min 5 s`, `3 h 20 min`
pub(super) fn duration(seconds: f64) -> String {
    if seconds < 10. {
        return format!("{seconds:.1} s");
    }
    let whole = Duration::from_secs(seconds.min(1e12) as u64).as_secs();
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, _) => format!("{minutes} min {} s", whole % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        let ended = |reason: &str, error: Option<&str>| Some(Ended::new(reason, 5, error));
        let states = [
            State::new(true, None, None, 7),
            State::new(false, None, Some(7), 7),
            State::new(false, None, Some(5), 7),
            State::new(false, ended("time limit", None), None, 7),
            State::new(false, ended("error", Some("the loss is NaN")), None, 7),
            State::new(false, None, None, 7),
        ];
        let words = states.each_ref().map(State::word);
        let expected = ["running", "finished", "stopped early", "stopped", "failed", "interrupted"];
        assert_eq!(words, expected);
        assert_eq!(states[4].detail(), Some("the loss is NaN"));
    }

    #[test]
    fn durations_have_two_units() {
        let seconds = [0.25, 42.4, 725., 12_000., 180_000.];
        let expected = ["0.2 s", "42 s", "12 min 5 s", "3 h 20 min", "2 d 2 h"];
        assert_eq!(seconds.map(duration), expected);
    }
}
