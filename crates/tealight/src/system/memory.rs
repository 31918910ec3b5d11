//! Memory of this process and of the machine in bytes; `None` on systems without `/proc`.

use std::fs;

/// Resident memory of this process.
pub(crate) fn resident() -> Option<u64> {
    find_in("/proc/self/status", "VmRSS:")
}

/// Peak resident memory of this process since its start or since [`reset_peak`].
pub(crate) fn peak() -> Option<u64> {
    find_in("/proc/self/status", "VmHWM:")
}

/// Resets [`peak`] (`proc_pid_clear_refs(5)`). Where the system does not permit that, the peak
/// still includes earlier memory.
pub(crate) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Total memory of the machine.
pub(crate) fn total() -> Option<u64> {
    find_in("/proc/meminfo", "MemTotal:")
}

/// Memory that this process can still allocate: of the machine, or of its control group if that
/// has less.
pub(crate) fn available() -> Option<u64> {
    let system = find_in("/proc/meminfo", "MemAvailable:")?;
    Some(available_in_cgroup().map_or(system, |group| system.min(group)))
}

/// Memory left in the control group of a container; `None` if `memory.max` is `max`, no limit.
fn available_in_cgroup() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let number = |name: &str| -> Option<u64> { read(name)?.trim().parse().ok() };
    // The page cache is reclaimed on demand.
    let statistics = read("memory.stat")?;
    let cached = |line: &str| {
        line.strip_prefix("inactive_file ")
            .or(line.strip_prefix("active_file "))?
            .parse::<u64>()
            .ok()
    };
    let cached: u64 = statistics.lines().filter_map(cached).sum();
    Some((number("memory.max")? + cached).saturating_sub(number("memory.current")?))
}

fn find_in(file: &str, key: &str) -> Option<u64> {
    find(&fs::read_to_string(file).ok()?, key)
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
    fn a_process_has_held_at_least_what_it_holds() {
        let (resident, peak) = (resident().unwrap(), peak().unwrap());
        assert!(resident > 0 && peak > 0 && available().unwrap() > 0 && total().unwrap() > 0);
    }
}
