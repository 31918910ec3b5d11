//! Several processes of an MPI job. Tests that need MPI run where `mpirun` is found; `scripts/cluster_check.sh`
//! installs it and checks more.

use std::process::Command;

use crate::program::{Folder, Outcome, Result};

/// `mpirun -n N` of the program, or `None` where there is no MPI, which the test then says.
#[expect(clippy::print_stderr, reason = "a test that checks nothing says so")]
fn mpirun(folder: &Folder, n: usize, args: &[&str]) -> Option<Command> {
    let Ok(version) = Command::new("mpirun").arg("--version").output() else {
        eprintln!("skipped: no mpirun");
        return None;
    };
    let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
    let mut command = Command::new("mpirun");
    command.args(["-n", &n.to_string()]);
    if is_open_mpi {
        command.args(["--oversubscribe", "--bind-to", "none"]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    }
    command.arg(env!("CARGO_BIN_EXE_tealight")).args(args).current_dir(folder.path(""));
    Some(command)
}

/// The bytes of a run's last checkpoint that are its weights and the state of its optimizer.
fn result(folder: &Folder, run: &str) -> Result<[Vec<u8>; 2]> {
    let file = |name| folder.path(&format!("runs/{run}/checkpoints/step-000006/{name}"));
    Ok([std::fs::read(file("model.safetensors"))?, std::fs::read(file("optimizer.safetensors"))?])
}

const FOUR: [&str; 2] = ["--set", "training.micro_batches=4"];

#[test]
fn processes_of_mpi_train_the_model_of_one_process() -> Result {
    let folder = Folder::new()?;
    let alone =
        folder.succeed(&[&["train", "tiny.toml", "--name", "alone"], &FOUR[..]].concat())?;
    for n in [2, 4] {
        let name = format!("of_{n}");
        let args = [&["train", "tiny.toml", "--name", &name], &FOUR[..]].concat();
        let Some(mut command) = mpirun(&folder, n, &args) else { return Ok(()) };
        let outcome = Outcome::run(&mut command)?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert_eq!(outcome.stdout, alone.stdout);
        assert!(result(&folder, &name)? == result(&folder, "alone")?, "{n} processes");
    }
    Ok(())
}

#[test]
fn processes_that_do_not_divide_the_micro_batches_are_refused_once() -> Result {
    let folder = Folder::new()?;
    let args = [&["train", "tiny.toml"], &FOUR[..]].concat();
    let Some(mut command) = mpirun(&folder, 3, &args) else { return Ok(()) };
    let Outcome { code, stderr, .. } = Outcome::run(&mut command)?;
    assert_ne!(code, Some(0));
    let rule = "3 processes cannot share 4 evenly; the nearest that can be shared: 3 and 6";
    assert_eq!(stderr.matches(rule).count(), 1, "{stderr}");
    assert!(!folder.path("runs").exists());
    Ok(())
}

/// As started by a launcher that started two processes.
fn launched(folder: &Folder, args: &[&str], library: Option<&str>) -> Result<Outcome> {
    let mut command = folder.command(args);
    command.env("OMPI_COMM_WORLD_SIZE", "2").env_remove("TEALIGHT_MPI");
    command.envs(library.map(|library| ("TEALIGHT_MPI", library)));
    Outcome::run(&mut command)
}

#[test]
fn a_process_that_cannot_reach_the_others_is_refused() -> Result {
    let folder = Folder::new()?;
    let refused = launched(&folder, &["train", "tiny.toml"], Some("/nowhere/libmpi.so"))?;
    refused.assert_refused(&["TEALIGHT_MPI", "/nowhere/libmpi.so"]);
    assert!(!folder.path("runs").exists());
    launched(&folder, &["train", "tiny.toml"], Some("none"))?;
    assert!(folder.path("runs/tiny").exists());
    Ok(())
}

#[test]
fn commands_of_one_process_are_refused_in_several() -> Result {
    let folder = Folder::new()?;
    launched(&folder, &["devices"], None)?.assert_refused(&["OMPI_COMM_WORLD_SIZE", "bench comm"]);
    folder.refuse(&["bench", "comm"], &["no other process", "mpirun -n 2"])?;
    assert_eq!(launched(&folder, &["devices"], Some("none"))?.code, Some(0));
    Ok(())
}

#[test]
fn the_settings_of_several_processes_are_checked() -> Result {
    let folder = Folder::new()?;
    folder.refuse_settings(&["distributed.bucket_mb=0"], &["distributed.bucket_mb", "above 0"])?;
    folder.refuse_settings(&["distributed.compress=\"int8\""], &["int8", "none", "bf16"])?;
    folder.refuse_settings(&["distributed.transport=\"rdma\""], &["rdma", "host", "nccl"])?;
    folder.refuse_settings(&["distributed.shards=2"], &["distributed.shards"])
}
