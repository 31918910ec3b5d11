//! How much memory this process holds and has held, where the system says so (Linux).

use std::fs;

/// The most bytes that have been in memory at once.
pub(crate) fn peak() -> Option<u64> {
    read("VmHWM:")
}

fn read(key: &str) -> Option<u64> {
    find(&fs::read_to_string("/proc/self/status").ok()?, key)
}

/// `VmHWM:     12345 kB` is in units of 1024 bytes (`proc_pid_status(5)`).
fn find(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_the_systems_table() {
        let status = "Name:\tcat\nVmHWM:\t    1644 kB\nVmRSS:\t    1612 kB\n";
        assert_eq!(find(status, "VmHWM:"), Some(1644 * 1024));
        assert_eq!(find(status, "VmRSS:"), Some(1612 * 1024));
        assert_eq!(find(status, "VmSwap:"), None);
        assert_eq!(find("VmHWM: much", "VmHWM:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_has_held_something() {
        assert!(peak().unwrap() > 0);
    }
}
