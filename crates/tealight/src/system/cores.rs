//! How many threads each rank of a host computes with.

use anyhow::Result;
use tealight_train::communicator::ranks::Ranks;

/// The cores of the ranks.
pub(crate) struct Cores {
    /// This rank's share of the cores that it may use.
    pub(crate) n_threads: usize,
    /// The hosts whose ranks the launcher has bound to fewer cores than there are.
    pub(crate) warnings: Vec<String>,
}

impl Cores {
    /// Asks all ranks.
    pub(crate) fn of_rank(ranks: &Ranks) -> Result<Self> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let all = ranks.gather(&(allowed(), n_online().unwrap_or(0)))?;
        let here: Vec<_> =
            ranks.on_this_host().into_iter().map(|rank| all[rank].0.clone()).collect();
        let own = &all[ranks.rank()].0;
        let share = share(own, &here).unwrap_or(available / here.len());
        // A quota below the number of cores is one for all processes of a container.
        let share = if available < own.len() { share.min(available / here.len()) } else { share };
        let warnings = (0..ranks.size()).filter_map(|rank| warning(ranks, rank, &all)).collect();
        Ok(Self { n_threads: share.clamp(1, available), warnings })
    }
}

/// If `rank` is the first on its host, and the ranks there may not use all cores.
fn warning(ranks: &Ranks, rank: usize, all: &[(Vec<usize>, usize)]) -> Option<String> {
    let host = ranks.host(rank);
    let is_first_there = (0..rank).all(|other| ranks.host(other) != host);
    let (_, n_online) = all[rank];
    let n_bound = n_bound(ranks, rank, all).filter(|n| is_first_there && *n < n_online)?;
    Some(format!(
        "the launcher binds the processes on {host} to {n_bound} of {n_online} cores; with Open MPI, \
         `mpirun --bind-to none` frees the others"
    ))
}

/// The cores that the ranks on the host of `rank` may use together; `None` where the system does not say.
fn n_bound(ranks: &Ranks, rank: usize, all: &[(Vec<usize>, usize)]) -> Option<usize> {
    let there = (0..ranks.size()).filter(|&other| ranks.host(other) == ranks.host(rank));
    let mut cores: Vec<usize> = there.flat_map(|other| all[other].0.clone()).collect();
    cores.sort_unstable();
    cores.dedup();
    (!cores.is_empty()).then_some(cores.len())
}

/// The cores that a rank may use, each divided by the number of ranks that may use it; `None` if `own` is empty.
fn share(own: &[usize], all_here: &[Vec<usize>]) -> Option<usize> {
    let share_of = |core: &usize| {
        1. / all_here.iter().filter(|cores| cores.contains(core)).count().max(1) as f64
    };
    // A sum of thirds is rounded.
    (!own.is_empty()).then(|| (own.iter().map(share_of).sum::<f64>() + 1e-6) as usize)
}

/// The cores that this process may use; none where the system does not say.
#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or_else(
        |_| Vec::new(),
        |set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
    )
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> Vec<usize> {
    Vec::new()
}

/// The cores of this computer: `0-3,8` has five.
fn n_online() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?)
    };
    text.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_divided_among_the_ranks_that_may_use_them() {
        let all = vec![vec![0, 1, 2, 3]; 3];
        assert_eq!(share(&all[0], &all), Some(1));
        let bound = [vec![0, 1], vec![2, 3]];
        assert_eq!(share(&bound[1], &bound), Some(2));
        let half_bound = [vec![0, 1, 2, 3], vec![0, 1]];
        assert_eq!(half_bound.each_ref().map(|own| share(own, &half_bound)), [Some(3), Some(1)]);
        assert_eq!(share(&[], &[vec![], vec![]]), None);
    }
}
