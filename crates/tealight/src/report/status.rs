//! How far a run is: its step, the time that is left.

use std::time::Duration;

use tealight_train::task::table::thousands;

use super::read::RunData;
use super::read::state::State;

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
    let clock = &run.log.clock;
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
    fn durations_have_two_units() {
        let seconds = [0.25, 42.4, 725., 12_000., 180_000.];
        let expected = ["0.2 s", "42 s", "12 min 5 s", "3 h 20 min", "2 d 2 h"];
        assert_eq!(seconds.map(duration), expected);
    }
}
