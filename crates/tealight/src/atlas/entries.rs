//! What a kind reaches on a panel: the rate that its validation loss chooses, and the scores of all seeds at that rate.

use super::Atlas;
use super::cells::Cell;
use super::plan::Column;
use super::record::{CellRecord, Score};

/// The state of a kind on a panel.
#[derive(Clone, Debug)]
pub(super) enum Entry<'a> {
    /// It is not trained there.
    Absent,
    /// It cannot be trained there, because of this.
    Refused(&'a str),
    /// Every run at every rate has failed, the first with this message.
    Failed(&'a str),
    /// Some of its runs are missing.
    Waiting,
    Trained(Trained<'a>),
}

/// The finished runs of a kind on a panel.
#[derive(Clone, Debug)]
pub(super) struct Trained<'a> {
    /// The rate of the least validation loss; `None`: that of the configuration.
    pub(super) lr: Option<f64>,
    /// The cells of the first seed at the other rates.
    pub(super) others: Vec<&'a CellRecord>,
    /// The cells at that rate, by seed.
    pub(super) seeds: Vec<(&'a str, &'a CellRecord)>,
    /// Parameters outside of embedding and output.
    pub(super) parameters: u64,
}

/// The scores of all seeds in a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scores {
    pub(super) median: Score,
    /// In ascending order.
    pub(super) all: Vec<f64>,
    /// The difference between the best and the worst of the rates, with the first seed.
    pub(super) sensitivity: f64,
}

impl<'a> Atlas {
    /// The state of kind `kind` on panel `panel`.
    pub(super) fn entry(&'a self, panel: usize, kind: usize) -> Entry<'a> {
        let found = self.pairs.iter().position(|pair| (pair.panel, pair.kind) == (panel, kind));
        let Some(pair) = found else { return Entry::Absent };
        if let Some(message) = &self.pairs[pair].refused {
            return Entry::Refused(message);
        }
        let rates = self.rates(pair);
        let Some(of_rates) =
            rates.iter().map(|cell| self.outcome(cell)).collect::<Option<Vec<_>>>()
        else {
            return Entry::Waiting;
        };
        let Some(chosen) = self.chosen(pair) else {
            let no_loss = "no evaluation had a finite validation loss";
            return Entry::Failed(
                of_rates.iter().find_map(|record| record.failure.as_deref()).unwrap_or(no_loss),
            );
        };
        let lr = rates[chosen].lr;
        let others = of_rates
            .iter()
            .enumerate()
            .filter(|(at, record)| *at != chosen && record.failure.is_none());
        let seeds = self.seeds(pair, chosen);
        let finished = seeds.iter().map(|cell| Some((cell.name.as_str(), self.outcome(cell)?)));
        let Some(finished) = finished.collect::<Option<Vec<_>>>() else { return Entry::Waiting };
        Entry::Trained(Trained {
            lr,
            others: others.map(|(_, record)| *record).collect(),
            seeds: finished.into_iter().filter(|(_, record)| record.failure.is_none()).collect(),
            parameters: self.pairs[pair].parameters,
        })
    }

    /// The cells of the first seed, one for each rate.
    pub(super) fn rates(&self, pair: usize) -> Vec<&Cell> {
        self.cells.iter().filter(|cell| cell.pair == pair && cell.seed == 1).collect()
    }

    /// The rate whose first seed has the least validation loss; `None` unless all are finished and one has not failed.
    pub(super) fn chosen(&self, pair: usize) -> Option<usize> {
        let losses = self.rates(pair).into_iter().map(|cell| {
            let record = self.outcome(cell)?;
            Some(
                record
                    .validation_loss
                    .filter(|_| record.failure.is_none())
                    .unwrap_or(f64::INFINITY),
            )
        });
        let losses = losses.collect::<Option<Vec<f64>>>()?;
        let best = losses.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1))?;
        (best.1 < f64::INFINITY).then_some(best.0)
    }

    /// The cells at a rate that the table shows: the first seed alone if it is at the limit of every column.
    pub(super) fn seeds(&self, pair: usize, rate: usize) -> Vec<&Cell> {
        let lr = self.rates(pair)[rate].lr;
        let all = self.cells.iter().filter(|cell| cell.pair == pair && cell.lr == lr);
        let first_is_enough = |cell: &&Cell| {
            cell.seed == 1 && self.outcome(cell).is_some_and(CellRecord::is_at_limit)
        };
        let all: Vec<&Cell> = all.collect();
        if all.iter().any(first_is_enough) {
            return all.into_iter().filter(|cell| cell.seed == 1).collect();
        }
        all
    }

    /// The record of a cell that is finished or has failed.
    pub(super) fn outcome(&'a self, cell: &Cell) -> Option<&'a CellRecord> {
        self.record.of(cell)
    }
}

impl Trained<'_> {
    /// The scores in a column; `None` if no seed has one.
    pub(super) fn scores(&self, column: &Column) -> Option<Scores> {
        let of = |record: &CellRecord| record.scores.get(&column.title).copied();
        let mut all: Vec<Score> = self.seeds.iter().filter_map(|(_, record)| of(record)).collect();
        all.sort_by(|a, b| a.value.total_cmp(&b.value));
        let (lower, upper) = (*all.get(all.len().checked_sub(1)? / 2)?, all[all.len() / 2]);
        let median = Score { value: f64::midpoint(lower.value, upper.value), ..lower };
        let first = self.seeds.first().and_then(|(_, record)| of(record));
        let rates = self.others.iter().filter_map(|record| of(record)).chain(first);
        let rates: Vec<f64> = rates.map(|score| score.value).collect();
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = rates.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let all = all.into_iter().map(|score| score.value).collect();
        Some(Scores { median, all, sensitivity: greatest - least })
    }

    /// The mean of a value over the seeds.
    pub(super) fn mean(&self, value: impl Fn(&CellRecord) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.seeds.iter().filter_map(|(_, record)| value(record)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}

impl Scores {
    /// `.982 (.971–.990)`: the median, and the least and greatest of several.
    pub(super) fn text(&self) -> String {
        let median = short(self.median.value);
        match &self.all[..] {
            [least, .., greatest] => format!("{median} ({}–{})", short(*least), short(*greatest)),
            _ => median,
        }
    }
}

/// A score without its zero: `.982`, `1.000`; below .1 with four places: `−.0123`.
pub(super) fn short(value: f64) -> String {
    let places = if value != 0. && value.abs() < 0.1 { 4 } else { 3 };
    let text = format!("{value:.places$}");
    match text.strip_prefix('-') {
        Some(rest) => format!("−{}", rest.strip_prefix('0').unwrap_or(rest)),
        None => text.strip_prefix('0').unwrap_or(&text).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_short() {
        let texts = [0.98249, 1., -0.0123, 0., 0.05].map(short);
        assert_eq!(texts, [".982", "1.000", "−.0123", ".000", ".0500"]);
    }

    #[test]
    fn the_median_of_the_seeds_is_shown_beside_the_least_and_the_greatest() {
        let score = |value| Score { value, error: None, limit: Some(1.) };
        let scores =
            |all: &[f64]| Scores { median: score(0.9), all: all.to_vec(), sensitivity: 0. };
        assert_eq!(scores(&[0.8, 0.9, 0.95]).text(), ".900 (.800–.950)");
        assert_eq!(scores(&[0.9]).text(), ".900");
    }
}
