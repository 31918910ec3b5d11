//! The pass forward and backward of each step: made kernel by kernel, or recorded and made again.
//!
//! On a GPU a pass over small tensors is over before its kernels have all been asked for. Where batches have
//! one shape (`training.cuda_graphs`), a pass is recorded once as a CUDA graph ([`Recording`]) and then asked
//! for as a whole. A batch gets the same bits from both. What a recorded pass cannot be (one that waits for the GPU, or
//! brings something to it) is made as before, and the run is told why.

use candle_core::{Device, Tensor};
use tealight_model::Mode;
use tealight_ops::device::{has_one_queue, tensor_of};
use tealight_ops::recording::{Recording, rehearse};
use tealight_ops::rng::Stream;
use tealight_ops::{Gradients, backward, backward_scaled, backward_weighted};

use crate::error::Error;
use crate::error::Result;
use crate::observer::{Event, Observer, notify};
use crate::task::metrics::Measures;
use crate::task::{Inputs, Shapes, Task};
use crate::training::prefetch::Feed;
use crate::training::session::Session;

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
enum News {
    Recorded,
    Refused(Error),
}

impl Passes {
    /// Each for itself.
    pub(crate) fn apart() -> Self {
        Self::default()
    }

    /// Those of a run: recorded, as soon as there is something to record, where it asks for that.
    pub(crate) fn of<T: Task>(session: &Session<T>) -> Self {
        let is_asked = session.config.training.records_passes();
        Self { records: is_asked && has_one_queue(session.params.device()), ..Self::default() }
    }

    /// Says what has become of recording, once.
    pub(crate) fn tell(&mut self, observers: &mut [Box<dyn Observer + '_>]) -> Result<()> {
        match self.news.take() {
            Some(News::Recorded) => notify(observers, &Event::GraphCaptured),
            Some(News::Refused(reason)) => {
                notify(observers, &Event::GraphNotCaptured { reason: &reason })
            }
            None => Ok(()),
        }
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
            return session.pass(batch, stream, None);
        }
        let device = session.params.device();
        if let Some(recording) = &mut self.recording {
            let weight = weight(&inputs, device)?;
            let tensors = with(&inputs, &weight);
            if !recording.fits(&tensors) {
                return session.pass(batch, stream, None);
            }
            let pass = recording.again(&tensors, stream)?.clone();
            let count = inputs.count as f64;
            let measures = pass.measures.recounted(pass.count, count);
            let n_tokens = session.task.n_tokens(batch);
            return Ok(MicroBatch { measures, count, n_tokens, ..pass });
        }
        if !self.is_warm(&inputs) {
            return rehearse(device, || session.pass(batch, stream, None));
        }
        match feed.at_rest(|| record(session, batch, stream)) {
            Ok(recording) => {
                let pass = recording.result().clone();
                (self.recording, self.news) = (Some(recording), Some(News::Recorded));
                Ok(pass)
            }
            Err(error) => {
                (self.records, self.news) = (false, Some(News::Refused(error)));
                session.pass(batch, stream, None)
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
    Recording::new(tensors, stream, || session.pass(batch, stream, Some(&weight)))
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

impl<T: Task> Session<T> {
    /// Forward and backward over `batch`, with random numbers of `stream`. A `weight` is one over the number of
    /// items, on the device.
    fn pass(
        &self,
        batch: &T::Batch,
        stream: Stream,
        weight: Option<&Tensor>,
    ) -> Result<MicroBatch> {
        let training = &self.config.training;
        let mode = Mode::Train { stream, activations: training.activations() };
        let loss = self.task.loss(&self.model, batch, mode)?;
        let leaves = self.params.leaves();
        let named = leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
        let is_whole = training.micro_batches == 1 && loss.count > 0.;
        let gradients = match weight {
            Some(weight) => backward_weighted(&loss.sum, weight, named)?,
            None if is_whole => backward_scaled(&loss.sum, 1. / loss.count, named)?,
            None => backward(&loss.sum, named)?,
        };
        let (count, n_tokens) = (loss.count, self.task.n_tokens(batch));
        Ok(MicroBatch { gradients, measures: loss.measures(), count, n_tokens })
    }
}

/// What came of one forward and backward pass, or of all those of a step.
#[derive(Clone, Debug)]
pub(crate) struct MicroBatch {
    /// Of the sum of the losses; of their mean, if this is all of a step.
    pub(crate) gradients: Gradients,
    /// The loss, and what else was measured on the way.
    pub(crate) measures: Measures,
    /// How many items carry a loss.
    pub(crate) count: f64,
    /// How many tokens were read, where the task counts them.
    pub(crate) n_tokens: Option<u64>,
}
