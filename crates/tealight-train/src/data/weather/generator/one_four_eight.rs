//! A table gives day 11 after days 1, 4 and 8: attention must find three days by their position.
//!
//! ```text
//! P(xₜ)  = initial              on three fresh days     (days 1, 5, 9 in the code; 1, 4, 8 in the text)
//! P(xₜ)  = transition[xₜ₋₁]     on the other days up to 10
//! P(x₁₁) = table[x₁, x₄, x₈]
//! ```
//!
//! In the published code, two of the days that the table reads depend on the days before them. Days after
//! day 11 have no rule and follow `transition`.

use super::{Generator, invalid, markov};
use crate::data::weather::{Distribution, sequence};
use crate::error::Result;
use crate::settings::settings;
use tealight_model::names;
use tealight_ops::rng::{Purpose, Stream};

settings! {
    /// `kind = "one_four_eight"`
    pub struct Config {
        /// The distribution of a fresh day: rain, cloud, sun. Published: `[0.3, 0.4, 0.3]`.
        pub initial: Distribution = markov::Config::default().initial,
        /// The distributions of the day after rain, after cloud and after sun. Published: as for `markov`.
        pub transition: [Distribution; 3] = markov::Config::default().transition,
        /// The fresh days. Published: `"coded"`.
        pub positions: Positions = Positions::Coded,
        /// Day 11 in tenths, `[rain, cloud, sun]`, after RRR, RRC, RRS, RCR, … SSS on days 1, 4 and 8.
        pub table: Vec<[u8; 3]> = TABLE.to_vec(),
        /// Draws another table: each row uniform over the 36 ways to write 10 as i + j + k, all ≥ 1.
        pub table_seed: Option<u64> = None,
    }
}

names! {
    /// The days that do not depend on the day before.
    pub enum Positions {
        /// Days 1, 5 and 9, as in the published code.
        "coded" => Coded,
        /// Days 1, 4 and 8, as in the published text.
        "text" => Text,
    }
}

/// Fresh days, Markov days, and a table for day 11.
#[derive(Clone, Debug)]
pub struct OneFourEight {
    initial: Distribution,
    transition: [Distribution; 3],
    fresh: [usize; 3],
    /// The distributions of day 11 after RRR, RRC, RRS, RCR, … SSS on days 1, 4 and 8.
    table: [Distribution; N_KEYS],
}

/// The days before day 11.
const WINDOW: usize = 10;
/// The days that the table reads, counted from 0.
const READ: [usize; 3] = [0, 3, 7];
/// 3 kinds of weather on 3 days.
const N_KEYS: usize = 27;
/// The published table. Row SCS is printed as 2 6 1, which sums to 9; the published limits (majority .3759, Bayes .5525
/// and .9403) follow from 2 6 2.
#[rustfmt::skip]
const TABLE: [[u8; 3]; N_KEYS] = [
    [6, 3, 1], [4, 3, 3], [4, 2, 4], [4, 5, 1], [3, 2, 5], [3, 5, 2], [5, 1, 4], [6, 2, 2], [4, 1, 5],
    [3, 5, 2], [2, 6, 2], [7, 2, 1], [1, 8, 1], [4, 4, 2], [1, 3, 6], [5, 1, 4], [5, 4, 1], [5, 3, 2],
    [7, 2, 1], [2, 3, 5], [1, 5, 4], [6, 2, 2], [7, 1, 2], [2, 6, 2], [1, 4, 5], [1, 3, 6], [2, 3, 5],
];

impl Config {
    /// Checks that every row is a distribution, and that a seed replaces no other table than the published one.
    pub fn validate(&self) -> Result<()> {
        let Self { initial, transition, .. } = self.clone();
        markov::Config { initial, transition }.validate()?;
        if self.table.len() != N_KEYS {
            let rule = "the table has 27 rows: RRR, RRC, RRS, RCR, … SSS";
            return Err(invalid("task.source.table", self.table.len(), rule));
        }
        for (i, row) in self.table.iter().enumerate() {
            if row.iter().map(|&tenth| u32::from(tenth)).sum::<u32>() != 10 {
                let rule = "the tenths of rain, cloud and sun sum to 10";
                return Err(invalid(&format!("task.source.table[{i}]"), row, rule));
            }
        }
        if let Some(seed) = self.table_seed
            && self.table != TABLE
        {
            let rule = "a table is either written out or drawn from a seed, not both";
            return Err(invalid("task.source.table_seed", seed, rule));
        }
        Ok(())
    }

    /// Builds the generator.
    pub fn build(&self) -> Result<OneFourEight> {
        self.validate()?;
        let row = |i: usize| match self.table_seed {
            Some(seed) => drawn_row(Stream::new(seed, Purpose::Task), i),
            None => self.table[i],
        };
        Ok(OneFourEight {
            initial: self.initial,
            transition: self.transition,
            fresh: match self.positions {
                Positions::Coded => [0, 4, 8],
                Positions::Text => READ,
            },
            table: std::array::from_fn(|i| row(i).map(|tenths| f64::from(tenths) / 10.)),
        })
    }
}

impl Generator for OneFourEight {
    fn memory(&self) -> usize {
        WINDOW
    }

    fn check_window(&self, window: usize) -> Result<()> {
        if window == WINDOW {
            return Ok(());
        }
        let rule = "`one_four_eight` forecasts day 11 from exactly 10 days";
        Err(invalid("task.window", window, rule))
    }

    fn next(&self, history: &[u8]) -> Distribution {
        match (history.len(), history.last()) {
            (WINDOW, _) => self.table[sequence::index(&READ.map(|day| history[day]))],
            (day, Some(&yesterday)) if !self.fresh.contains(&day) => {
                self.transition[usize::from(yesterday)]
            }
            _ => self.initial,
        }
    }
}

/// Row `i` of a drawn table: one of the 36 compositions of 10 into three parts.
fn drawn_row(stream: Stream, i: usize) -> [u8; 3] {
    let first_two = (1..9_u8).flat_map(|a| (1..10 - a).map(move |b| [a, b, 10 - a - b]));
    let compositions: Vec<_> = first_two.collect();
    compositions[stream.below(i as u64, compositions.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_days_differ_between_code_and_text() {
        let coded = Config::default().build().unwrap();
        let text = Config { positions: Positions::Text, ..Config::default() }.build().unwrap();
        let fresh = |rule: &OneFourEight| -> Vec<usize> {
            (0..10).filter(|&day| rule.next(&vec![0; day]) == [0.3, 0.4, 0.3]).collect()
        };
        assert_eq!(fresh(&coded), [0, 4, 8]);
        assert_eq!(fresh(&text), [0, 3, 7]);
        // Cloud, sun and rain on days 1, 4 and 8: row CSR.
        assert_eq!(coded.next(&[1, 0, 0, 2, 0, 0, 0, 0, 1, 1]), [0.5, 0.1, 0.4]);
    }

    #[test]
    fn a_seed_draws_a_table_of_compositions() {
        let table = |seed| {
            let config = Config { table_seed: Some(seed), ..Config::default() };
            config.build().unwrap().table.to_vec()
        };
        assert_eq!(table(5), table(5));
        assert_ne!(table(5), table(6));
        let rows: Vec<_> = (0..40).flat_map(table).collect();
        for row in &rows {
            assert!((row.iter().sum::<f64>() - 1.).abs() < 1e-12 && row.iter().all(|p| *p > 0.09));
        }
        // Each of the 36 about 1080 / 36 = 30 times.
        let counts = rows.iter().map(|row| rows.iter().filter(|other| *other == row).count());
        let (fewest, most) = counts.fold((usize::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
        assert!(fewest > 10 && most < 55, "{fewest}, {most}");
    }

    #[test]
    fn other_windows_and_half_tables_are_refused() {
        let rule = Config::default().build().unwrap();
        assert!(rule.check_window(10).is_ok());
        assert_eq!(
            rule.check_window(11).unwrap_err().to_string(),
            "`task.window` = 11: `one_four_eight` forecasts day 11 from exactly 10 days"
        );
        let error = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.build().unwrap_err().to_string()
        };
        assert!(
            error(|c| c.table.truncate(26))
                .starts_with("`task.source.table` = 26: the table has 27")
        );
        let row = error(|c| c.table[23] = [2, 6, 1]);
        assert_eq!(
            row,
            "`task.source.table[23]` = [2, 6, 1]: the tenths of rain, cloud and sun sum to 10"
        );
        let both = error(|c| (c.table[0], c.table_seed) = ([1, 1, 8], Some(2)));
        assert!(both.starts_with("`task.source.table_seed` = 2: a table is either"), "{both}");
    }
}
