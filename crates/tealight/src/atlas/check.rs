//! `tealight atlas --check N`: trains some cells again and compares them with the record.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use tealight_ops::instructions;
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::run::RunDirectory;
use tealight_train::storage::clock::since_1970;

use super::Atlas;
use super::cells::Cell;
use super::record::CellRecord;
use crate::runs::training;
use crate::terminal::output::{log, print};

const SECONDS_OF_A_DAY: u64 = 86_400;
/// Standard errors by which the scores of unlike processors may differ.
const ERRORS: f64 = 2.;

/// Trains `n` cells that the date chooses. On a processor with the same instructions the hashes must be equal; on another,
/// the scores whose standard errors are known, within two of them.
pub(super) fn run(atlas: &Atlas, n: usize) -> Result<()> {
    let done = |cell: &&Cell| {
        atlas.is_selected(&atlas.pairs[cell.pair])
            && atlas.outcome(cell).is_some_and(|record| record.failure.is_none())
    };
    let finished: Vec<&Cell> = atlas.cells.iter().filter(done).collect();
    if finished.is_empty() {
        bail!("no cell of the plan is in the record; `--merge FILE` reads one");
    }
    let day = since_1970().as_secs() / SECONDS_OF_A_DAY;
    let order = Stream::new(day, Purpose::Data).permutation(finished.len());
    let folder = tempfile::tempdir()?;
    let mut n_other = 0;
    let chosen: Vec<&Cell> = order.into_iter().take(n).map(|at| finished[at]).collect();
    for cell in &chosen {
        let before = atlas.outcome(cell).expect("invariant: it is finished");
        log(&cell.name);
        let after = train(atlas, cell, folder.path())?;
        let verdict = compare(before, &after);
        n_other += usize::from(verdict.is_err());
        let (Ok(text) | Err(text)) = verdict;
        print(&format!("{}: {text}\n", cell.name))?;
    }
    if n_other > 0 {
        bail!("{n_other} of {} retrained cells differ from the record", chosen.len());
    }
    Ok(())
}

fn train(atlas: &Atlas, cell: &Cell, folder: &Path) -> Result<CellRecord> {
    let panel = &atlas.plan.panels[atlas.pairs[cell.pair].panel];
    let job = cell.job(folder, false);
    panel.copy_to(&job.runs)?;
    let Some(lock) = training::lock(&cell.lock_path(folder))? else {
        bail!("the folder of the check is locked")
    };
    let summary = job.train(&lock, 1)?.map_err(|message| anyhow!("{}: {message}", cell.name))?;
    let Some(directory) = RunDirectory::last(&job.runs, &job.name)? else {
        bail!("{}: the run is gone", cell.name)
    };
    CellRecord::of_run(cell, panel, &cell.config(panel)?, &directory, &summary)
}

/// Whether a cell that was trained again is as before, and how.
fn compare(before: &CellRecord, after: &CellRecord) -> Result<String, String> {
    if before.hash == after.hash {
        return Ok(format!("the same weights, {}", before.hash));
    }
    if before.instructions == after.instructions {
        return Err(format!(
            "other weights on a processor with the same instructions: {} is now {}",
            before.hash, after.hash
        ));
    }
    for (title, old) in &before.scores {
        let Some(new) = after.scores.get(title) else { return Err(format!("{title} is missing")) };
        let (Some(error), Some(other)) = (old.error, new.error) else { continue };
        let allowed = (ERRORS * error.hypot(other)).max(1e-3);
        if (old.value - new.value).abs() > allowed {
            return Err(format!("{title} was {:.4} and is {:.4}", old.value, new.value));
        }
    }
    Ok(format!("trained with {}, and scores alike with {}", before.instructions, instructions()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::record::Score;
    use super::*;

    #[test]
    fn like_processors_must_give_the_same_bits_and_others_like_scores() {
        let record = |hash: &str, instructions: &str, value| {
            let cell = Cell::example("recall/softmax,seed=1");
            let score = Score { value, error: Some(0.01), limit: Some(1.) };
            CellRecord {
                hash: hash.to_owned(),
                instructions: instructions.to_owned(),
                scores: BTreeMap::from([("far".to_owned(), score)]),
                ..CellRecord::failed(&cell, None)
            }
        };
        let before = record("a", "avx2", 0.9);
        assert!(compare(&before, &record("a", "avx512", 0.9)).is_ok());
        assert!(compare(&before, &record("b", "avx2", 0.9)).unwrap_err().contains("other weights"));
        assert!(compare(&before, &record("b", "avx512", 0.92)).is_ok());
        assert!(
            compare(&before, &record("b", "avx512", 0.95)).unwrap_err().contains("far was 0.9000")
        );
    }
}
