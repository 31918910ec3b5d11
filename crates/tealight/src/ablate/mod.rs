//! `tealight ablate CONFIG --vary KEY=VALUE,VALUE…`
//!
//! ```text
//! axes ─► variants ─► dry run of each ─► runs, seed by seed, one process each ─► table, charts
//! ```
//!
//! Each run is an ordinary run of `tealight train`. All state is on disk: the same command continues an
//! interrupted ablation.

mod plan;
mod plots;
mod results;
mod variants;
mod workers;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use tealight_train::storage::files::{replace, to_json};

use self::plan::{Plan, Run, State};
use self::results::Results;
use self::workers::Event;
use crate::args::ablate::Ablate;
use crate::terminal::numbers::counted;
use crate::terminal::output::{log, print};
use crate::terminal::progress::metrics_line;

pub(crate) fn run(args: &Ablate) -> Result<()> {
    let mut plan = Plan::new(args)?;
    plan.build(args)?;
    plan.refuse_impossible(args)?;
    if args.dry_run {
        return print(&dry_run(&plan));
    }
    let lock = workers::lock(&plan.output)?;
    // Another command may have trained runs before the lock was free.
    plan.find_runs(args)?;
    replace(&plan.output.join(workers::CONFIG), plan.text.as_bytes())?;

    let finished = |run: &Run| match &run.state {
        State::Finished(summary) => Some(Ok(summary.clone())),
        State::New | State::Unfinished => None,
    };
    let outcomes: Vec<_> = plan.runs.iter().map(finished).collect();
    let is_pending = |index: &usize| outcomes[*index].is_none();
    let pending: Vec<usize> = (0..plan.runs.len()).filter(is_pending).collect();
    log_unless_quiet(args, &overview(&plan, &pending));
    let mut results = Results { plan: &plan, outcomes };
    let mut progress = Progress::new(&plan, &pending, args.jobs);
    workers::train(&plan, &pending, args, &lock, |index, event| {
        log_unless_quiet(args, &progress.describe(index, &event));
        if let Event::Ended(outcome, _) = event {
            results.outcomes[index] = Some(outcome);
            // After each run, so that an interrupted ablation leaves tables.
            write_tables(&results, args)?;
        }
        Ok(())
    })?;
    write_tables(&results, args)?;
    print_results(&results, args)
}

fn log_unless_quiet(args: &Ablate, line: &str) {
    if !args.quiet {
        log(line);
    }
}

/// The output of `--dry-run`: all runs with their states.
fn dry_run(plan: &Plan) -> String {
    let state = |run: &Run| match run.state {
        State::New => "",
        State::Unfinished => "    unfinished",
        State::Finished(_) => "    finished",
    };
    let runs = plan.runs.iter().map(|run| format!("{}{}", run.name, state(run)));
    let results = Results { plan, outcomes: vec![None; plan.runs.len()] };
    lines(runs.chain(results.notes()))
}

fn lines(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect()
}

/// `4 runs in runs/ablations/tiny: 2 to train, 2 finished`
fn overview(plan: &Plan, pending: &[usize]) -> String {
    let n_unfinished =
        plan.runs.iter().filter(|run| matches!(run.state, State::Unfinished)).count();
    let n_finished = plan.runs.len() - pending.len();
    let parts = [
        (pending.len() - n_unfinished, "to train"),
        (n_unfinished, "to resume"),
        (n_finished, "already finished"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    format!(
        "{} in {}: {}",
        counted(plan.runs.len(), "run"),
        plan.output.display(),
        parts.collect::<Vec<_>>().join(", ")
    )
}

/// Numbers the runs, and estimates the remaining time from the durations of finished runs.
struct Progress<'a> {
    plan: &'a Plan,
    /// The variants of the runs that have not ended.
    remaining: Vec<usize>,
    n_pending: usize,
    n_started: usize,
    /// Number of each started run, in the order of starting.
    numbers: BTreeMap<usize, usize>,
    /// Latest duration of each variant.
    seconds: BTreeMap<usize, f64>,
    jobs: usize,
}

impl<'a> Progress<'a> {
    fn new(plan: &'a Plan, pending: &[usize], jobs: usize) -> Self {
        let remaining = pending.iter().map(|&index| plan.runs[index].variant).collect();
        let (numbers, seconds) = (BTreeMap::new(), BTreeMap::new());
        Self { plan, remaining, n_pending: pending.len(), n_started: 0, numbers, seconds, jobs }
    }

    /// The log line of an event.
    fn describe(&mut self, index: usize, event: &Event) -> String {
        let Run { variant, name, .. } = &self.plan.runs[index];
        if matches!(event, Event::Started) {
            self.n_started += 1;
            self.numbers.insert(index, self.n_started);
        }
        let number = self.numbers.get(&index).copied().unwrap_or_default();
        let place = format!("[{number}/{}] {name}", self.n_pending);
        let Event::Ended(outcome, seconds) = event else { return place };
        if let Some(at) = self.remaining.iter().position(|other| other == variant) {
            self.remaining.swap_remove(at);
        }
        match outcome {
            Err(message) => format!("{place}: failed: {message}{}", self.time_left()),
            Ok(summary) => {
                self.seconds.insert(*variant, *seconds);
                let metrics = metrics_line(&summary.metrics);
                format!("{place}: {metrics}  in {}{}", duration(*seconds), self.time_left())
            }
        }
    }

    /// `, about 3 min left`, if a run has finished.
    fn time_left(&self) -> String {
        let known = self.seconds.len();
        if self.remaining.is_empty() || known == 0 {
            return String::new();
        }
        let mean = self.seconds.values().sum::<f64>() / known as f64;
        let of = |variant| self.seconds.get(variant).copied().unwrap_or(mean);
        let rest = self.remaining.iter().map(of).sum::<f64>() / self.jobs as f64;
        format!(", about {} left", duration(rest))
    }
}

/// `42.0 s`, `12 min`, `3.5 h`
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120. => format!("{s:.1} s"),
        s if s < 7200. => format!("{:.0} min", s / 60.),
        s => format!("{:.1} h", s / 3600.),
    }
}

/// Writes `table.md`, `table.csv` and `table.json`.
fn write_tables(results: &Results<'_>, args: &Ablate) -> Result<()> {
    let output = &results.plan.output;
    replace(&output.join("table.md"), results.markdown(args).as_bytes())?;
    replace(&output.join("table.csv"), results.csv().as_bytes())?;
    let json = output.join("table.json");
    replace(&json, &to_json(&json, &results.json(args))?)?;
    Ok(())
}

/// Prints the table and draws the charts; an error if a run has failed.
fn print_results(results: &Results<'_>, args: &Ablate) -> Result<()> {
    let notes = lines(results.notes());
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    log_unless_quiet(args, "");
    print(&format!("{}{}\n{notes}", results.table(), results::legend(args)))?;
    plots::draw(results, args)?;
    let output = results.plan.output.display();
    log_unless_quiet(args, &format!("\ntables and charts are in {output}"));
    match results.n_failed() {
        0 => Ok(()),
        n => bail!(
            "{n} of {} failed; the same command retries them",
            counted(results.plan.runs.len(), "run")
        ),
    }
}
