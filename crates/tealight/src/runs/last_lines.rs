//! The last lines of a file of a run, which may be long.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde::de::DeserializeOwned;
use tealight_train::storage::files::open;

/// The lines of JSON that lie whole within the last `n_bytes` of the file at `path`; none if it cannot be read.
pub(crate) fn last_lines<T: DeserializeOwned>(path: &Path, n_bytes: u64) -> Vec<T> {
    let read = || {
        let mut file = open(path).ok()?;
        let len = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(n_bytes))).ok()?;
        let mut bytes = Vec::new();
        file.take(n_bytes).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    let bytes = read().unwrap_or_default();
    let lines = bytes.split(|&byte| byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_line_that_is_cut_off_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines.jsonl");
        fs::write(&path, "[1]\n[2]\n[3]\n[4").unwrap();
        assert_eq!(last_lines::<Vec<u8>>(&path, 100), [[1], [2], [3]]);
        assert_eq!(last_lines::<Vec<u8>>(&path, 8), [[3]]);
        assert!(last_lines::<Vec<u8>>(directory.path(), 8).is_empty());
    }
}
