//! Training batches, prefetched on a GPU.
//!
//! While the GPU computes a step, a thread reads the next batch, masks it and copies it there. On a CPU both
//! would compete for the same cores, so a batch is built when it is taken.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

use crate::data::Split;
use crate::error::Result;
use crate::task::Task;

/// The part of the batches of each step that a process reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchShare {
    /// Batches of a step.
    n: u64,
    /// Those of the process, counted from the first of the step.
    part: Range<u64>,
}

impl BatchShare {
    /// The batches `part` of the `n` batches of each step.
    pub(crate) fn new(n: u64, part: Range<u64>) -> Self {
        Self { n, part }
    }

    /// All batches.
    pub(crate) fn all() -> Self {
        Self::new(1, 0..1)
    }

    /// The batch that the process reads after `index`.
    fn after(&self, index: u64) -> u64 {
        let (first_of_step, next) = (index - index % self.n, index + 1);
        if next - first_of_step < self.part.end {
            next
        } else {
            first_of_step + self.n + self.part.start
        }
    }
}

/// Batches of the training split.
#[derive(Debug)]
pub(crate) struct Prefetch<'scope, 'env, T: Task> {
    task: &'env T,
    share: BatchShare,
    /// Where loader threads run; `None` without prefetching.
    scope: Option<&'scope Scope<'scope, 'env>>,
    /// The index of the next batch of the loader thread, and where it arrives.
    loader: Option<(u64, Receiver<Built<T::Batch>>)>,
    /// Locked while the loader builds or drops a batch.
    building: Arc<Mutex<()>>,
}

/// A batch, or the error or panic that building it ended in, sent to the thread that takes it.
type Built<B> = Result<Result<B>, Box<dyn Any + Send>>;

/// Batches that wait to be taken; the loader builds one more.
const QUEUE_LEN: usize = 1;

impl<'scope, 'env, T: Task> Prefetch<'scope, 'env, T> {
    /// Builds the next batches in a thread of `scope`; without one, each batch when it is taken.
    pub(crate) fn new(
        task: &'env T,
        share: BatchShare,
        scope: Option<&'scope Scope<'scope, 'env>>,
    ) -> Self {
        Self { task, share, scope, loader: None, building: Arc::default() }
    }

    /// Runs `f` while the loader builds no batch.
    pub(crate) fn paused<R>(&self, f: impl FnOnce() -> R) -> R {
        let _building = lock(&self.building);
        f()
    }

    /// Batch `index`, or the error or panic that building it ended in. Only the process's own batches in their order
    /// are prefetched; any other starts a new loader.
    pub(crate) fn take(&mut self, index: u64) -> Result<T::Batch> {
        let Some(scope) = self.scope else { return self.task.batch(Split::Train, index) };
        let batches = match self.loader.take() {
            Some((next, batches)) if next == index => batches,
            _ => self.start_loader(index, scope)?,
        };
        let built = batches.recv().expect("invariant: a loader that stops has sent an error");
        let batch = built.unwrap_or_else(|panic| resume_unwind(panic))?;
        self.loader = Some((self.share.after(index), batches));
        Ok(batch)
    }

    /// Starts a thread that builds the process's batches from `first` on.
    fn start_loader(
        &self,
        first: u64,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<Receiver<Built<T::Batch>>> {
        let Self { task, share, building, .. } = self;
        let (task, share, building) = (*task, share.clone(), building.clone());
        let (sender, batches) = sync_channel(QUEUE_LEN);
        let indices = std::iter::successors(Some(first), move |index| Some(share.after(*index)));
        let thread = thread::Builder::new().name("batches".to_owned());
        let started = thread.spawn_scoped(scope, move || load(task, indices, &building, &sender));
        started.map_err(candle_core::Error::wrap)?;
        Ok(batches)
    }
}

/// Builds one batch after another, until one fails or the receiver is dropped.
fn load<T: Task>(
    task: &T,
    indices: impl Iterator<Item = u64>,
    building: &Mutex<()>,
    batches: &SyncSender<Built<T::Batch>>,
) {
    for index in indices {
        let built = catch_unwind(AssertUnwindSafe(|| {
            let _building = lock(building);
            task.batch(Split::Train, index)
        }));
        let is_last = !matches!(built, Ok(Ok(_)));
        if let Err(unsent) = batches.send(built) {
            // Freeing a batch queues work on the GPU, too.
            let _building = lock(building);
            drop(unsent);
            return;
        }
        if is_last {
            return;
        }
    }
}

/// The lock guards no data, so a panic while it is held leaves nothing inconsistent.
fn lock(building: &Mutex<()>) -> MutexGuard<'_, ()> {
    building.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use candle_nn::VarBuilder;
    use tealight_model::{Mode, ModelConfig};

    use super::*;
    use crate::error::Error;
    use crate::task::{Inputs, Loss};

    /// Batches that are their numbers; number 7 cannot be read, and number 9 is a panic.
    #[derive(Default)]
    struct Numbers {
        n_made: AtomicU64,
    }

    impl Task for Numbers {
        type Model = ();
        type Batch = u64;

        fn build_model(&self, _: &ModelConfig, _: &VarBuilder<'_>) -> Result<()> {
            Ok(())
        }

        fn batch(&self, _: Split, index: u64) -> Result<u64> {
            self.n_made.fetch_add(1, Ordering::Relaxed);
            match index {
                7 => Err(Error::config(["task"], "the shard has gone")),
                9 => panic!("the thread has lost its way"),
                _ => Ok(index),
            }
        }

        fn n_evaluation_batches(&self) -> u64 {
            0
        }

        fn seq_len(&self) -> usize {
            1
        }

        fn inputs<'a>(&self, _: &'a u64) -> Inputs<'a> {
            Inputs { tensors: Vec::new(), count: 1. }
        }

        fn loss(&self, (): &(), _: &u64, _: Mode) -> Result<Loss> {
            unreachable!("no step is made")
        }
    }

    #[test]
    fn batches_come_in_order_and_from_wherever_they_are_asked_for() {
        let task = Numbers::default();
        thread::scope(|scope| {
            for mut batches in [
                Prefetch::new(&task, BatchShare::all(), None),
                Prefetch::new(&task, BatchShare::all(), Some(scope)),
            ] {
                for number in [0, 1, 2, 3, 20, 21, 1, 2, 2] {
                    assert_eq!(batches.take(number).unwrap(), number);
                }
            }
        });
    }

    #[test]
    fn no_more_is_made_than_is_soon_taken() {
        let task = Numbers::default();
        thread::scope(|scope| {
            let mut batches = Prefetch::new(&task, BatchShare::all(), Some(scope));
            for number in 100..110 {
                batches.take(number).unwrap();
            }
        });
        let n_made = task.n_made.load(Ordering::Relaxed);
        assert!((10..=10 + QUEUE_LEN as u64 + 1).contains(&n_made), "{n_made}");
    }

    #[test]
    fn a_part_of_the_batches_of_each_step_is_made_by_one_loader() {
        let task = Numbers::default();
        let share = BatchShare::new(6, 2..4);
        let indices = [20, 21, 26, 27, 32, 33];
        let after = indices.map(|index| share.after(index));
        assert_eq!(after, [21, 26, 27, 32, 33, 38]);
        thread::scope(|scope| {
            let mut batches = Prefetch::new(&task, share, Some(scope));
            for number in indices {
                assert_eq!(batches.take(number).unwrap(), number);
            }
        });
        let n_made = task.n_made.load(Ordering::Relaxed);
        assert!((6..=6 + QUEUE_LEN as u64 + 1).contains(&n_made), "{n_made}");
    }

    #[test]
    fn an_error_comes_with_the_batch_that_it_is_of_and_others_can_still_be_taken() {
        let task = Numbers::default();
        thread::scope(|scope| {
            let mut batches = Prefetch::new(&task, BatchShare::all(), Some(scope));
            assert_eq!(batches.take(5).unwrap(), 5);
            assert_eq!(batches.take(6).unwrap(), 6);
            assert!(batches.take(7).unwrap_err().to_string().contains("the shard has gone"));
            assert_eq!(batches.take(8).unwrap(), 8);
            let panic = catch_unwind(AssertUnwindSafe(|| batches.take(9))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"the thread has lost its way"));
            assert_eq!(batches.take(8).unwrap(), 8);
        });
    }
}
