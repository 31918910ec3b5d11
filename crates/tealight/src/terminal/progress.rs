//! Progress on stderr: a bar on a terminal, otherwise log lines.

use std::collections::BTreeMap;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use tealight_train::Result;
use tealight_train::data::{Progress, Stage};
use tealight_train::observer::{Event, Observer, StepReport};
use tealight_train::task::table::thousands;

use super::escape::visible;
use super::output::log;
use super::style::can_redraw;
use super::verbosity::{is_quiet, is_verbose};

const TRAINING_TEMPLATE: &str =
    "{bar:28.yellow/dim} step {human_pos}/{human_len}  {msg}  {elapsed} elapsed, {eta} left";
const PREPARATION_TEMPLATE: &str = "{bar:28.yellow/dim} {msg}  {percent} %";

fn new_bar(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.expect("invariant: the templates are valid").progress_chars("█▉░");
    ProgressBar::new(length).with_style(style)
}

/// A bar for reading and tokenising a corpus; on a terminal only. A bar is cleared when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Preparation {
    bar: Option<(Stage, ProgressBar)>,
    /// The latest stage whose bar has reached its end.
    ended: Option<Stage>,
}

impl Preparation {
    pub(crate) fn draw(&mut self, stage: Stage, Progress { done, total }: Progress) {
        if !can_redraw() || is_quiet() || self.ended == Some(stage) {
            return;
        }
        let message = match stage {
            Stage::Reading => "reading the data",
            Stage::Tokenising => "tokenising the text",
            Stage::Decoding => "decoding the pictures",
        };
        let bar = match self.bar.take() {
            Some((drawn, bar)) if drawn == stage => bar,
            _ => new_bar(total, PREPARATION_TEMPLATE).with_message(message),
        };
        bar.set_length(total);
        bar.set_position(done);
        if done < total {
            self.bar = Some((stage, bar));
        } else {
            self.ended = Some(stage);
        }
    }
}

/// Reports the progress of training. On a terminal it is a bar, with other events logged above it; elsewhere and under
/// `--verbose` lines: one for each event, of steps at most one every two seconds, or under `--verbose` all.
#[derive(Debug, Default)]
pub(crate) struct ProgressObserver {
    bar: Option<ProgressBar>,
    total_steps: u64,
    /// Start time and first step.
    started: Option<(Instant, u64)>,
    /// Time of the last line about a step.
    last: Option<Instant>,
    /// Whether a remark on an evaluation has been told; it is told once.
    has_remarked: bool,
}

const SECONDS_BETWEEN_LINES: f64 = 2.;

impl Observer for ProgressObserver {
    fn observe(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::RunStarted { step, total_steps, .. } => {
                self.total_steps = *total_steps;
                self.started = Some((Instant::now(), *step));
                if can_redraw() && !is_verbose() {
                    let bar = new_bar(*total_steps, TRAINING_TEMPLATE);
                    bar.set_position(*step);
                    bar.reset_eta();
                    self.bar = Some(bar);
                }
            }
            Event::Step(report) => match &self.bar {
                Some(bar) => {
                    bar.set_position(report.step);
                    bar.set_message(measures(report));
                }
                None => self.log_step(report),
            },
            Event::Remark { .. } if self.has_remarked => return Ok(()),
            Event::Remark { .. } => self.has_remarked = true,
            // Clears the bar.
            Event::Finished { .. } => self.bar = None,
            _ => {}
        }
        match (describe(event), &self.bar) {
            (Some(line), Some(bar)) => bar.println(visible(&line)),
            (Some(line), None) => log(&line),
            (None, _) => {}
        }
        Ok(())
    }
}

impl ProgressObserver {
    fn log_step(&mut self, report: &StepReport<'_>) {
        let (step, total) = (report.step, self.total_steps);
        let is_due = |last: Instant| last.elapsed().as_secs_f64() >= SECONDS_BETWEEN_LINES;
        if self.last.is_none_or(is_due) || step == total || is_verbose() {
            self.last = Some(Instant::now());
            log(&format!("step {step}/{total}  {}  {}", measures(report), self.time_left(step)));
        }
    }

    /// `12 s left`, from the mean time per step.
    fn time_left(&self, step: u64) -> String {
        let Some((started, first)) = self.started else { return String::new() };
        let done = step.saturating_sub(first).max(1) as f64;
        let left = started.elapsed().as_secs_f64() / done * (self.total_steps - step) as f64;
        format!("{left:.0} s left")
    }
}

/// Loss, learning rate and throughput.
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

/// The log line of an event other than a step, if it has one.
fn describe(event: &Event<'_>) -> Option<String> {
    match event {
        Event::Evaluated { step, split, metrics } => {
            Some(format!("step {step}  {split}  {}", metrics_line(metrics)))
        }
        Event::Remark { step, text } => Some(format!("step {step}  {text}")),
        Event::GraphNotCaptured { reason } => Some(format!(
            "`training.cuda_graphs` has no effect: the step cannot be captured as a CUDA graph: {reason}"
        )),
        Event::Skipped { bad_step } => Some(format!("{bad_step}: step skipped")),
        Event::RolledBack { bad_step, to, lr_factor, .. } => Some(format!(
            "{bad_step}: rolled back to step {to}, learning rate scaled by {lr_factor}"
        )),
        Event::EarlyStopped { step, metric, best, is_at_target } => {
            let best = best.map_or(String::new(), |best| {
                format!(", the best was {:.4} at step {}", best.value, best.step)
            });
            let why = if *is_at_target { "has reached its target" } else { "no longer improves" };
            Some(format!("step {step}: stopped early, `{metric}` {why}{best}"))
        }
        Event::Finished { step, seconds } => {
            Some(format!("trained to step {} in {seconds:.1} s", thousands(*step)))
        }
        _ => None,
    }
}

/// `accuracy 0.5000  loss 0.6931`
pub(crate) fn metrics_line(metrics: &BTreeMap<String, f64>) -> String {
    let parts: Vec<String> =
        metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    parts.join("  ")
}
