//! `tealight ablate`

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::complete;
use super::shared::{ConfigFile, positive};
use crate::system::device::DeviceName;

const EXAMPLES: &str = "\
Examples:
  tealight ablate configs/weather/dotmod.toml --vary model.position.kind=none,learned,rotary
  tealight ablate my.toml --vary model.n_layers=1,2 --vary model.n_heads=1,4 --seeds 5
  tealight ablate my.toml --vary 'model.init={kind=\"normal\",std=0.1},{kind=\"fan_in\"}' --dry-run

An interrupted ablation continues when the same command is run again.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ablate {
    #[command(flatten)]
    pub(crate) config: ConfigFile,
    /// A setting and the values to compare; if the option is repeated, all combinations are trained
    #[arg(long, value_name = "KEY=VALUE,VALUE…", add = ArgValueCompleter::new(complete::setting))]
    pub(crate) vary: Vec<String>,
    /// Number of seeds (3: seeds 1, 2 and 3), or a range of seeds (7-9)
    #[arg(long, default_value = "3")]
    pub(crate) seeds: Seeds,
    /// Number of runs to train in parallel
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive::<usize>)]
    pub(crate) jobs: usize,
    /// Device: cpu, cuda, cuda:N, metal or metal:N
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceName,
    /// Directory for runs and tables [default: runs/ablations/ and the name of the configuration file; with a number
    /// behind it if the table there varies other settings]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Skip combinations that cannot be built
    #[arg(long)]
    pub(crate) skip_impossible: bool,
    /// Build all combinations, list the runs, and stop before training
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the table as one JSON object, with the content of `table.json`
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) json: bool,
}

/// A range of seeds: `--seeds 3` is 1 to 3, `--seeds 7-9` is 7 to 9.
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
            _ => Err("expected a number of seeds (3: seeds 1 to 3) or a range (7-9)".to_owned()),
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
    }
}
