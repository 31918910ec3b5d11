//! `tealight ablate CONFIG --vary KEY=VALUE,VALUE…`: what does each part contribute?
//!
//! ```text
//! axes ─► variants ─► all built once ─► runs, seed by seed, a process each ─► table, plots
//! ```
//!
//! Every run is one that `train` could have made, and other commands know no difference. What is on
//! the disk is the only state: the same command goes on where the last one ended, however it ended.

mod plan;
mod plots;
mod results;
mod vary;
mod work;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use tealight_train::storage::files::{replace, to_json};

use self::plan::{Plan, Run, State};
use self::results::Results;
use self::work::{Event, Outcome};
use crate::args::ablate::Ablate;
use crate::terminal::output::{log, print};

pub(crate) fn run(args: &Ablate) -> Result<()> {
    let mut plan = Plan::new(args)?;
    plan.check(args)?;
    plan.refuse(args)?;
    if args.dry_run {
        return print(&listed(&plan));
    }
    let lock = work::lock(&plan.output)?;
    // What another command has trained until it left the directory.
    plan.look(args)?;
    work::keep_config(&plan)?;

    let finished = |run: &Run| match &run.state {
        State::Finished(summary) => Some(Outcome::Finished(summary.clone())),
        State::New | State::Unfinished => None,
    };
    let outcomes: Vec<_> = plan.runs.iter().map(finished).collect();
    let is_pending = |index: &usize| outcomes[*index].is_none();
    let pending: Vec<usize> = (0..plan.runs.len()).filter(is_pending).collect();
    say(args, &in_numbers(&plan, &pending));
    let mut results = Results { plan: &plan, outcomes };
    let mut clock = Clock::new(&plan, &pending, args.jobs);
    work::train(&plan, &pending, args, &lock, |index, event| {
        say(args, &clock.describe(index, &event));
        if let Event::Ended(outcome, _) = event {
            results.outcomes[index] = Some(outcome);
            write(&results, args)?;
        }
        Ok(())
    })?;
    write(&results, args)?;
    conclude(&results, args)
}

fn say(args: &Ablate, line: &str) {
    if !args.quiet {
        log(line);
    }
}

/// `1 run`, `2 runs`
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// What `--dry-run` prints: every run, and how far it has come.
fn listed(plan: &Plan) -> String {
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

fn in_numbers(plan: &Plan, pending: &[usize]) -> String {
    let n_unfinished =
        plan.runs.iter().filter(|run| matches!(run.state, State::Unfinished)).count();
    let n_finished = plan.runs.len() - pending.len();
    let parts = [
        (pending.len() - n_unfinished, "to train"),
        (n_unfinished, "to go on with"),
        (n_finished, "finished before"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    format!(
        "{} in {}: {}",
        counted(plan.runs.len(), "run"),
        plan.output.display(),
        parts.collect::<Vec<_>>().join(", ")
    )
}

/// Counts the runs, and estimates what is left from the time that each variant has taken.
struct Clock<'a> {
    plan: &'a Plan,
    /// The variants that are still to be trained.
    left: Vec<usize>,
    n_pending: usize,
    n_started: usize,
    /// Of each run that has started, its number.
    numbers: BTreeMap<usize, usize>,
    /// The last time of each variant.
    seconds: BTreeMap<usize, f64>,
    jobs: usize,
}

impl<'a> Clock<'a> {
    fn new(plan: &'a Plan, pending: &[usize], jobs: usize) -> Self {
        let left = pending.iter().map(|&index| plan.runs[index].variant).collect();
        let (numbers, seconds) = (BTreeMap::new(), BTreeMap::new());
        Self { plan, left, n_pending: pending.len(), n_started: 0, numbers, seconds, jobs }
    }

    /// A line about a run.
    fn describe(&mut self, index: usize, event: &Event) -> String {
        let Run { variant, name, .. } = &self.plan.runs[index];
        if matches!(event, Event::Started) {
            self.n_started += 1;
            self.numbers.insert(index, self.n_started);
        }
        let number = self.numbers.get(&index).copied().unwrap_or_default();
        let place = format!("[{number}/{}] {name}", self.n_pending);
        let Event::Ended(outcome, seconds) = event else { return place };
        if let Some(at) = self.left.iter().position(|other| other == variant) {
            self.left.swap_remove(at);
        }
        match outcome {
            Outcome::Failed(message) => format!("{place}: failed: {message}{}", self.rest()),
            Outcome::Finished(summary) => {
                self.seconds.insert(*variant, *seconds);
                let metrics = summary.metrics.iter();
                let metrics = metrics.map(|(name, value)| format!("{name} {value:.4}"));
                let metrics = metrics.collect::<Vec<_>>().join("  ");
                format!("{place}: {metrics}  in {}{}", duration(*seconds), self.rest())
            }
        }
    }

    /// `, about 3 min left`, once that can be said.
    fn rest(&self) -> String {
        let known = self.seconds.len();
        if self.left.is_empty() || known == 0 {
            return String::new();
        }
        let mean = self.seconds.values().sum::<f64>() / known as f64;
        let of = |variant| self.seconds.get(variant).copied().unwrap_or(mean);
        let rest = self.left.iter().map(of).sum::<f64>() / self.jobs as f64;
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

/// The tables so far. After every run, so that an ablation that is broken off leaves what it knew.
fn write(results: &Results<'_>, args: &Ablate) -> Result<()> {
    let output = &results.plan.output;
    replace(&output.join("table.md"), results.markdown(args).as_bytes())?;
    replace(&output.join("table.csv"), results.csv().as_bytes())?;
    let json = output.join("table.json");
    replace(&json, &to_json(&json, &results.json(args))?)?;
    Ok(())
}

/// The table on stdout; an error if a run has failed.
fn conclude(results: &Results<'_>, args: &Ablate) -> Result<()> {
    let notes = lines(results.notes());
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    say(args, "");
    print(&format!("{}{}\n{notes}", results.table(), results::legend(args)))?;
    plots::draw(results, args)?;
    let output = results.plan.output.display();
    say(args, &format!("\ntables and pictures are in {output}"));
    match results.n_failed() {
        0 => Ok(()),
        n => bail!(
            "{n} of {} failed; the same command tries again",
            counted(results.plan.runs.len(), "run")
        ),
    }
}
