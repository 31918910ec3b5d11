//! Whether a launcher, such as `mpirun` or `srun`, started this process as one of several.
//!
//! | variable | set by |
//! |---|---|
//! | `OMPI_COMM_WORLD_SIZE` | `mpirun` of Open MPI |
//! | `PMI_SIZE` | `mpiexec` of MPICH, Intel MPI and Cray; `srun --mpi=pmi2` |
//! | `PMIX_RANK` | `prun`; `srun --mpi=pmix` |
//! | `SLURM_STEP_NUM_TASKS` | `srun` |
//!
//! `SLURM_NTASKS` does not count: in a script of `sbatch` it is set, too, and a plain command there is one process.

use std::ffi::OsString;
use std::fmt;

/// Looks up an environment variable.
pub(super) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The program that started this process as one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launcher {
    /// Its name, for messages.
    pub(super) name: &'static str,
    /// The environment variable that tells of the other processes.
    pub(super) variable: &'static str,
    /// The number of processes, or as many of them as the variable proves.
    pub(super) at_least: usize,
}

impl Launcher {
    /// The launcher that started several processes; `None` for a process that was started without one, or alone.
    ///
    /// All processes of a job come to the same answer.
    pub(super) fn find(variables: Variables<'_>) -> Option<Self> {
        let sized = |name, variable| {
            number(variables, variable).map(|at_least| Self { name, variable, at_least })
        };
        sized("`mpirun` of Open MPI", "OMPI_COMM_WORLD_SIZE")
            .or_else(|| sized("`mpiexec`", "PMI_SIZE"))
            .or_else(|| Self::pmix(variables))
            .or_else(|| sized("`srun`", SLURM))
            .filter(|launcher| launcher.variable == PMIX_RANK || launcher.at_least > 1)
    }

    /// What the user can do if the library does not know of the other processes.
    pub(super) fn remedy(&self) -> &'static str {
        match self.variable {
            SLURM => {
                "start them by `srun --mpi=pmix` or `srun --mpi=pmi2`, whichever the library is built for, or set \
                 `TEALIGHT_MPI` to the path of another library"
            }
            _ => {
                "it belongs to another launcher; set `TEALIGHT_MPI` to the path of the library that was installed \
                 with this one"
            }
        }
    }

    /// PMIx tells the rank and not the size, so that one process may be all there are. Slurm tells the size itself.
    fn pmix(variables: Variables<'_>) -> Option<Self> {
        let namespace = variables("PMIX_NAMESPACE").unwrap_or_default();
        if namespace.to_string_lossy().starts_with("slurm.") {
            return None;
        }
        let at_least = number(variables, PMIX_RANK)?.checked_add(1)?;
        Some(Self { name: "a launcher with PMIx", variable: PMIX_RANK, at_least })
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, variable, at_least } = self;
        match *variable {
            PMIX_RANK => write!(f, "{name} started {at_least} processes or more (`{variable}`)"),
            _ => write!(f, "{name} started {at_least} processes (`{variable}`)"),
        }
    }
}

const PMIX_RANK: &str = "PMIX_RANK";
const SLURM: &str = "SLURM_STEP_NUM_TASKS";

fn number(variables: Variables<'_>, name: &str) -> Option<usize> {
    variables(name)?.to_str()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variable and the number of processes.
    fn found(set: &[(&str, &str)]) -> Option<(&'static str, usize)> {
        let variables = |name: &str| {
            set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
        };
        Launcher::find(&variables).map(|launcher| (launcher.variable, launcher.at_least))
    }

    #[test]
    fn a_plain_process_has_no_launcher() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("OMPI_COMM_WORLD_SIZE", "")]), None);
        assert_eq!(found(&[("PMI_SIZE", "many")]), None);
    }

    #[test]
    fn each_launcher_is_found_by_its_variable() {
        for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"] {
            assert_eq!(found(&[(variable, "5")]), Some((variable, 5)));
        }
    }

    #[test]
    fn a_single_process_needs_no_library() {
        for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"] {
            assert_eq!(found(&[(variable, "1")]), None);
        }
    }

    #[test]
    fn a_script_of_sbatch_is_a_single_process() {
        assert_eq!(found(&[("SLURM_NTASKS", "5"), ("SLURM_JOB_ID", "7")]), None);
    }

    #[test]
    fn mpirun_within_a_step_of_slurm_counts() {
        let set = [("SLURM_STEP_NUM_TASKS", "2"), ("OMPI_COMM_WORLD_SIZE", "7")];
        assert_eq!(found(&set), Some(("OMPI_COMM_WORLD_SIZE", 7)));
        let set = [("SLURM_STEP_NUM_TASKS", "1"), ("PMI_SIZE", "3")];
        assert_eq!(found(&set), Some(("PMI_SIZE", 3)));
    }

    #[test]
    fn a_rank_of_pmix_proves_that_there_are_as_many_processes() {
        let set = [("PMIX_NAMESPACE", "prun-node-7@1"), ("PMIX_RANK", "4")];
        assert_eq!(found(&set), Some(("PMIX_RANK", 5)));
        // The first process must decide as the other processes do.
        assert_eq!(found(&[("PMIX_RANK", "0")]), Some(("PMIX_RANK", 1)));
    }

    #[test]
    fn a_step_of_slurm_with_pmix_tells_its_size() {
        let step = [("PMIX_NAMESPACE", "slurm.pmix.11.0"), ("PMIX_RANK", "0")];
        let of = |n| [step[0], step[1], ("SLURM_STEP_NUM_TASKS", n)];
        assert_eq!(found(&of("3")), Some(("SLURM_STEP_NUM_TASKS", 3)));
        assert_eq!(found(&of("1")), None);
    }
}
