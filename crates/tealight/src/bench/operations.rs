//! The time of a step by operation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tealight_ops::profile::{Part, Phase, Time};
use tealight_train::task::table::Table;

/// The time of an operation in a mean step.
#[derive(Debug, Serialize)]
pub(super) struct Share {
    pub(super) operation: &'static str,
    /// `None` for work outside the model, such as the optimizer.
    pass: Option<&'static str>,
    calls: f64,
    pub(super) milliseconds: f64,
}

/// The operations of a mean step, slowest first, and the remaining time.
pub(super) fn shares(
    profile: &BTreeMap<Part, Time>,
    n_steps: usize,
    elapsed: Duration,
) -> Vec<Share> {
    let per_step = |time: Duration| time.as_secs_f64() * 1e3 / n_steps as f64;
    let share = |(part, time): (&Part, &Time)| Share {
        operation: part.name,
        pass: match part.phase {
            Phase::Forward => Some("forward"),
            Phase::Backward => Some("backward"),
            Phase::Other => None,
        },
        calls: time.count as f64 / n_steps as f64,
        milliseconds: per_step(time.total),
    };
    let mut shares: Vec<Share> = profile.iter().map(share).collect();
    shares.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
    let timed = profile.values().map(|time| time.total).sum();
    shares.push(Share {
        operation: "all else",
        pass: None,
        calls: 1.,
        milliseconds: per_step(elapsed.saturating_sub(timed)),
    });
    shares
}

/// One row per operation and pass.
pub(super) fn table(shares: &[Share]) -> Table {
    let total: f64 = shares.iter().map(|share| share.milliseconds).sum();
    let mut table = Table::new(["operation", "calls", "ms", "share"]);
    for Share { operation, pass, calls, milliseconds } in shares {
        let name = pass.map_or(operation.to_string(), |pass| format!("{operation}, {pass}"));
        let share = 100. * milliseconds / total;
        let cells = [format!("{calls:.0}"), format!("{milliseconds:.3}"), format!("{share:.1} %")];
        table.row([name].into_iter().chain(cells));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_a_mean_step_and_sum_to_its_time() {
        let time = |count, ms| Time { count, total: Duration::from_millis(ms) };
        let profile = BTreeMap::from([
            (Part { name: "linear", phase: Phase::Forward }, time(8, 20)),
            (Part { name: "linear", phase: Phase::Backward }, time(8, 40)),
        ]);
        let shares = shares(&profile, 2, Duration::from_millis(100));
        let rows = shares.iter().map(|s| (s.operation, s.pass, s.calls, s.milliseconds));
        let expected = [
            ("linear", Some("backward"), 4., 20.),
            ("linear", Some("forward"), 4., 10.),
            ("all else", None, 1., 20.),
        ];
        assert!(rows.eq(expected));
        let table = table(&shares).to_string();
        assert!(table.contains("linear, backward       4   20.000   40.0 %"), "{table}");
        assert!(table.contains("all else               1   20.000   40.0 %"), "{table}");
    }
}
