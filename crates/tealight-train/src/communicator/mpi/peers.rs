//! The other ranks, as this one sees them from outside: those on its computer are processes whose state can be read.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// A process and a number for its computer, by rank. The number is 0 if this computer is not known.
pub(super) type Place = (u32, u64);

/// The place of this process.
pub(super) fn place() -> Place {
    (std::process::id(), computer().unwrap_or(0))
}

/// A number that processes share which see each other in `/proc`; `None` on systems without it.
fn computer() -> Option<u64> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let mut hasher = DefaultHasher::new();
    (boot, namespace).hash(&mut hasher);
    Some(hasher.finish().max(1))
}

/// The other ranks.
#[derive(Debug)]
pub(super) struct Peers {
    /// Those on this computer, with their processes.
    here: Vec<(usize, u32)>,
    /// Those on other computers.
    elsewhere: Vec<usize>,
}

impl Peers {
    /// From the places of all ranks, seen by `rank`.
    pub(super) fn new(rank: usize, places: &[Place]) -> Self {
        let (_, computer) = places[rank];
        let others = || places.iter().enumerate().filter(|(other, _)| *other != rank);
        let is_here = |place: &Place| computer != 0 && place.1 == computer;
        Self {
            here: others()
                .filter(|(_, place)| is_here(place))
                .map(|(other, place)| (other, place.0))
                .collect(),
            elsewhere: others()
                .filter(|(_, place)| !is_here(place))
                .map(|(other, _)| other)
                .collect(),
        }
    }

    /// The ranks on this computer that do not run, with their processes and the reason.
    pub(super) fn stopped(&self) -> Vec<Stopped> {
        let state = |&(rank, process): &(usize, u32)| {
            let stat = Path::new("/proc").join(process.to_string()).join("stat");
            let why = reason(&fs::read_to_string(stat).ok()?)?;
            Some(Stopped { rank, process, why })
        };
        self.here.iter().filter_map(state).collect()
    }

    /// Names the ranks that do not answer: those in `stopped`, or all for which this rank cannot vouch.
    pub(super) fn name(&self, stopped: &[Stopped]) -> String {
        if let Some(Stopped { rank, process, why }) = stopped.first() {
            return format!("rank {rank}, process {process} of this computer, {why}, and");
        }
        let ranks: Vec<_> = self.elsewhere.iter().map(ToString::to_string).collect();
        match (&ranks[..], self.here.is_empty()) {
            ([rank], true) => format!("rank {rank}"),
            ([], _) => "a rank of this computer, of which none is stopped,".to_owned(),
            (_, true) => format!("one of the ranks {}", ranks.join(", ")),
            (_, false) => format!(
                "one of the ranks {} on other computers (none of this computer is stopped)",
                ranks.join(", ")
            ),
        }
    }
}

/// A rank that does not run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stopped {
    rank: usize,
    process: u32,
    why: &'static str,
}

/// Why a process does not run, from its `/proc/PID/stat`: the state follows the name, which is in parentheses and may
/// contain any characters.
fn reason(stat: &str) -> Option<&'static str> {
    let (_, fields) = stat.rsplit_once(')')?;
    match fields.split_whitespace().next()? {
        "T" => Some("is stopped by a signal"),
        "t" => Some("is stopped by a debugger"),
        "D" => Some("waits for a disk or a network file system"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_read_behind_its_name() {
        assert_eq!(reason("7 (a) T (b) T 1 7"), Some("is stopped by a signal"));
        assert_eq!(reason("7 (T) S 1 7"), None);
        assert_eq!(reason("7 (x) D 1"), Some("waits for a disk or a network file system"));
        assert_eq!(reason("7 (x)"), None);
        assert_eq!(reason(""), None);
    }

    #[test]
    fn ranks_are_named_as_far_as_one_can_know() {
        // Ranks 0, 2 and 3 on one computer, rank 1 on another.
        let places = [(5, 1), (7, 2), (11, 1), (13, 1)];
        let peers = Peers::new(0, &places);
        assert_eq!((&peers.here, &peers.elsewhere), (&vec![(2, 11), (3, 13)], &vec![1]));
        let stopped = [Stopped { rank: 3, process: 13, why: "is stopped by a signal" }];
        assert_eq!(
            peers.name(&stopped),
            "rank 3, process 13 of this computer, is stopped by a signal, and"
        );
        assert_eq!(
            peers.name(&[]),
            "one of the ranks 1 on other computers (none of this computer is stopped)"
        );
        assert_eq!(Peers::new(1, &places).name(&[]), "one of the ranks 0, 2, 3");
        assert_eq!(Peers::new(1, &places[..2]).name(&[]), "rank 0");
        // Nothing is known of other processes where the computer is not.
        assert_eq!(Peers::new(1, &[(5, 0), (7, 0)]).elsewhere, [0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_stopped_process_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let here = computer().unwrap();
        let peers = Peers::new(0, &[place(), (child.id(), here)]);
        // A process that has just begun may wait for the disk for a moment.
        let is_seen_as = |expected: &[Stopped]| {
            (0..500).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                peers.stopped() == expected
            })
        };
        assert!(is_seen_as(&[]));
        let mut stop = std::process::Command::new("kill");
        stop.arg("-STOP").arg(child.id().to_string());
        assert!(stop.status().unwrap().success());
        let why = "is stopped by a signal";
        let is_seen = is_seen_as(&[Stopped { rank: 1, process: child.id(), why }]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_seen);
    }
}
