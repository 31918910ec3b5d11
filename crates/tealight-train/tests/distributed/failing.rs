//! What happens on one rank happens on all: an error, a panic, a NaN, a stop. Whatever ends a job, a resumed run equals
//! one that was never interrupted.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::Result;
use crate::four;
use crate::job::{Answer, Fault, Job, Parameters, resume, run};
use crate::outcome::Outcome;
use crate::tiny::tiny;
use candle_core::{Tensor, Var};
use tealight_train::communicator::Communicator;
use tealight_train::communicator::threads::ThreadRank;
use tealight_train::data::DataFile;
use tealight_train::{CommunicationError, Error};

use tealight_train::observer::{Event, Observer};
use tealight_train::run::Checkpoints;
use tealight_train::training::distributed::join::Identity;

/// Batch 4·7 + 2 is that of micro-batch 2 in step 8: of rank 1 of two, of rank 2 of four.
const IN_STEP_8: u64 = 30;

fn checkpoints(directory: &Path) -> Checkpoints {
    Checkpoints::new(directory.join("checkpoints"))
}

/// The errors of all ranks.
fn errors(answers: Vec<Answer>) -> Vec<String> {
    answers.into_iter().map(|answer| answer.expect_err("all ranks end")).collect()
}

#[test]
fn a_stop_that_one_rank_is_asked_for_stops_all_with_a_checkpoint() -> Result {
    let directory = tempfile::tempdir()?;
    let config = four(&[])?;
    let job = Job::new(&config, 4, 12, directory.path());
    let steps = Job { is_stopped: &|rank| rank == 2, ..job }.run();
    assert_eq!(steps, vec![Ok(1); 4]);
    assert_eq!(checkpoints(directory.path()).latest()?, Some(1));
    Ok(())
}

/// Asserts that all ranks refuse a job for a reason that contains `expected`, and that nothing is written.
fn assert_refused(change: impl FnOnce(&mut Job<'_>), n: usize, expected: &str) -> Result {
    let directory = tempfile::tempdir()?;
    let config = tiny(&["training.micro_batches=6", "optimizer.kind=adamw"])?;
    let mut job = Job::new(&config, n, 12, directory.path());
    change(&mut job);
    for message in errors(job.run()) {
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(fs::read_dir(directory.path())?.count(), 0);
    Ok(())
}

#[test]
fn ranks_whose_settings_differ_are_refused_by_name_before_anything_is_written() -> Result {
    let refused = |n, change: &str, expected: &str| {
        let changed = tiny(&["training.micro_batches=6", "optimizer.kind=adamw", change])?;
        assert_refused(|job| job.configs[n - 1] = changed, n, expected)
    };
    refused(
        3,
        "optimizer.lr=0.5",
        "rank 2 on host differs from rank 0 on host: `optimizer.lr` = 0.5, not 0.001",
    )?;
    refused(2, "model.d_model=36", "`model.d_model` = 36, not 33")?;
    refused(
        4,
        "seed=17",
        "4 processes cannot share 6 evenly; the nearest that can be shared: 4 and 8",
    )
}

#[test]
fn ranks_whose_program_or_data_differ_are_refused_by_name() -> Result {
    let first = Identity {
        program: "tealight 0.1.0 (00aa)".to_owned(),
        arguments: "start a run".to_owned(),
        data: vec![DataFile::new("task.source.path", Path::new("days.txt"), 7)],
    };
    let refused = |change: fn(&mut Identity), expected: &str| {
        let same = |job: &mut Job<'_>| {
            job.identities.fill(first.clone());
            change(&mut job.identities[1]);
        };
        let expected = format!("rank 1 on host differs from rank 0 on host: {expected}");
        assert_refused(same, 3, &expected)
    };
    refused(
        |other| other.program = "tealight 0.1.0 (00ab)".to_owned(),
        "the program is tealight 0.1.0 (00ab), not tealight 0.1.0 (00aa)",
    )?;
    refused(
        |other| other.arguments = "resume a run".to_owned(),
        "it was asked to resume a run, not to start a run",
    )?;
    refused(
        |other| other.data.clear(),
        "it does not have the data `task.source.path`: days.txt (",
    )?;
    refused(
        |other| other.data.push(DataFile::new("task.source.path", Path::new("more.txt"), 7)),
        "only it has the data `task.source.path`: more.txt (",
    )?;
    refused(
        |other| other.data = vec![DataFile::new("task.source.path", Path::new("days.txt"), 8)],
        "it does not have the data `task.source.path`: days.txt (0000000000000007)",
    )
}

#[test]
fn an_error_or_a_panic_on_one_rank_ends_all_with_a_checkpoint() -> Result {
    let config = four(&[])?;
    let whole = run(&config, &[(1, 12)])?;
    for (fault, expected) in [
        (Fault::Unreadable, "the shard has gone"),
        (Fault::Panic, "step 8: the program failed, which is a bug: the thread has lost its way"),
    ] {
        for (n, rank) in [(2, 1), (4, 2)] {
            let directory = tempfile::tempdir()?;
            let job = Job::new(&config, n, 12, directory.path());
            let answers = Job { fault: Some((fault, IN_STEP_8)), ..job }.run();
            for (own, message) in errors(answers).into_iter().enumerate() {
                let whose = format!("rank {rank} on host: ");
                assert!(message.contains(expected), "{message}");
                assert_eq!(message.starts_with(&whose), own != rank, "{message}");
            }
            assert_eq!(checkpoints(directory.path()).latest()?, Some(7));
            // Resumed by another number of ranks, nothing is lost.
            let resumed = resume(&config, &[(1, 12)], directory.path())?;
            resumed.assert_same(&whole, &format!("{n} ranks"));
        }
    }
    Ok(())
}

#[test]
fn a_loss_that_is_nan_on_one_rank_is_one_for_all() -> Result {
    let kinds = ["stop", "skip", "roll_back"];
    for kind in kinds.map(|kind| format!("training.bad_step.kind={kind}")) {
        for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
            let config = four(&[&kind, shard])?;
            let outcome = |n| -> Result<(Vec<Answer>, Outcome)> {
                let directory = tempfile::tempdir()?;
                let job = Job::new(&config, n, 12, directory.path());
                let answers = Job { fault: Some((Fault::Nan, IN_STEP_8)), ..job }.run();
                Ok((answers, Outcome::read(directory.path(), 0)?))
            };
            let (alone, expected) = outcome(1)?;
            for n in [2, 4] {
                let (answers, outcome) = outcome(n)?;
                assert!(answers.iter().all(|answer| *answer == alone[0]), "{answers:?}");
                outcome.assert_same(&expected, &format!("{kind}, {shard}, {n} ranks"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_origin_of_a_nan_is_found_by_the_rank_that_has_its_batch() -> Result {
    let config = four(&["training.bad_step.kind=stop"])?;
    let diagnosed = |n| {
        let directory = tempfile::tempdir()?;
        let job = Job::new(&config, n, 12, directory.path());
        let answers = Job { fault: Some((Fault::StaysNan, IN_STEP_8)), ..job }.run();
        Ok::<_, Box<dyn std::error::Error>>(errors(answers))
    };
    let alone = diagnosed(1)?;
    assert!(
        alone[0].contains("the result of `silu`") && alone[0].contains("of the pass over batch 30"),
        "{alone:?}"
    );
    for n in [2, 4] {
        assert_eq!(diagnosed(n)?, vec![alone[0].clone(); n]);
    }
    Ok(())
}

/// An observer that is a function.
struct Calls<F>(F);

impl<F: FnMut(&Event<'_>) -> tealight_train::Result<()>> Observer for Calls<F> {
    fn observe(&mut self, event: &Event<'_>) -> tealight_train::Result<()> {
        (self.0)(event)
    }
}

#[test]
fn an_observer_that_fails_on_rank_0_ends_all_and_nothing_is_lost() -> Result {
    type Fails = fn(&Event<'_>) -> bool;
    // Of the first event only rank 0 knows; a checkpoint is an undertaking of all ranks.
    let cases: [(Fails, _); 2] = [
        (
            |event| matches!(event, Event::Step(report) if report.step == 8),
            "rank 0 has ended the job",
        ),
        (
            |event| matches!(event, Event::CheckpointSaving { step: 10 }),
            "rank 0 on host: no space is left",
        ),
    ];
    let config = four(&[])?;
    let whole = run(&config, &[(1, 12)])?;
    for (fails, elsewhere) in cases {
        let directory = tempfile::tempdir()?;
        let observers = |rank, _| -> Vec<Box<dyn Observer>> {
            let observe = move |event: &Event<'_>| {
                let fails = rank == 0 && fails(event);
                if fails { Err(Error::config(["log"], "no space is left")) } else { Ok(()) }
            };
            vec![Box::new(Calls(observe))]
        };
        let job = Job::new(&config, 4, 12, directory.path());
        let messages = errors(Job { observers: &observers, ..job }.run());
        assert_eq!(messages, ["no space is left", elsewhere, elsewhere, elsewhere]);
        resume(&config, &[(2, 12)], directory.path())?.assert_same(&whole, elsewhere);
    }
    Ok(())
}

#[test]
fn a_checkpoint_that_rank_0_cannot_write_ends_all_and_nothing_is_lost() -> Result {
    let config = four(&[])?;
    let directory = tempfile::tempdir()?;
    let latest = directory.path().join("checkpoints/latest");
    let observers = |rank, _| -> Vec<Box<dyn Observer>> {
        let latest: PathBuf = latest.clone();
        let obstruct = move |event: &Event<'_>| {
            if rank == 0 && matches!(event, Event::CheckpointSaving { step: 10 }) {
                // The pointer cannot replace a directory.
                fs::remove_file(&latest).and_then(|()| fs::create_dir(&latest)).expect("a pointer");
            }
            Ok(())
        };
        vec![Box::new(Calls(obstruct))]
    };
    let job = Job::new(&config, 2, 12, directory.path());
    let messages = errors(Job { observers: &observers, ..job }.run());
    assert!(messages[0].contains("checkpoints/latest"), "{messages:?}");
    assert!(messages[1].starts_with("rank 0 on host: "), "{messages:?}");
    assert!(messages[1].contains(&messages[0]), "{messages:?}");
    fs::remove_dir(&latest)?;
    resume(&config, &[(4, 12)], directory.path())?
        .assert_same(&run(&config, &[(1, 12)])?, "resumed");
    Ok(())
}

/// Changes a byte in the middle of a checkpoint's parameters.
fn damage(checkpoints: &Checkpoints, step: u64) -> Result {
    let file = checkpoints.path(step).join("model.safetensors");
    let mut bytes = fs::read(&file)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    Ok(fs::write(&file, bytes)?)
}

#[test]
fn a_damaged_checkpoint_is_passed_over_by_all_ranks_or_refused_by_all() -> Result {
    let config = four(&[])?;
    let directory = tempfile::tempdir()?;
    resume(&config, &[(4, 11)], directory.path())?;
    let saved = checkpoints(directory.path());
    damage(&saved, 11)?;
    let resumed = resume(&config, &[(2, 12)], directory.path())?;
    assert_eq!(saved.damaged()?.len(), 1);
    resumed.assert_same(&run(&config, &[(1, 12)])?, "resumed");

    for step in saved.steps()? {
        damage(&saved, step)?;
    }
    let messages = errors(Job::new(&config, 2, 12, directory.path()).run());
    assert!(messages[0].contains("checkpoints"), "{messages:?}");
    assert_eq!(messages[1], format!("rank 0 on host: {}", messages[0]));
    Ok(())
}

/// Flips the lowest bit of a parameter's first element.
fn flip_bit(parameter: &Var) -> tealight_train::Result<()> {
    let mut values = parameter.flatten_all()?.to_vec1::<f32>()?;
    values[0] = f32::from_bits(values[0].to_bits() ^ 1);
    Ok(parameter.set(&Tensor::from_vec(values, parameter.shape(), parameter.device())?)?)
}

#[test]
fn a_bit_that_changes_on_one_rank_ends_all_before_it_is_saved() -> Result {
    let config = four(&[])?;
    let directory = tempfile::tempdir()?;
    let observers = |rank, parameters: Parameters| -> Vec<Box<dyn Observer>> {
        let flip = move |event: &Event<'_>| match event {
            Event::Step(report) if (rank, report.step) == (1, 8) => flip_bit(&parameters[3].1),
            _ => Ok(()),
        };
        vec![Box::new(Calls(flip))]
    };
    let job = Job::new(&config, 4, 12, directory.path());
    let messages = errors(Job { observers: &observers, ..job }.run());
    let expected = "after step 8 rank 1 on host has other parameters than rank 0 on host; its numbers cannot be trusted";
    assert_eq!(messages, [expected; 4]);
    assert_eq!(checkpoints(directory.path()).latest()?, Some(5));
    resume(&config, &[(2, 12)], directory.path())?
        .assert_same(&run(&config, &[(1, 12)])?, "resumed");
    Ok(())
}

/// A connection that breaks in a call of one rank.
#[derive(Debug)]
struct Breaking {
    rank: ThreadRank,
    /// Calls that remain until it breaks.
    n_left: AtomicUsize,
}

impl Breaking {
    fn call(
        &self,
        call: impl FnOnce(&ThreadRank) -> std::result::Result<(), CommunicationError>,
    ) -> std::result::Result<(), CommunicationError> {
        if self.n_left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return call(&self.rank);
        }
        Err(CommunicationError::Library {
            function: "MPI_Alltoallv",
            library: "libmpi.so.40".to_owned(),
            message: "the connection has gone".to_owned(),
        })
    }
}

impl Communicator for Breaking {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn size(&self) -> usize {
        self.rank.size()
    }

    fn exchange(
        &self,
        send: &[u8],
        send_parts: &[Range<usize>],
        receive: &mut [u8],
        receive_lens: &[usize],
    ) -> std::result::Result<(), CommunicationError> {
        self.call(|rank| rank.exchange(send, send_parts, receive, receive_lens))
    }

    fn gather_in_place(
        &self,
        bytes: &mut [u8],
        lens: &[usize],
    ) -> std::result::Result<(), CommunicationError> {
        self.call(|rank| rank.gather_in_place(bytes, lens))
    }

    fn gather_by_pairs(
        &self,
        bytes: &mut [u8],
        lens: &[usize],
    ) -> std::result::Result<(), CommunicationError> {
        self.call(|rank| rank.gather_by_pairs(bytes, lens))
    }

    fn broadcast(
        &self,
        root: usize,
        bytes: &mut [u8],
    ) -> std::result::Result<(), CommunicationError> {
        self.call(|rank| rank.broadcast(root, bytes))
    }

    fn abort(&self, status: i32) {
        self.rank.abort(status);
    }
}

#[test]
fn a_connection_that_breaks_in_any_call_ends_all_and_nothing_is_lost() -> Result {
    let config = four(&["training.steps=6", "distributed.bucket_mb=1e-2"])?;
    let whole = run(&config, &[(1, 6)])?;
    let mut n_calls = 0;
    loop {
        let directory = tempfile::tempdir()?;
        let communicator = |rank: ThreadRank| -> Arc<dyn Communicator> {
            let n_left = if rank.rank() == 1 { n_calls } else { usize::MAX };
            Arc::new(Breaking { rank, n_left: AtomicUsize::new(n_left) })
        };
        let job = Job::new(&config, 2, 6, directory.path());
        let answers = Job { communicator: &communicator, ..job }.run();
        if answers.iter().all(Answer::is_ok) {
            break;
        }
        let messages = errors(answers);
        assert_eq!(messages[0], "rank 1 has ended the job", "call {n_calls}");
        assert!(messages[1].ends_with("the connection has gone"), "{messages:?}");
        let resumed = resume(&config, &[(1, 6)], directory.path())?;
        resumed.assert_same(&whole, &format!("call {n_calls}"));
        // The calls of a step are all met, in one step or another.
        n_calls += 3;
    }
    assert!(n_calls > 50, "{n_calls}");
    Ok(())
}
