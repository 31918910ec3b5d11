//! The state of a run: whether it goes on, and why not.

use std::path::Path;

use anyhow::Result;
use tealight_train::run::Lock;

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
    /// The state of the run in `directory`, whose settings ask for `total` steps. `evaluated` is the number of steps
    /// after which its final evaluation was made.
    pub(super) fn read(directory: &Path, evaluated: Option<u64>, total: u64) -> Result<Self> {
        Ok(Self::new(Lock::is_held(directory), Ended::read(directory)?, evaluated, total))
    }

    /// From a lock that is held, why the last process ended, and the steps of the final evaluation.
    fn new(is_held: bool, ended: Option<Ended>, evaluated: Option<u64>, total: u64) -> Self {
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
    pub(in crate::report) fn word(&self) -> &'static str {
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
    pub(in crate::report) fn detail(&self) -> Option<&str> {
        match self {
            Self::StoppedEarly => Some("its evaluations no longer improved, or reached the target"),
            Self::Stopped(reason) => Some(reason),
            Self::Failed(error) => Some(error),
            Self::Interrupted => {
                Some("its process ended without saying why, for example because it was killed")
            }
            Self::Running | Self::Finished => None,
        }
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
}
