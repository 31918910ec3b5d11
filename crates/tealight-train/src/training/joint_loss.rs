//! Losses over all micro-batches of a step at once, in the memory of one of them (GradCache; Gao et al. 2021,
//! <https://arxiv.org/abs/2101.06983>).
//!
//! ```text
//! 1. v_k = vectors of micro-batch k              without a graph; ranks exchange them
//! 2. L(v_1 … v_n), g_k = ∂L/∂v_k
//! 3. v_k again, with a graph                     ∂(Σ v_k ⊙ g_k)/∂θ, summed over k, is ∂L/∂θ
//! ```
//!
//! Both passes over a micro-batch have the same dropout, because its random numbers are a function of the seed, the step
//! and the micro-batch.

use std::ops::Range;

use candle_core::{Device, Tensor, Var};
use tealight_model::Mode;
use tealight_ops::device::tensor_of;
use tealight_ops::rng::Stream;

use super::forward::Forward;
use super::session::Session;
use crate::error::Result;
use crate::task::metrics::Measures;
use crate::task::{JointLoss, Loss, Task};

/// The part of a micro-batch in the loss of a step.
#[derive(Debug)]
pub(crate) struct Part {
    /// g: the gradient of the summed loss with respect to the vectors.
    gradient: Tensor,
    /// The share of the summed loss: all micro-batches have the same.
    loss: Tensor,
    /// The share of what it is divided by.
    count: f64,
}

impl Part {
    /// The part of a micro-batch without rows.
    pub(super) fn without_rows(&self) -> Result<Forward> {
        let sum = self.loss.zeros_like()?;
        let loss = Loss { sum, count: self.count, metrics: Measures::default() };
        Ok(Forward { loss, reported: self.loss.clone() })
    }

    /// Σ v ⊙ g, whose gradient is the part of this micro-batch in the gradient of the step; reported is its share.
    pub(super) fn forward(&self, vectors: &Tensor) -> Result<Forward> {
        let sum = (vectors * &self.gradient)?.sum_all()?;
        let loss = Loss { sum, count: self.count, metrics: Measures::default() };
        Ok(Forward { loss, reported: self.loss.clone() })
    }
}

/// The parts of the micro-batches `own` of the session's next step, which are these `batches`, and the batches. Of
/// several ranks, all call it, each with its own.
///
/// # Errors
/// On all ranks, if a batch cannot be read or a forward pass fails on one of them.
pub(crate) fn parts<T: Task>(
    session: &Session<T>,
    joint: &dyn JointLoss<T::Model, T::Batch>,
    own: Range<u64>,
    batches: Result<Vec<T::Batch>>,
    dropout: impl Fn(u64) -> Stream,
) -> Result<(Vec<T::Batch>, Vec<Part>)> {
    let n = session.config.training.micro_batches;
    let vectors = |(micro, batch): (u64, &T::Batch)| {
        joint.vectors(&session.eval_model, batch, Mode::train(dropout(micro)))
    };
    let mut read = Vec::new();
    let found = batches.and_then(|batches| {
        read = batches;
        own.clone().zip(&read).map(vectors).collect()
    });
    let all = gathered(session, found)?;
    let leaves = all.iter().map(Var::from_tensor).collect::<candle_core::Result<Vec<_>>>()?;
    let tensors: Vec<Tensor> = leaves.iter().map(|leaf| leaf.as_tensor().clone()).collect();
    let first = session.progress.step * n;
    let loss = joint.loss(first..first + n, &tensors)?;
    let names: Vec<String> = (0..n).map(|micro| micro.to_string()).collect();
    let named = names.iter().map(String::as_str).zip(&tensors);
    let gradients = tealight_ops::backward(&loss.sum, named)?;
    let share = (loss.sum.detach() / n as f64)?;
    let part = |micro: u64| {
        let gradient = match gradients.at(micro as usize) {
            Some(gradient) => gradient.clone(),
            None => all[micro as usize].zeros_like()?,
        };
        Ok(Part { gradient, loss: share.clone(), count: loss.count / n as f64 })
    };
    let parts = own.map(part).collect::<Result<_>>()?;
    Ok((read, parts))
}

/// The vectors of all micro-batches in their order, from those of this rank.
fn gathered<T: Task>(session: &Session<T>, own: Result<Vec<Tensor>>) -> Result<Vec<Tensor>> {
    if session.ranks.is_alone() {
        return own;
    }
    let numbers = own.and_then(|own| {
        let numbers = own.iter().map(|vectors| {
            let shape = vectors.dims2()?;
            let vectors = vectors.to_device(&Device::Cpu)?.flatten_all()?;
            Ok((shape, vectors.to_vec1::<f32>()?))
        });
        numbers.collect::<Result<Vec<_>>>()
    });
    let all = session.ranks.agree(numbers)?;
    let device = session.params.device();
    let tensors = all.into_iter().flatten();
    tensors.map(|(shape, numbers)| Ok(tensor_of(numbers, shape, device)?)).collect()
}
