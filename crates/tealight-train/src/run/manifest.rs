//! `manifest.json`: versions, device, time and data of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use candle_core::{Device, DeviceLocation};
use serde::{Deserialize, Serialize};
use tealight_ops::{bf16_instructions, instructions};

use crate::config::Precision;
use crate::data::{DataFile, check_unchanged};
use crate::error::Result;
use crate::storage::clock;
use crate::task::imitation::MODEL;

/// The version of `manifest.json` that is written, and the newest that is read.
pub const FORMAT_VERSION: u64 = 1;

/// The release of Candle that this crate is built with; a test compares it with `Cargo.lock`.
pub const CANDLE_VERSION: &str = "0.11.1";

/// The commit of Tealight, if `TEALIGHT_COMMIT` was set when it was compiled.
pub const COMMIT: Option<&str> = option_env!("TEALIGHT_COMMIT");

/// Everything beside the configuration that a run depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the file format.
    pub format_version: u64,
    /// The release of Tealight.
    pub tealight_version: String,
    /// The release of Candle.
    pub candle_version: String,
    /// The commit of Tealight, if `TEALIGHT_COMMIT` was set when it was compiled.
    pub commit: Option<String>,
    /// `cpu`, `cuda:0` or `metal:0`.
    pub device: String,
    /// Threads of the CPU thread pool.
    pub threads: usize,
    /// The instruction sets that the numbers depend on; absent on a GPU and in older manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Instructions>,
    /// When the run started, in UTC: `2026-11-21T01:40:00Z`.
    pub started: String,
    /// The name that the run was created with, without the number of its directory; absent in older manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Sizes that depend on the data, such as `vocab_size`.
    pub sizes: BTreeMap<String, u64>,
    /// Number of scalars in all parameters.
    pub n_parameters: u64,
    /// The files that the data were read from; empty if they are generated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataFile>,
    /// The hash of the only data file, in manifests older than [`Self::data`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_fingerprint: Option<String>,
}

/// The instruction sets of a CPU that the last bits of a run's numbers depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instructions {
    /// That of f32, such as `avx512`; `amx_bf16` if large products are computed by it.
    pub f32: String,
    /// That of matrix products in bf16, such as `avx512_bf16`. Absent if `training.precision` asks for none, or if the
    /// CPU has none and they are computed in f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16: Option<String>,
}

impl Instructions {
    /// Those that a run of this precision uses in this process; `None` on a GPU.
    pub fn for_precision(precision: Precision, device: &Device) -> Option<Self> {
        let bf16 = bf16_instructions().filter(|_| precision == Precision::Bf16);
        let of_cpu = || Self { f32: instructions().to_owned(), bf16: bf16.map(str::to_owned) };
        device.is_cpu().then(of_cpu)
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bf16 {
            Some(bf16) if *bf16 != self.f32 => write!(f, "{} and {bf16}", self.f32),
            _ => f.write_str(&self.f32),
        }
    }
}

impl Manifest {
    /// The manifest of a run that starts now, in this process.
    pub fn new(device: &Device, sizes: BTreeMap<String, u64>, n_parameters: u64) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            tealight_version: env!("CARGO_PKG_VERSION").to_owned(),
            candle_version: CANDLE_VERSION.to_owned(),
            commit: COMMIT.map(str::to_owned),
            device: device_name(device),
            threads: tealight_ops::threads::count(),
            instructions: None,
            started: rfc_3339(clock::since_1970().as_secs()),
            name: None,
            sizes,
            n_parameters,
            data: Vec::new(),
            data_fingerprint: None,
        }
    }

    /// Checks that the data files, as read `now`, are the ones that the run started with. A manifest without
    /// data files accepts any. Whoever only evaluates has no teacher.
    pub fn check_data(&self, now: &[DataFile]) -> Result<()> {
        let has_teacher = now.iter().any(|file| file.key == MODEL);
        let then = self.data.iter().filter(|file| has_teacher || file.key != MODEL).cloned();
        let then: Vec<DataFile> = then.collect();
        match (&then[..], &self.data_fingerprint, now) {
            ([], Some(fingerprint), [only]) => {
                let before = DataFile { fingerprint: fingerprint.clone(), ..only.clone() };
                check_unchanged(&[before], now)
            }
            ([], ..) => Ok(()),
            (then, ..) => check_unchanged(then, now),
        }
    }
}

/// What it means that a run which started with the instructions `then` continues with `now`; `None` if they are the
/// same or not known.
pub fn changed_instructions(
    then: Option<&Instructions>,
    now: Option<&Instructions>,
) -> Option<String> {
    let (then, now) = then.zip(now).filter(|(then, now)| then != now)?;
    Some(format!(
        "the run started with the instruction set {then} and continues with {now}: its numbers will differ in the last \
         digits from those of a run on one machine"
    ))
}

/// `cpu`, `cuda:0` or `metal:0`.
pub fn device_name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

/// `2026-11-21T01:40:00Z` for the seconds since 1970.
fn rfc_3339(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn times_agree_with_date_u() {
        // `date -u -d @951782399 +%FT%TZ` and so on: the ends of months, leap days, centuries.
        let expected = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in expected {
            assert_eq!(rfc_3339(seconds), text);
        }
    }

    #[test]
    fn a_manifest_describes_this_process() {
        let sizes = BTreeMap::from([("vocab_size".into(), 31)]);
        let manifest = Manifest::new(&Device::Cpu, sizes, 1_234);
        assert_eq!(manifest.device, "cpu");
        assert!(manifest.threads > 0 && manifest.started.as_str() > "2025");
        let text = serde_json::to_string(&manifest).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest);
    }

    #[test]
    fn a_change_of_instructions_is_explained() {
        let with = |bf16: Option<&str>| Instructions {
            f32: "avx512".to_owned(),
            bf16: bf16.map(str::to_owned),
        };
        let (then, now) = (with(Some("amx_bf16")), with(None));
        let message = changed_instructions(Some(&then), Some(&now)).unwrap();
        assert!(message.contains("avx512 and amx_bf16 and continues with avx512"), "{message}");
        assert_eq!(changed_instructions(Some(&then), Some(&then)), None);
        assert_eq!(changed_instructions(None, Some(&now)), None);
        let amx = Instructions { f32: "amx_bf16".to_owned(), ..then.clone() };
        let message = changed_instructions(Some(&amx), Some(&now)).unwrap();
        assert!(message.contains("set amx_bf16 and continues with avx512"), "{message}");
        assert_eq!(Instructions::for_precision(Precision::F32, &Device::Cpu).unwrap().bf16, None);
        let bf16 = Instructions::for_precision(Precision::Bf16, &Device::Cpu).unwrap().bf16;
        assert_eq!(bf16.as_deref(), bf16_instructions());
    }

    #[test]
    fn data_that_have_changed_are_named_and_older_manifests_are_read() {
        let silent = Manifest::new(&Device::Cpu, BTreeMap::new(), 5);
        let text = serde_json::to_string(&silent).unwrap();
        assert!(!text.contains("data"));
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), silent);
        let data = |hash| vec![DataFile::new("task.source.path", Path::new("days.txt"), hash)];
        silent.check_data(&data(7)).unwrap();
        let old = Manifest { data_fingerprint: Some(format!("{:016x}", 7)), ..silent.clone() };
        for manifest in [Manifest { data: data(7), ..silent }, old] {
            manifest.check_data(&data(7)).unwrap();
            let message = manifest.check_data(&data(8)).unwrap_err().to_string();
            let expected = "`task.source.path`: `days.txt` has changed since the run began";
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn the_version_of_candle_is_the_locked_one() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap();
        let entry = format!("name = \"candle-core\"\nversion = \"{CANDLE_VERSION}\"\n");
        assert!(lock.contains(&entry));
    }

    #[test]
    fn now_is_a_time_of_this_century() {
        let now = rfc_3339(clock::since_1970().as_secs());
        assert!(now.starts_with("20") && now.ends_with('Z') && now.len() == 20, "{now}");
    }
}
