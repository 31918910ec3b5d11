//! A model that another one imitates, and the loss by its outputs.

use candle_core::Tensor;
use tealight_model::Mode;
use tealight_model::transformer::block::BlockInput;

use super::forward::Forward;
use crate::data::DataFile;
use crate::error::{Error, Result};
use crate::task::imitation::{Compared, Heads, LAYER, TeacherConfig};
use crate::task::{Imitation, Loss, Reading};

/// The measure of how far outputs are from the teacher's.
const IMITATION: &str = "imitation";

/// A model that another one imitates.
#[derive(Debug)]
pub struct Teacher<M> {
    pub(super) config: TeacherConfig,
    pub(super) model: M,
    pub(super) n_parameters: u64,
    /// Whether its weights have the head of a model of the task.
    pub(super) is_whole: bool,
    /// Its folder, with a hash of its parameters.
    pub(super) weights: DataFile,
}

impl<M> Teacher<M> {
    /// Refuses a `model` whose heads of attention cannot be compared with those of this teacher, if these are what the loss
    /// compares.
    pub(super) fn check<B>(
        &self,
        imitation: &dyn Imitation<M, B>,
        model: &M,
        batch: &B,
    ) -> Result<()> {
        let loss = self.config.loss.settings();
        if loss.imitated().is_some() {
            return Ok(());
        }
        let Some(outputs) = imitation.outputs(model, batch, Mode::Eval)? else { return Ok(()) };
        let models = [model, &self.model];
        let both = Both { imitation, models, batch, mode: Mode::Eval, outputs: &outputs };
        loss.loss(&both).map(drop)
    }

    /// The loss of a batch by its labels, which `by_labels` computes from the outputs of the `student`, and by how far these
    /// are from the outputs of this teacher; `None` if no item carries a loss.
    pub(super) fn loss<B>(
        &self,
        imitation: &dyn Imitation<M, B>,
        student: &M,
        batch: &B,
        mode: Mode,
        by_labels: impl FnOnce(&Tensor) -> Result<Forward>,
    ) -> Result<Option<Forward>> {
        let Some(outputs) = imitation.outputs(student, batch, mode)? else { return Ok(None) };
        let Forward { loss: Loss { sum, count, mut metrics }, reported } = by_labels(&outputs)?;
        let both =
            Both { imitation, models: [student, &self.model], batch, mode, outputs: &outputs };
        let distance = self.config.loss.settings().loss(&both)?;
        metrics.add(IMITATION, &(distance.detach() * count)?, count);
        let blend = |sum: &Tensor| self.config.blend(sum, &distance, count);
        Ok(Some(Forward {
            loss: Loss { sum: blend(&sum)?, count, metrics },
            reported: blend(&reported)?,
        }))
    }
}

/// A model and its teacher on a batch.
struct Both<'a, M, B> {
    imitation: &'a dyn Imitation<M, B>,
    /// The model, and its teacher.
    models: [&'a M; 2],
    batch: &'a B,
    /// That of the model.
    mode: Mode,
    /// Those of the model.
    outputs: &'a Tensor,
}

impl<M, B> Compared for Both<'_, M, B> {
    fn outputs(&self) -> Result<[Tensor; 2]> {
        let of_teacher = self.imitation.outputs(self.models[1], self.batch, Mode::Eval)?;
        // Whether there are any depends on the batch alone.
        let of_teacher =
            of_teacher.expect("invariant: the teacher has outputs where the model has");
        Ok([self.outputs.clone(), of_teacher])
    }

    fn heads(&self, layer: Option<usize>) -> Result<Vec<Heads>> {
        let stacks = self.models.map(|model| self.imitation.transformer(model));
        let last = stacks.map(|stack| stack.n_layers().saturating_sub(1));
        let layers = [last[0], layer.unwrap_or(last[1])];
        if layers[1] > last[1] {
            let message = format!(
                "`{LAYER}` = {}, and the last layer of the teacher is {}",
                layers[1], last[1]
            );
            return Err(Error::config([LAYER], message));
        }
        let readings = self.imitation.readings(self.batch, self.mode);
        let heads = readings.into_iter().map(|Reading { input, mask, mode }| {
            let of = |at: usize, mode| {
                let heads = stacks[at].heads(&input, &BlockInput::new(&mask, mode), layers[at])?;
                heads.ok_or_else(|| without_heads(at, layers[at]))
            };
            let (own, of_teacher) = (of(0, mode)?, of(1, Mode::Eval)?);
            let lens = [own[0].dim(1)?, of_teacher[0].dim(1)?];
            if lens[0] != lens[1] {
                let message = format!(
                    "`teacher.loss.kind` = \"relations\" compares position with position, and the model reads {} where the \
                     teacher reads {}: the patches of both must be alike",
                    lens[0], lens[1]
                );
                return Err(Error::config(["teacher.loss.kind", "model.patches"], message));
            }
            Ok(Heads { own, of_teacher, mask })
        });
        heads.collect()
    }
}

/// The error that a layer of the model, or of its teacher, has nothing to compare.
fn without_heads(of: usize, layer: usize) -> Error {
    let whose = ["the model", "the teacher"][of];
    let message = format!(
        "`teacher.loss.kind` = \"relations\" compares queries, keys and values, and the attention of {whose} has none in \
         layer {layer} that are multiplied with each other, as those of \"softmax\" are"
    );
    Error::config(["teacher.loss.kind"], message)
}
