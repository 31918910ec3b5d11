//! What a person sees while a run goes on: a bar on a terminal, lines elsewhere. All on stderr.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use tealight_train::Result;
use tealight_train::observer::{Event, Observer, StepReport};
use tealight_train::task::table::thousands;
use tealight_train::text::corpus::Progress;
use tealight_train::text::store::Stage;

use super::output::log;

/// The observer that suits stderr.
pub(crate) fn progress() -> Box<dyn Observer> {
    if stderr().is_terminal() { Box::new(Bar::default()) } else { Box::new(Lines::default()) }
}

/// How far a corpus has been read or tokenised: a bar, on a terminal.
#[derive(Debug, Default)]
pub(crate) struct Preparation {
    bar: Option<(Stage, ProgressBar)>,
}

impl Preparation {
    pub(crate) fn draw(&mut self, stage: Stage, progress: Progress) {
        if !stderr().is_terminal() {
            return;
        }
        let Progress { done, total } = progress;
        let is_drawn = |(drawn, _): &(Stage, ProgressBar)| *drawn == stage;
        if !self.bar.as_ref().is_some_and(is_drawn) {
            self.clear();
            let style = ProgressStyle::with_template("{bar:28.yellow/dim} {msg}  {percent} %");
            let style = style.expect("invariant: the template is valid");
            let message = match stage {
                Stage::Reading => "reading the text",
                Stage::Tokenising => "tokenising the text",
            };
            let bar = ProgressBar::new(total).with_style(style.progress_chars("█▉░"));
            self.bar = Some((stage, bar.with_message(message)));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A progress bar, with evaluations scrolling by above it.
#[derive(Debug, Default)]
struct Bar {
    bar: Option<ProgressBar>,
}

const TEMPLATE: &str =
    "{bar:28.yellow/dim} step {human_pos}/{human_len}  {msg}  {elapsed} elapsed, {eta} left";

impl Observer for Bar {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::RunStarted { step, total_steps, .. } => {
                let style = ProgressStyle::with_template(TEMPLATE);
                let style = style.expect("invariant: the template is valid");
                let bar = ProgressBar::new(*total_steps).with_style(style.progress_chars("█▉░"));
                bar.set_position(*step);
                bar.reset_eta();
                self.bar = Some(bar);
            }
            Event::Step(report) => {
                let Some(bar) = &self.bar else { return Ok(()) };
                bar.set_position(report.step);
                bar.set_message(measures(report));
            }
            Event::Finished { .. } => {
                if let Some(bar) = self.bar.take() {
                    bar.finish_and_clear();
                }
                if let Some(line) = describe(event) {
                    log(&line);
                }
            }
            other => {
                if let (Some(bar), Some(line)) = (&self.bar, describe(other)) {
                    bar.println(line);
                }
            }
        }
        Ok(())
    }
}

/// A line now and then: at most one in two seconds for steps, one for each other event.
#[derive(Debug, Default)]
struct Lines {
    total_steps: u64,
    started: Option<(Instant, u64)>,
    last: Option<Instant>,
}

const SECONDS_BETWEEN_LINES: f64 = 2.;

impl Observer for Lines {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::RunStarted { step, total_steps, .. } => {
                self.total_steps = *total_steps;
                self.started = Some((Instant::now(), *step));
            }
            Event::Step(report) => {
                let due = self
                    .last
                    .is_none_or(|last| last.elapsed().as_secs_f64() >= SECONDS_BETWEEN_LINES);
                if due || report.step == self.total_steps {
                    self.last = Some(Instant::now());
                    log(&format!(
                        "step {}/{}  {}  {}",
                        report.step,
                        self.total_steps,
                        measures(report),
                        self.time_left(report.step)
                    ));
                }
            }
            other => {
                if let Some(line) = describe(other) {
                    log(&line);
                }
            }
        }
        Ok(())
    }
}

impl Lines {
    fn time_left(&self, step: u64) -> String {
        let Some((since, first)) = self.started else { return String::new() };
        let done = step.saturating_sub(first).max(1) as f64;
        let left = since.elapsed().as_secs_f64() / done * (self.total_steps - step) as f64;
        format!("{left:.0} s left")
    }
}

fn measures(report: &StepReport<'_>) -> String {
    let (rate, unit) = match report.tokens_per_second {
        Some(rate) => (rate, "tokens/s"),
        None => (report.examples_per_second, "examples/s"),
    };
    format!(
        "loss {:.4}  lr {:.2e}  {} {unit}",
        report.loss,
        report.lr,
        thousands(rate.round() as u64)
    )
}

fn describe(event: &Event<'_>) -> Option<String> {
    match event {
        Event::Evaluated { step, split, metrics } => {
            Some(format!("step {step}  {split}  {}", listed(metrics)))
        }
        Event::NotRecorded { why } => Some(format!(
            "`training.cuda_graphs`: the pass of a step is made kernel by kernel, because it cannot be recorded: {why}"
        )),
        Event::Skipped { trouble } => Some(format!("{trouble}: passed over")),
        Event::RolledBack { trouble, to, lr_factor, .. } => Some(format!(
            "{trouble}: back to step {to}, and on at {lr_factor} times the learning rate"
        )),
        Event::EarlyStopped { step, metric, best } => {
            let best = best.map_or(String::new(), |best| {
                format!(", the best was {:.4} at step {}", best.value, best.step)
            });
            Some(format!("step {step}: stopped early, `{metric}` no longer improves{best}"))
        }
        Event::Finished { step, seconds } => {
            Some(format!("trained to step {} in {seconds:.1} s", thousands(*step)))
        }
        _ => None,
    }
}

fn listed(metrics: &BTreeMap<String, f64>) -> String {
    let parts: Vec<String> =
        metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    parts.join("  ")
}
