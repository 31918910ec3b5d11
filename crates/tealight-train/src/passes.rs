//! The pass forward and backward of each step: made kernel by kernel, or recorded and made again.
//!
//! On a GPU a pass over small tensors is over before its kernels have all been asked for. Where batches have
//! one shape (`training.cuda_graphs`), a pass is recorded once as a CUDA graph ([`Recording`]) and then asked
//! for as a whole. The numbers are the same. What a recorded pass cannot be (one that waits for the GPU, or
//! brings something to it) is made as before, and the run is told why.

use tealight_ops::recording::Recording;
use tealight_ops::rng::Stream;

use crate::Error;
use crate::error::Result;
use crate::feed::Feed;
use crate::fit::MicroBatch;
use crate::session::Session;
use crate::task::{Inputs, Shapes, Task};

/// So many passes over batches of one shape are made before one is recorded: kernels are compiled, and tables
/// made, on the way.
const WARM: usize = 2;

/// How passes are made.
pub(crate) struct Passes {
    records: bool,
    /// The shapes of the last batch, and how many in a row have had them.
    last: Option<(Shapes, usize)>,
    recorded: Option<Recorded>,
    refusal: Option<Error>,
}

struct Recorded {
    /// Of the batches that it can be made again with.
    shapes: Shapes,
    recording: Recording<MicroBatch>,
}

impl Passes {
    /// Each for itself.
    pub(crate) fn apart() -> Self {
        Self { records: false, last: None, recorded: None, refusal: None }
    }

    /// Recorded, as soon as there is something to record.
    pub(crate) fn recorded() -> Self {
        Self { records: true, ..Self::apart() }
    }

    /// Why nothing is recorded although it was to be, once.
    pub(crate) fn take_refusal(&mut self) -> Option<Error> {
        self.refusal.take()
    }

    /// The pass over a batch.
    pub(crate) fn make<T: Task>(
        &mut self,
        session: &Session<T>,
        feed: &Feed<'_, '_, T>,
        batch: &T::Batch,
        stream: Stream,
    ) -> Result<MicroBatch> {
        if !self.records {
            return session.pass(batch, stream);
        }
        let inputs = session.task.inputs(batch);
        if let Some(Recorded { shapes, recording, .. }) = &mut self.recorded {
            if *shapes != inputs.shapes() {
                return session.pass(batch, stream);
            }
            let mut pass = recording.again(&inputs.tensors, stream)?.clone();
            pass.n_tokens = session.task.n_tokens(batch);
            return Ok(pass);
        }
        if !self.is_warm(&inputs) {
            return session.pass(batch, stream);
        }
        match feed.at_rest(|| record(session, batch, stream)) {
            Ok(recorded) => {
                let pass = recorded.recording.result().clone();
                self.recorded = Some(recorded);
                Ok(pass)
            }
            Err(error) => {
                (self.records, self.refusal) = (false, Some(error));
                session.pass(batch, stream)
            }
        }
    }

    /// Whether enough batches of one shape have come, this one not counted.
    fn is_warm(&mut self, inputs: &Inputs<'_>) -> bool {
        let shapes = inputs.shapes();
        let n_alike = match self.last.take() {
            Some((last, n)) if last == shapes => n,
            _ => 0,
        };
        self.last = Some((shapes, n_alike + 1));
        n_alike >= WARM
    }
}

fn record<T: Task>(session: &Session<T>, batch: &T::Batch, stream: Stream) -> Result<Recorded> {
    let inputs = session.task.inputs(batch);
    let (shapes, tensors) = (inputs.shapes(), inputs.tensors.into_iter().cloned().collect());
    let recording = Recording::new(tensors, stream, || session.pass(batch, stream))?;
    Ok(Recorded { shapes, recording })
}
