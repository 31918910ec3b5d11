//! A model that another one imitates, and the loss by its outputs.

use candle_core::Tensor;
use tealight_model::Mode;

use super::forward::Forward;
use crate::data::DataFile;
use crate::error::Result;
use crate::task::imitation::TeacherConfig;
use crate::task::{Imitation, Loss};

/// The measure of how far outputs are from the teacher's.
const IMITATION: &str = "imitation";

/// A model that another one imitates.
#[derive(Debug)]
pub struct Teacher<M> {
    pub(super) config: TeacherConfig,
    pub(super) model: M,
    pub(super) n_parameters: u64,
    /// Its folder, with a hash of its parameters.
    pub(super) weights: DataFile,
}

impl<M> Teacher<M> {
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
        let Some(of_teacher) = imitation.outputs(&self.model, batch, Mode::Eval)? else {
            return Ok(None);
        };
        let Forward { loss: Loss { sum, count, mut metrics }, reported } = by_labels(&outputs)?;
        let distance = self.config.loss.settings().loss(&outputs, &of_teacher)?;
        metrics.add(IMITATION, &(distance.detach() * count)?, count);
        let blend = |sum: &Tensor| self.config.blend(sum, &distance, count);
        Ok(Some(Forward {
            loss: Loss { sum: blend(&sum)?, count, metrics },
            reported: blend(&reported)?,
        }))
    }
}
