//! `tealight ablate CONFIG --vary KEY=VALUE,VALUE…`
//!
//! ```text
//! axes ─► variants ─► dry run of each ─► runs, seed by seed, one process each ─► table, charts
//! ```
//!
//! Each run is an ordinary run of `tealight train`. All state is on disk: the same command continues an
//! interrupted ablation.

mod place;
mod plan;
mod plots;
mod results;
mod variants;
mod workers;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use tealight_train::storage::files::{replace, to_json};

use self::place::TABLE;
use self::plan::{CONFIG, Plan, Run, State};
use self::workers::Event;
use crate::args::ablate::Ablate;
use crate::terminal::numbers::{counted, duration};
use crate::terminal::output::{log, print, print_json};
use crate::terminal::progress::metrics_line;

pub(crate) fn run(args: &Ablate) -> Result<()> {
    let mut plan = Plan::new(args)?;
    plan.build()?;
    plan.refuse_impossible()?;
    if args.dry_run {
        return print(&dry_run(&plan));
    }
    let lock = workers::lock(&plan.output)?;
    // Another command may have trained runs before the lock was free.
    place::check(&plan.output, &plan.axes)?;
    plan.find_runs()?;
    replace(&plan.output.join(CONFIG), plan.text.as_bytes())?;
    if !plan.output.join(TABLE).exists() {
        // From now on an ablation of other settings takes another directory.
        write_tables(&plan)?;
    }

    let is_pending = |index: &usize| plan.runs[*index].outcome().is_none();
    let pending: Vec<usize> = (0..plan.runs.len()).filter(is_pending).collect();
    log(&overview(&plan));
    let mut seconds = BTreeMap::new();
    // The workers read a copy, because the runs change.
    workers::train(&plan.clone(), &pending, &lock, |position, event| {
        let run = &mut plan.runs[pending[position]];
        let place = format!("[{}/{}] {}", position + 1, pending.len(), run.name);
        let Event::Ended(outcome, taken) = event else {
            log(&place);
            return Ok(());
        };
        let result = match &outcome {
            Err(message) => format!("failed: {message}"),
            Ok(summary) => {
                seconds.insert(run.variant, taken);
                format!("{}  in {}", metrics_line(&summary.metrics), duration(taken))
            }
        };
        run.state = State::Ended(outcome);
        log(&format!("{place}: {result}{}", time_left(&plan, &seconds)));
        // After each run, so that an interrupted ablation leaves tables.
        write_tables(&plan)
    })?;
    write_tables(&plan)?;
    print_results(&plan)
}

/// The output of `--dry-run`: all runs with their states.
fn dry_run(plan: &Plan<'_>) -> String {
    let state = |run: &Run| match run.state {
        State::New => "",
        State::Unfinished => "    unfinished",
        State::Ended(_) => "    finished",
    };
    let runs = plan.runs.iter().map(|run| format!("{}{}", run.name, state(run)));
    lines(runs.chain(plan.notes()))
}

fn lines(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().map(|line| line + "\n").collect()
}

/// `4 runs in runs/ablations/tiny: 2 to train, 2 already finished`
fn overview(plan: &Plan<'_>) -> String {
    let count = |is: fn(&State) -> bool| plan.runs.iter().filter(|run| is(&run.state)).count();
    let parts = [
        (count(|state| matches!(state, State::New)), "to train"),
        (count(|state| matches!(state, State::Unfinished)), "to resume"),
        (count(|state| matches!(state, State::Ended(_))), "already finished"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    format!(
        "{} in {}: {}",
        counted(plan.runs.len(), "run"),
        plan.output.display(),
        parts.collect::<Vec<_>>().join(", ")
    )
}

/// `, about 3 min left`, if runs remain and one has finished. `seconds` are the latest durations, by variant.
fn time_left(plan: &Plan<'_>, seconds: &BTreeMap<usize, f64>) -> String {
    let mut remaining = plan.runs.iter().filter(|run| run.outcome().is_none()).peekable();
    if remaining.peek().is_none() || seconds.is_empty() {
        return String::new();
    }
    let mean = seconds.values().sum::<f64>() / seconds.len() as f64;
    let rest: f64 = remaining.map(|run| seconds.get(&run.variant).unwrap_or(&mean)).sum();
    format!(", about {} left", duration(rest / plan.args.jobs as f64))
}

/// Writes `table.md`, `table.csv` and `table.json`.
fn write_tables(plan: &Plan<'_>) -> Result<()> {
    replace(&plan.output.join("table.md"), plan.markdown().as_bytes())?;
    replace(&plan.output.join("table.csv"), plan.csv().as_bytes())?;
    let json = plan.output.join(TABLE);
    Ok(replace(&json, &to_json(&json, &plan.json())?)?)
}

/// Prints the table and draws the charts; an error if a run has failed.
fn print_results(plan: &Plan<'_>) -> Result<()> {
    let notes = lines(plan.notes());
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    log("");
    if plan.args.json {
        print_json(&plan.json())?;
    } else {
        print(&format!("{}{}\n{notes}", plan.table(), plan.legend()))?;
    }
    plots::draw(plan)?;
    log(&format!("\ntables and charts are in {}", plan.output.display()));
    match plan.runs.iter().filter_map(Run::failure).count() {
        0 => Ok(()),
        n => bail!(
            "{n} of {} failed; the same command retries them",
            counted(plan.runs.len(), "run")
        ),
    }
}
