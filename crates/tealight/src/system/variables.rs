//! The environment variables that the program reads.

use std::fmt::Write as _;

/// Variables of one purpose.
pub(crate) struct Variables {
    pub(crate) names: &'static [&'static str],
    pub(crate) purpose: &'static str,
}

/// The variable that holds a secret, of which `info` says only that it is set.
pub(crate) const SECRET: &str = "TEALIGHT_TOKEN";

/// All of them. A test compares the list with the sources and with `docs/USAGE.md`.
pub(crate) const VARIABLES: [Variables; 17] = [
    Variables {
        names: &["TEALIGHT_CACHE"],
        purpose: "folder of tokenised texts and decoded pictures",
    },
    Variables {
        names: &["TEALIGHT_SIMD"],
        purpose: "instruction set: portable, neon, avx2, avx512, avx512_bf16, amx_bf16",
    },
    Variables {
        names: &["TEALIGHT_MPI"],
        purpose: "the MPI library, or none: processes do not work together",
    },
    Variables {
        names: &["TEALIGHT_RANK_TIMEOUT"],
        purpose: "seconds to wait for a process that does not answer; 0: any time",
    },
    Variables { names: &[SECRET], purpose: "the token of `serve`" },
    Variables { names: &["TEALIGHT_NCCL"], purpose: "the NCCL library" },
    Variables {
        names: &["RAYON_NUM_THREADS"],
        purpose: "number of threads, 1 to 1024; by default as many as the processor has",
    },
    Variables {
        names: &["HF_HUB_CACHE", "HF_HOME"],
        purpose: "the cache of Hugging Face, where names of models are looked up",
    },
    Variables {
        names: &["XDG_CACHE_HOME", "HOME"],
        purpose: "folder of these caches and of compiled kernels by default",
    },
    Variables { names: &["NO_COLOR"], purpose: "any value: no colours" },
    Variables { names: &["CLICOLOR"], purpose: "0: no colours" },
    Variables {
        names: &["CLICOLOR_FORCE"],
        purpose: "any value but 0: colours also where stderr is no terminal",
    },
    Variables {
        names: &["TERM"],
        purpose: "dumb: no colours, and lines in place of a progress bar",
    },
    Variables {
        names: &["TEALIGHT_COMPLETE"],
        purpose: "set by the script of `completions`: the shell that asks",
    },
    Variables {
        names: &["OPAL_PREFIX", "MPI_HOME", "MPI_ROOT", "I_MPI_ROOT", "PATH"],
        purpose: "where the MPI library of the launcher is",
    },
    Variables {
        names: &["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMIX_NAMESPACE"],
        purpose: "set by mpirun and mpiexec: one of several processes",
    },
    Variables {
        names: &["SLURM_STEP_NUM_TASKS"],
        purpose: "set by srun: one of several processes",
    },
];

/// The end of `tealight --help`.
pub(crate) fn help() -> String {
    let mut text = "Environment variables:\n".to_owned();
    for Variables { names, purpose } in &VARIABLES {
        let names = names.join(", ");
        let _ = match names.len() {
            0..=20 => writeln!(text, "  {names:<20}  {purpose}"),
            _ => writeln!(text, "  {names}\n  {:<20}  {purpose}", ""),
        };
    }
    text + EXIT_CODES
}

const EXIT_CODES: &str = "
Exit codes:
  0    done
  1    an error, or a check that failed; the message is on stderr
  2    wrong arguments
  130  training stopped by Ctrl-C (SIGINT) after a step, with a checkpoint
  138  the same by SIGUSR1 (128 + the number of the signal)
  143  the same by SIGTERM

Results go to stdout; progress, notes and errors to stderr.";
