//! How much memory this process holds and has held, and how much is left, where the system says so
//! (Linux).

use std::fs;

/// Bytes that are in memory now.
pub(crate) fn resident() -> Option<u64> {
    read("VmRSS:")
}

/// The most bytes that have been in memory at once, since the start or [`reset_peak`].
pub(crate) fn peak() -> Option<u64> {
    read("VmHWM:")
}

/// Forgets the peak so far. Whether that could be done is seen by [`peak`] alone: where it could not,
/// the peak includes what came before.
pub(crate) fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes of the whole machine.
pub(crate) fn total() -> Option<u64> {
    find(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Bytes that the system could still give away, or the control group where that has less.
pub(crate) fn available() -> Option<u64> {
    let system = find(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    Some(left_in_group().map_or(system, |left| system.min(left)))
}

/// What a container may still take: `memory.max` is a number, or `max` for no limit.
fn left_in_group() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let number = |name: &str| -> Option<u64> { read(name)?.trim().parse().ok() };
    // What files are cached in is given back when it is needed.
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
    fn a_process_has_held_at_least_what_it_holds() {
        let (resident, peak) = (resident().unwrap(), peak().unwrap());
        assert!(resident > 0 && peak > 0 && available().unwrap() > 0 && total().unwrap() > 0);
    }
}
