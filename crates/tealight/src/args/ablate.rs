//! `tealight ablate`

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::positive;
use crate::system::device::DeviceName;

const ABLATE_EXAMPLES: &str = "\
Examples:
  tealight ablate configs/weather/dotmod.toml --vary model.position.kind=none,learned,rotary
  tealight ablate my.toml --vary model.n_layers=1,2 --vary model.n_heads=1,4 --seeds 5
  tealight ablate my.toml --vary 'model.init={kind=\"normal\",std=0.1},{kind=\"fan_in\"}' --dry-run

The same command again goes on where it was interrupted.";

#[derive(Args, Debug)]
#[command(after_help = ABLATE_EXAMPLES)]
pub(crate) struct Ablate {
    /// A TOML file: what all runs have in common
    #[arg(value_name = "CONFIG")]
    pub(crate) config: PathBuf,
    /// The values of a setting to compare; several times for every combination
    #[arg(long, value_name = "KEY=VALUE,VALUE…")]
    pub(crate) vary: Vec<String>,
    /// Change a setting of all runs: `--set training.steps=600` (may be given several times)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// How many seeds (3: seeds 1, 2 and 3), or which (7-9)
    #[arg(long, default_value = "3")]
    pub(crate) seeds: Seeds,
    /// How many runs are trained at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(crate) jobs: usize,
    /// Where to compute: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
    /// The directory for runs and tables; runs/ablations/ and the name of the file unless given
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Leave out combinations that cannot be built
    #[arg(long)]
    pub(crate) skip_impossible: bool,
    /// Build every combination, list the runs, and stop
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// No log, only the table
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// `--seeds 3` are 1, 2 and 3; `--seeds 7-9` are 7, 8 and 9.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(RangeInclusive<u64>);

impl Seeds {
    pub(crate) fn iter(&self) -> RangeInclusive<u64> {
        self.0.clone()
    }

    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.0.end() - self.0.start()).map_or(usize::MAX, |n| n.saturating_add(1))
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let seeds = match text.split_once('-') {
            Some((first, last)) => {
                number(first).zip(number(last)).map(|(first, last)| first..=last)
            }
            None => number(text).map(|n| 1..=n),
        };
        match seeds {
            Some(seeds) if !seeds.is_empty() => Ok(Self(seeds)),
            _ => {
                Err("expected how many (3: seeds 1 to 3), or from which to which (7-9)".to_owned())
            }
        }
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start(), self.0.end()) {
            (1, last) => write!(f, "{last}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_counted_or_given() {
        let seeds =
            |text: &str| text.parse::<Seeds>().map(|seeds| seeds.iter().collect::<Vec<_>>());
        assert_eq!(seeds("3"), Ok(vec![1, 2, 3]));
        assert_eq!(seeds("7-9"), Ok(vec![7, 8, 9]));
        for text in ["0", "", "x", "-1", "3-", "5-4", "1,2", "1.5"] {
            assert!(seeds(text).is_err(), "{text}");
        }
        assert_eq!("0-18446744073709551615".parse::<Seeds>().unwrap().count(), usize::MAX);
        assert_eq!("3".parse::<Seeds>().unwrap().to_string(), "3");
    }
}
