//! The batches that steps take, one after the other.
//!
//! A GPU computes while a thread beside the one that asks for the steps reads the next batch, masks it and
//! copies it there. On a CPU both would want the same cores, and a batch is made when it is taken.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

use crate::error::Result;
use crate::task::{Split, Task};

/// Batches of the training split.
#[derive(Debug)]
pub(crate) struct Feed<'scope, 'env, T: Task> {
    task: &'env T,
    /// Where a thread may make batches ahead.
    scope: Option<&'scope Scope<'scope, 'env>>,
    ahead: Option<Ahead<T::Batch>>,
    /// Held while a batch is in the making.
    making: Arc<Mutex<()>>,
}

/// A batch, or the error or the panic that there is in its place, for the thread that asks for it.
type Made<B> = Result<Result<B>, Box<dyn Any + Send>>;

#[derive(Debug)]
struct Ahead<B> {
    next: u64,
    batches: Receiver<Made<B>>,
}

/// How many batches wait; one more is in the making.
const WAITING: usize = 1;

impl<'scope, 'env, T: Task> Feed<'scope, 'env, T> {
    /// Makes each batch when it is taken.
    pub(crate) fn at_once(task: &'env T) -> Self {
        Self { task, scope: None, ahead: None, making: Arc::default() }
    }

    /// Makes the next batches in a thread of `scope`.
    pub(crate) fn ahead(task: &'env T, scope: &'scope Scope<'scope, 'env>) -> Self {
        Self { task, scope: Some(scope), ahead: None, making: Arc::default() }
    }

    /// Does something while no batch is in the making.
    pub(crate) fn at_rest<R>(&self, f: impl FnOnce() -> R) -> R {
        let _nothing_is_made = lock(&self.making);
        f()
    }

    /// Batch `number`, with the error or the panic that it ended in. Those that follow each other are fast.
    pub(crate) fn take(&mut self, number: u64) -> Result<T::Batch> {
        let Some(scope) = self.scope else { return self.task.batch(Split::Train, number) };
        let batches = match self.ahead.take().filter(|ahead| ahead.next == number) {
            Some(ahead) => ahead.batches,
            None => begin(self.task, number, scope, self.making.clone())?,
        };
        let made =
            batches.recv().expect("invariant: the thread ends with an error that it has sent");
        let batch = made.unwrap_or_else(|panic| resume_unwind(panic))?;
        self.ahead = Some(Ahead { next: number + 1, batches });
        Ok(batch)
    }
}

/// A thread that makes batches from number `first` on.
fn begin<'scope, 'env, T: Task>(
    task: &'env T,
    first: u64,
    scope: &'scope Scope<'scope, 'env>,
    making: Arc<Mutex<()>>,
) -> Result<Receiver<Made<T::Batch>>> {
    let (sender, batches) = sync_channel(WAITING);
    let thread = thread::Builder::new().name("batches".to_owned());
    let begun = thread.spawn_scoped(scope, move || serve(task, first, &making, &sender));
    begun.map_err(candle_core::Error::wrap)?;
    Ok(batches)
}

/// Makes one batch after the other, until one fails or nobody takes them any more.
fn serve<T: Task>(task: &T, first: u64, making: &Mutex<()>, batches: &SyncSender<Made<T::Batch>>) {
    for number in first.. {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let _making = lock(making);
            task.batch(Split::Train, number)
        }));
        let is_last = !matches!(made, Ok(Ok(_)));
        if let Err(nobody) = batches.send(made) {
            // Giving a batch up puts something into the GPU's queue, too.
            let _making = lock(making);
            drop(nobody);
            return;
        }
        if is_last {
            return;
        }
    }
}

/// A batch that ended in a panic has left nothing half done.
fn lock(making: &Mutex<()>) -> MutexGuard<'_, ()> {
    making.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
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

        fn build(&self, _: &ModelConfig, _: &VarBuilder<'_>) -> Result<()> {
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

        fn sizes(&self) -> BTreeMap<String, u64> {
            BTreeMap::new()
        }

        fn seq_len(&self) -> usize {
            1
        }

        fn batch_size(&self) -> usize {
            1
        }

        fn inputs<'a>(&self, _: &'a u64) -> Inputs<'a> {
            Inputs { tensors: Vec::new(), count: 1 }
        }

        fn loss(&self, (): &(), _: &u64, _: Mode) -> Result<Loss> {
            unreachable!("no step is made")
        }
    }

    #[test]
    fn batches_come_in_order_and_from_wherever_they_are_asked_for() {
        let task = Numbers::default();
        thread::scope(|scope| {
            for mut feed in [Feed::at_once(&task), Feed::ahead(&task, scope)] {
                for number in [0, 1, 2, 3, 20, 21, 1, 2, 2] {
                    assert_eq!(feed.take(number).unwrap(), number);
                }
            }
        });
    }

    #[test]
    fn no_more_is_made_than_is_soon_taken() {
        let task = Numbers::default();
        thread::scope(|scope| {
            let mut feed = Feed::ahead(&task, scope);
            for number in 100..110 {
                feed.take(number).unwrap();
            }
        });
        let n_made = task.n_made.load(Ordering::Relaxed);
        assert!((10..=10 + WAITING as u64 + 1).contains(&n_made), "{n_made}");
    }

    #[test]
    fn an_error_comes_with_the_batch_that_it_is_of_and_others_can_still_be_taken() {
        let task = Numbers::default();
        thread::scope(|scope| {
            let mut feed = Feed::ahead(&task, scope);
            assert_eq!(feed.take(5).unwrap(), 5);
            assert_eq!(feed.take(6).unwrap(), 6);
            assert!(feed.take(7).unwrap_err().to_string().contains("the shard has gone"));
            assert_eq!(feed.take(8).unwrap(), 8);
            let panic = catch_unwind(AssertUnwindSafe(|| feed.take(9))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"the thread has lost its way"));
            assert_eq!(feed.take(8).unwrap(), 8);
        });
    }
}
