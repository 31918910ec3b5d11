//! The table of an atlas as text, Markdown and CSV.

use tealight_train::task::table::{Table, thousands};

use super::Atlas;
use super::entries::{Entry, Trained, short};
use super::plan::{Column, Kind, Panel};
use crate::terminal::numbers::MEBIBYTE;

/// The accuracy on positions behind the length of training from which a kind that a theorem bars is looked at again.
const SUSPICIOUS: f64 = 0.1;

/// What the numbers in brackets are.
pub(super) const BRACKETS: &str = "In brackets: the least and the greatest seed.";

impl Atlas {
    /// All columns, each with its panel.
    pub(super) fn columns(&self) -> Vec<(usize, &Column)> {
        let panels = self.plan.panels.iter().enumerate();
        let panels = panels.filter(|(_, panel)| panel.joins.is_none());
        panels
            .flat_map(|(at, panel)| panel.columns.iter().map(move |column| (at, column)))
            .collect()
    }

    /// A row for each kind, the medians and their marks: of the whole plan, or of what the command line asks for.
    pub(super) fn table(&self, only_selected: bool) -> Table {
        let mut columns = self.columns();
        columns.retain(|&(panel, _)| !only_selected || self.shows_panel(panel));
        let heading = columns.iter().map(|(panel, column)| self.heading(*panel, column));
        let mut table = Table::new(["kind".to_owned()].into_iter().chain(heading));
        table.row(["limit".to_owned()].into_iter().chain(columns.iter().map(|(panel, column)| {
            self.limit(*panel, column).map_or_else(|| "–".to_owned(), short)
        })));
        let kinds = self.plan.kinds.iter().enumerate();
        for (kind, row) in kinds.filter(|(at, _)| !only_selected || self.shows_kind(*at)) {
            let cells = columns.iter().map(|&(panel, column)| self.cell(panel, kind, column));
            table.row([row.name.clone()].into_iter().chain(cells));
        }
        table
    }

    fn heading(&self, panel: usize, column: &Column) -> String {
        let Panel { title, columns, .. } = &self.plan.panels[panel];
        if columns.len() == 1 { title.clone() } else { format!("{title}, {}", column.title) }
    }

    /// The limit of a column, which any finished cell tells.
    pub(super) fn limit(&self, panel: usize, column: &Column) -> Option<f64> {
        (0..self.plan.kinds.len()).find_map(|kind| match self.entry(panel, kind) {
            Entry::Trained(trained) => trained.scores(column)?.median.limit,
            _ => None,
        })
    }

    fn cell(&self, panel: usize, kind: usize, column: &Column) -> String {
        match self.entry(panel, kind) {
            Entry::Absent => String::new(),
            Entry::Refused(_) => "–".to_owned(),
            Entry::Failed(_) => "failed".to_owned(),
            Entry::Waiting => "…".to_owned(),
            Entry::Trained(trained) => match trained.scores(column) {
                Some(scores) => {
                    format!("{}{}", scores.text(), self.marks(panel, kind, column, &trained))
                }
                None => "failed".to_owned(),
            },
        }
    }

    /// `=`: at the limit; `b`: barred by a theorem, `b!` if it scores nevertheless; `h`: weights set by hand reach the limit.
    pub(super) fn marks(
        &self,
        panel: usize,
        kind: usize,
        column: &Column,
        trained: &Trained<'_>,
    ) -> String {
        let Some(scores) = trained.scores(column) else { return String::new() };
        let (Panel { name, .. }, Kind { barred, hand_set, .. }) =
            (&self.plan.panels[panel], &self.plan.kinds[kind]);
        let is_barred = barred.contains_key(name);
        let marks = [
            (scores.median.is_at_limit(), "="),
            (is_barred, "b"),
            (is_barred && scores.median.value > SUSPICIOUS, "!"),
            (hand_set.contains(name), "h"),
        ];
        let marks: String = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
        if marks.is_empty() { marks } else { format!(" {marks}") }
    }

    /// A row for each kind and panel: what was chosen, and what it took.
    pub(super) fn details(&self) -> Table {
        let heading = [
            "panel",
            "kind",
            "rate",
            "runs",
            "90 % after",
            "parameters",
            "state (bytes)",
            "time (s)",
            "memory (MiB)",
        ];
        let mut table = Table::new(heading);
        for (at, panel) in self.plan.panels.iter().enumerate() {
            for (kind, row) in self.plan.kinds.iter().enumerate() {
                let Entry::Trained(trained) = self.entry(at, kind) else { continue };
                let number = |number: Option<f64>| {
                    number.map_or("–".to_owned(), |n| thousands(n.round() as u64))
                };
                let state = trained.seeds.first().map(|(_, record)| {
                    record
                        .state_bytes
                        .iter()
                        .map(|&bytes| thousands(bytes))
                        .collect::<Vec<_>>()
                        .join(" / ")
                });
                table.row([
                    panel.title.clone(),
                    row.name.clone(),
                    trained.lr.map_or("–".to_owned(), |lr| lr.to_string()),
                    trained.seeds.len().to_string(),
                    number(trained.mean(|record| Some(record.steps_to_90? as f64))),
                    thousands(trained.parameters),
                    state.unwrap_or_default(),
                    format!(
                        "{:.1}",
                        trained.mean(|record| Some(record.seconds)).unwrap_or(f64::NAN)
                    ),
                    number(
                        trained.mean(|record| Some(record.peak_memory_bytes? as f64 / MEBIBYTE)),
                    ),
                ]);
            }
        }
        table
    }

    /// The legend below the table: what the numbers and marks mean.
    pub(super) fn legend(&self) -> String {
        let Self { plan, .. } = self;
        let by_hand = plan.kinds.iter().any(|kind| !kind.hand_set.is_empty());
        let by_hand =
            if by_hand { " h: weights set by hand reach the limit of the task." } else { "" };
        let rates: Vec<String> = plan.lr.iter().map(ToString::to_string).collect();
        format!(
            "Each number is the median over the seeds, at the rate with the least validation loss of {}. =: within a standard \
             error or .001 of the limit. b: a theorem bars it; b!: a theorem bars it, but it scores above .1.{by_hand} –: \
             cannot be trained there. failed: no run ended well. …: runs are missing.",
            rates.join(", ")
        )
    }

    /// Faults and refusals, a line for each.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (at, panel) in self.plan.panels.iter().enumerate() {
            for (kind, row) in self.plan.kinds.iter().enumerate() {
                match self.entry(at, kind) {
                    Entry::Refused(message) => {
                        notes.push(format!("{}, {}: {message}", panel.title, row.name));
                    }
                    Entry::Failed(message) => {
                        let line = message.lines().next().unwrap_or_default();
                        notes.push(format!("{}, {}: failed: {line}", panel.title, row.name));
                    }
                    _ => {}
                }
            }
        }
        notes
    }

    /// Both tables in Markdown.
    pub(super) fn markdown(&self) -> String {
        let notes: Vec<String> =
            self.notes().into_iter().map(|note| format!("- {note}\n")).collect();
        let notes = if notes.is_empty() { String::new() } else { format!("\n{}", notes.concat()) };
        format!(
            "{}\n{} {BRACKETS}\n\nPlan: `{}`.\n\n{}{notes}",
            self.table(false).markdown(),
            self.legend(),
            self.plan.hash,
            self.details().markdown()
        )
    }

    /// A line for each score of each finished cell, with unrounded numbers.
    pub(super) fn csv(&self) -> String {
        let mut text =
            "cell,column,value,standard_error,limit,lr,seed,steps,seconds,hash\n".to_owned();
        for cell in &self.cells {
            let Some(record) = self.outcome(cell) else { continue };
            for (column, score) in &record.scores {
                let number = |number: Option<f64>| number.map_or(String::new(), |n| n.to_string());
                let line = [
                    format!("\"{}\"", cell.name),
                    format!("\"{column}\""),
                    score.value.to_string(),
                    number(score.error),
                    number(score.limit),
                    number(cell.lr),
                    cell.seed.to_string(),
                    record.steps.to_string(),
                    record.seconds.to_string(),
                    record.hash.clone(),
                ];
                text += &(line.join(",") + "\n");
            }
        }
        text
    }
}
