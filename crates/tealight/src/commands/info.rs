//! `tealight info`: this build and this machine, to paste into a bug report.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use tealight_ops::{bf16_instructions, instructions, threads};
use tealight_train::communicator::mpi;
use tealight_train::data::cache;
use tealight_train::run::manifest::{CANDLE_VERSION, COMMIT};
use tealight_train::storage::hub::HubCache;

use super::devices::Found;
use crate::args::program::Info;
use crate::system::installation::installed;
use crate::system::processor;
use crate::system::variables::{SECRET, VARIABLES};
use crate::system::version::{VERSION, features, instruction_sets};
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Info) -> Result<()> {
    let about = About::now();
    if args.json { print_json(&about) } else { print(&about.text()) }
}

#[derive(Serialize)]
struct About {
    version: &'static str,
    /// `from a wheel`
    installed: &'static str,
    commit: Option<&'static str>,
    candle: &'static str,
    features: Vec<&'static str>,
    /// `release`, or `debug`, which is many times slower.
    build: &'static str,
    /// `x86_64-linux`
    platform: String,
    /// The name of the processor, where the system says it.
    processor: Option<String>,
    instructions: &'static str,
    bf16_instructions: Option<&'static str>,
    threads: usize,
    #[serde(flatten)]
    devices: Found,
    paths: BTreeMap<&'static str, Option<PathBuf>>,
    /// The variables that are set, of those that Tealight reads.
    environment: BTreeMap<&'static str, String>,
}

impl About {
    fn now() -> Self {
        let paths = [
            ("executable", env::current_exe().ok()),
            ("cache", cache::of_environment()),
            ("models of Hugging Face", HubCache::of_environment().root().map(Into::into)),
            ("MPI library", mpi::library_file()),
        ];
        let names = VARIABLES.iter().flat_map(|variables| variables.names);
        let value = |name: &&'static str| {
            let value = env::var_os(name)?.display().to_string();
            Some((*name, if *name == SECRET { "(set)".to_owned() } else { value }))
        };
        Self {
            version: VERSION,
            installed: installed(),
            commit: COMMIT,
            candle: CANDLE_VERSION,
            features: features(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            platform: format!("{}-{}", env::consts::ARCH, env::consts::OS),
            processor: processor::name(),
            instructions: instructions(),
            bf16_instructions: bf16_instructions(),
            threads: threads::count(),
            devices: Found::now(),
            paths: paths.into_iter().collect(),
            environment: names.filter_map(value).collect(),
        }
    }

    fn text(&self) -> String {
        let none = || "none".to_owned();
        let features = if self.features.is_empty() { none() } else { self.features.join(", ") };
        let mut rows = vec![
            ("tealight", format!("{} ({})", self.version, self.build)),
            ("installed", self.installed.to_owned()),
            ("commit", self.commit.unwrap_or("not recorded").to_owned()),
            ("Candle", self.candle.to_owned()),
            ("features", features),
            ("platform", self.platform.clone()),
            ("processor", self.processor.clone().unwrap_or_else(|| "unknown".to_owned())),
            ("instructions", instruction_sets()),
            ("threads", self.threads.to_string()),
        ];
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(none, |path| path.display().to_string())
        };
        rows.extend(self.paths.iter().map(|(name, found)| (*name, path(found))));
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let rows = rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n"));
        let set = self.environment.iter().map(|(name, value)| format!("{name}={value}\n"));
        let (rows, set) = (rows.collect::<String>(), set.collect::<String>());
        format!("{rows}\n{}\n{set}", self.devices.text())
    }
}
