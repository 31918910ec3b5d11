//! The pass forward and backward of each step: made kernel by kernel, or recorded and made again.
//!
//! On a GPU a pass over small tensors is over before its kernels have all been asked for. Where batches have
//! one shape (`training.cuda_graphs`), a pass is recorded once as a CUDA graph ([`Recording`]) and then asked
//! for as a whole. A batch gets the same bits from both. What a recorded pass cannot be (one that waits for the GPU, or
//! brings something to it) is made as before, and the run is told why.

use candle_core::{Device, Tensor};
use tealight_ops::device::tensor_of;
use tealight_ops::recording::{Recording, rehearse};
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
#[derive(Default)]
pub(crate) struct Passes {
    records: bool,
    /// The shapes of the last batch, and how many in a row have had them.
    last: Option<(Shapes, usize)>,
    recording: Option<Recording<MicroBatch>>,
    news: Option<News>,
}

/// What has become of recording, to be told once.
pub(crate) enum News {
    Recorded,
    Refused(Error),
}

impl Passes {
    /// Each for itself.
    pub(crate) fn apart() -> Self {
        Self::default()
    }

    /// Recorded, as soon as there is something to record.
    pub(crate) fn recorded() -> Self {
        Self { records: true, ..Self::default() }
    }

    pub(crate) fn take_news(&mut self) -> Option<News> {
        self.news.take()
    }

    /// The pass over a batch.
    pub(crate) fn make<T: Task>(
        &mut self,
        session: &Session<T>,
        feed: &Feed<'_, '_, T>,
        batch: &T::Batch,
        stream: Stream,
    ) -> Result<MicroBatch> {
        let inputs = session.task.inputs(batch);
        if !self.records || inputs.count == 0 {
            return session.pass(batch, stream);
        }
        let device = session.params.device();
        if let Some(recording) = &mut self.recording {
            let weight = weight(&inputs, device)?;
            let tensors = with(&inputs, &weight);
            if !recording.fits(&tensors) {
                return session.pass(batch, stream);
            }
            let pass = recording.again(&tensors, stream)?.clone();
            let count = inputs.count as f64;
            let measures = pass.measures.recounted(pass.count, count);
            let n_tokens = session.task.n_tokens(batch);
            return Ok(MicroBatch { measures, count, n_tokens, ..pass });
        }
        if !self.is_warm(&inputs) {
            return rehearse(device, || session.pass(batch, stream));
        }
        match feed.at_rest(|| record(session, batch, stream)) {
            Ok(recording) => {
                let pass = recording.result().clone();
                (self.recording, self.news) = (Some(recording), Some(News::Recorded));
                Ok(pass)
            }
            Err(error) => {
                (self.records, self.news) = (false, Some(News::Refused(error)));
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

fn record<T: Task>(
    session: &Session<T>,
    batch: &T::Batch,
    stream: Stream,
) -> Result<Recording<MicroBatch>> {
    let inputs = session.task.inputs(batch);
    let weight = weight(&inputs, session.params.device())?;
    let tensors = with(&inputs, &weight).into_iter().cloned().collect();
    Recording::new(tensors, stream, || session.pass_weighted(batch, stream, &weight))
}

/// What the loss of a batch is multiplied by, where a recorded pass can find it.
fn weight(inputs: &Inputs<'_>, device: &Device) -> Result<Tensor> {
    let weight = (1. / inputs.count as f64) as f32;
    Ok(tensor_of(vec![weight], (), device)?)
}

/// All tensors that a recorded pass reads anew.
fn with<'a>(inputs: &Inputs<'a>, weight: &'a Tensor) -> Vec<&'a Tensor> {
    inputs.tensors.iter().copied().chain([weight]).collect()
}
