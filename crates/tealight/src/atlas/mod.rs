//! `tealight atlas [PLAN]`: many kinds of attention on tasks whose limits are known.
//!
//! ```text
//! plan ─► pairs of panel and kind ─► cells: rates with the first seed ─► the best rate with further seeds ─► table, page
//! ```
//!
//! A cell is an ordinary run of `tealight train`. Its record in `atlas.json` counts as long as its settings are those of the
//! plan, so an interrupted atlas goes on with the same command, and several processes may share a folder.

mod cells;
mod check;
mod entries;
mod page;
mod plan;
mod record;
mod table;
mod train;
mod widths;

use std::path::PathBuf;

use anyhow::{Result, bail};
use tealight_train::storage::files::replace;

use self::cells::{Cell, Pair};
use self::plan::Plan;
use self::record::{CellRecord, FILE, Record};
use crate::args::atlas::Atlas as Args;
use crate::runs::training;
use crate::terminal::numbers::counted;
use crate::terminal::output::{log, print, print_json};

/// The file that a process locks while it writes the record.
const LOCK: &str = ".lock";
/// Where an atlas is without `--output`.
const OUTPUT: &str = "runs/atlas";

/// A plan and what is trained of it.
#[derive(Debug)]
struct Atlas {
    plan: Plan,
    /// What is trained and printed of it; all when absent.
    panels: Option<Vec<String>>,
    kinds: Option<Vec<String>>,
    pairs: Vec<Pair>,
    /// All cells, those of a pair together.
    cells: Vec<Cell>,
    record: Record,
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut atlas = Atlas::open(args)?;
    if let Some(n) = args.check {
        return check::run(&atlas, n);
    }
    if args.dry_run {
        return print(&atlas.dry_run(args.jobs));
    }
    atlas.take_in_finished_runs()?;
    atlas.write()?;
    log(&atlas.overview());
    let (mut atlas, left) = train::train(atlas, args.jobs)?;
    atlas.write()?;
    if args.json {
        print_json(&atlas.record)?;
    } else {
        print(&format!("{}\n{} {}\n", atlas.table(true), atlas.legend(), table::BRACKETS))?;
    }
    atlas.notes().iter().for_each(|note| log(note));
    log(&format!("\ntables and the page are in {}", atlas.output.display()));
    if left.n_elsewhere > 0 {
        log(&format!("{} left to other processes", counted(left.n_elsewhere, "cell")));
    }
    atlas.refuse_faults()?;
    match left.n_stopped {
        0 => Ok(()),
        n => bail!("{} stopped before the end; the same command goes on", counted(n, "cell")),
    }
}

impl Atlas {
    fn open(args: &Args) -> Result<Self> {
        let output = args.output.clone().unwrap_or_else(|| PathBuf::from(OUTPUT));
        let plan = Plan::read(args.plan.as_deref())?;
        plan.check_selection(args.panels.as_deref(), args.kinds.as_deref())?;
        let pairs = Pair::all(&plan)?;
        let mut cells = Vec::new();
        for (at, pair) in pairs.iter().enumerate().filter(|(_, pair)| pair.refused.is_none()) {
            let as_configured = plan.panels[pair.panel].as_configured;
            let rates: Vec<Option<f64>> = if as_configured {
                vec![None]
            } else {
                plan.lr.iter().copied().map(Some).collect()
            };
            for seed in 1..=plan.seeds {
                for &lr in &rates {
                    cells.push(Cell::new(&plan, &pairs, (at, lr, seed))?);
                }
            }
        }
        let mut record = Record::empty(&plan.hash);
        record.take(Record::read(&output.join(FILE))?, &cells);
        for path in &args.merge {
            if !path.exists() {
                bail!("there is no `{}`", path.display());
            }
            record.take(Record::read(path)?, &cells);
        }
        let (panels, kinds) = (args.panels.clone(), args.kinds.clone());
        Ok(Self { plan, panels, kinds, pairs, cells, record, output })
    }

    /// Whether the command line asks for the panel and the kind of a pair.
    fn is_selected(&self, pair: &Pair) -> bool {
        self.shows_panel(pair.panel) && self.shows_kind(pair.kind)
    }

    fn shows_panel(&self, panel: usize) -> bool {
        self.panels.as_ref().is_none_or(|names| names.contains(&self.plan.panels[panel].name))
    }

    fn shows_kind(&self, kind: usize) -> bool {
        self.kinds.as_ref().is_none_or(|names| names.contains(&self.plan.kinds[kind].name))
    }

    /// Writes the panels' configurations, the record, the tables and the page.
    fn write(&mut self) -> Result<()> {
        for panel in &self.plan.panels {
            panel.copy_to(&self.output.join(&panel.name))?;
        }
        self.write_results()
    }

    /// Writes the record, the tables and the page of the whole plan, after reading what other processes have written.
    fn write_results(&mut self) -> Result<()> {
        let path = self.output.join(FILE);
        let _lock = training::wait_for_lock(&self.output.join(LOCK))?;
        self.record.take(Record::read(&path)?, &self.cells);
        self.record.write(&path)?;
        replace(&self.output.join("atlas.md"), self.markdown().as_bytes())?;
        replace(&self.output.join("atlas.csv"), self.csv().as_bytes())?;
        Ok(replace(&self.output.join("atlas.html"), page::page(self).as_bytes())?)
    }

    /// The cells that the plan still needs as far as is known now: further seeds count for one rate of each pair.
    fn wanted(&self) -> Vec<&Cell> {
        let mut wanted = Vec::new();
        for (pair, of_pair) in self.pairs.iter().enumerate() {
            if of_pair.refused.is_some() || !self.is_selected(of_pair) {
                continue;
            }
            let rates = self.rates(pair);
            wanted.extend(rates.iter().filter(|cell| self.outcome(cell).is_none()));
            let further = match self.chosen(pair) {
                Some(rate) => self.seeds(pair, rate),
                None if rates.iter().all(|cell| self.outcome(cell).is_some()) => Vec::new(),
                // Some rate will be chosen.
                None => self.seeds(pair, 0),
            };
            wanted.extend(
                further.into_iter().filter(|cell| cell.seed > 1 && self.outcome(cell).is_none()),
            );
        }
        wanted
    }

    fn overview(&self) -> String {
        let wanted = self.wanted().len();
        let count =
            |n: usize, shows: &dyn Fn(usize) -> bool| (0..n).filter(|&at| shows(at)).count();
        let n_kinds = count(self.plan.kinds.len(), &|kind| self.shows_kind(kind));
        let n_panels = count(self.plan.panels.len(), &|panel| self.shows_panel(panel));
        let is_done =
            |cell: &&Cell| self.is_selected(&self.pairs[cell.pair]) && self.outcome(cell).is_some();
        format!(
            "{} on {} in {}: {} to train, {} finished",
            counted(n_kinds, "kind"),
            counted(n_panels, "panel"),
            self.output.display(),
            counted(wanted, "cell"),
            self.cells.iter().filter(is_done).count()
        )
    }

    /// The output of `--dry-run`.
    fn dry_run(&self, jobs: usize) -> String {
        let wanted = self.wanted();
        let open: Vec<String> = self.open_cells().iter().map(|cell| cell.name.clone()).collect();
        let further = wanted.len() - open.len();
        let further =
            (further > 0).then(|| format!("{further} further seeds of rates to be chosen"));
        let lines: Vec<String> = open.into_iter().chain(further).chain(self.notes()).collect();
        let left = train::time_left(self, &wanted, jobs);
        format!("{}\n{}{left}\n", lines.join("\n"), self.overview())
    }

    /// Fails if a score is above its limit.
    fn refuse_faults(&self) -> Result<()> {
        let cells = self.cells.iter().filter(|cell| self.is_selected(&self.pairs[cell.pair]));
        for cell in cells {
            if let Some(CellRecord { is_fault: true, failure: Some(failure), .. }) =
                self.outcome(cell)
            {
                bail!("{}: {failure}", cell.name);
            }
        }
        Ok(())
    }
}
