//! The backward pass: gradients go from node to node, the last node first, and are added up in place where
//! their memory is not shared.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::backprop::GradStore;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, Layout, Result, Shape, Storage, Tensor,
    TensorId, bail,
};

use super::{Backward, Node, RecordedBackward};
use crate::autograd::sum::{add_in_place, added};
use crate::backend::choice::dispatch;
use crate::backend::profile::{self, Phase, timed};

/// A gradient, and whether its memory may be overwritten.
struct Gradient {
    tensor: Tensor,
    /// Whether no other tensor shares its memory, so that other gradients may be added in place.
    is_unique: bool,
}

impl Gradient {
    fn unique(tensor: &Tensor) -> Self {
        Self { tensor: tensor.detach(), is_unique: true }
    }

    fn shared(tensor: &Tensor) -> Self {
        Self { tensor: tensor.detach(), is_unique: false }
    }

    fn added_to(self, sum: Option<Self>) -> Result<Self> {
        match sum {
            Some(sum) => timed("sum of gradients", Phase::Backward, || sum.add(self)),
            None => Ok(self),
        }
    }

    fn add(self, other: Self) -> Result<Self> {
        let (sum, term) = if self.is_unique { (self, other) } else { (other, self) };
        let are_contiguous = sum.tensor.is_contiguous() && term.tensor.is_contiguous();
        if !(sum.is_unique && are_contiguous) {
            return Ok(Self::unique(&(sum.tensor + term.tensor)?));
        }
        dispatch!(match [&sum.tensor, &term.tensor] {
            Cpu(T) => {
                add_in_place::<T>(&sum.tensor, &term.tensor)?;
                Ok(sum)
            }
            Cuda => {
                let shape = sum.tensor.shape();
                Ok(Self::unique(&added(&sum.tensor, &term.tensor)?.tensor(shape)?))
            }
            Reference => Ok(Self::unique(&(sum.tensor + term.tensor)?)),
        })
    }
}

/// The gradients of `factor` times `loss`, both single numbers, by the variables that the loss depends on.
pub(crate) fn gradients(loss: &Tensor, factor: &Tensor) -> Result<HashMap<TensorId, Tensor>> {
    observed_gradients(loss, factor, |_| Ok(()))
}

/// As [`gradients`]; `observe` sees the walk before the first node's backward and after each.
pub(crate) fn observed_gradients(
    loss: &Tensor,
    factor: &Tensor,
    mut observe: impl FnMut(&mut Walk) -> Result<()>,
) -> Result<HashMap<TensorId, Tensor>> {
    let mut walk = Walk::default();
    walk.propagate(loss, Gradient::shared(factor))?;
    observe(&mut walk)?;
    while let Some((_, pending)) = walk.pending.pop_last() {
        walk.run(pending)?;
        observe(&mut walk)?;
    }
    let summed = walk.variables.into_iter().map(|(id, gradient)| (id, gradient.tensor));
    Ok(summed.chain(walk.finished).collect())
}

/// The results of a backward, checked for number, shape and dtype. A gradient is unique unless it shares memory with an
/// argument of the backward or with the gradient of another input.
fn checked(
    gradients: Vec<Option<Tensor>>,
    inputs: &[Tensor],
    pending: &PendingNode,
) -> Result<Vec<Option<Gradient>>> {
    let (name, n_gradients, n_inputs) = (pending.node.name, gradients.len(), inputs.len());
    if n_gradients != n_inputs {
        bail!("`{name}`: {n_gradients} gradients for {n_inputs} inputs");
    }
    for (gradient, input) in gradients.iter().zip(inputs) {
        let of = |x: &Tensor| (x.shape().clone(), x.dtype());
        if let Some(gradient) = gradient.as_ref().filter(|gradient| of(gradient) != of(input)) {
            bail!(
                "`{name}`: a gradient of {:?} for an input of {:?}: expected the same shape and dtype",
                of(gradient),
                of(input)
            )
        }
    }
    let arguments = inputs.iter().chain([&pending.output, &pending.gradient.tensor]);
    let all: Vec<_> = arguments.chain(gradients.iter().flatten()).map(address).collect();
    let is_unique =
        |tensor: &Tensor| all.iter().filter(|&&other| other == address(tensor)).count() == 1;
    let gradient =
        |tensor: Tensor| Gradient { is_unique: is_unique(&tensor), tensor: tensor.detach() };
    Ok(gradients.into_iter().map(|tensor| tensor.map(gradient)).collect())
}

/// The address of the storage: the same for all views of a tensor, and different for tensors that share none.
fn address(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    &raw const *storage
}

/// A backward pass on its way.
#[derive(Default)]
pub(crate) struct Walk {
    /// By number of the node. The gradient of the highest number is complete, as all its consumers, which have
    /// higher numbers, have run.
    pending: BTreeMap<u64, PendingNode>,
    variables: HashMap<TensorId, Gradient>,
    /// The gradients of variables that [`Walk::finish`] has given out.
    finished: HashMap<TensorId, Tensor>,
}

/// A node that has received a gradient, and whose backward has yet to run.
struct PendingNode {
    node: Arc<Node>,
    output: Tensor,
    gradient: Gradient,
}

impl Walk {
    /// The number of the node whose backward runs next; `None` at the end of the pass.
    pub(crate) fn next_number(&self) -> Option<u64> {
        self.pending.last_key_value().map(|(&number, _)| number)
    }

    /// The gradient of `variable`, if it has received any: nothing may be added to it from now on.
    pub(crate) fn finish(&mut self, variable: TensorId) -> Option<&Tensor> {
        if let Some(gradient) = self.variables.remove(&variable) {
            self.finished.insert(variable, gradient.tensor);
        }
        self.finished.get(&variable)
    }

    /// Runs the backward of a node, whose gradient is complete.
    fn run(&mut self, mut pending: PendingNode) -> Result<()> {
        let RecordedBackward { backward, inputs, _nodes } = pending.node.take()?;
        let operation = match backward {
            Backward::Operation(operation) => operation,
            // The nodes made here are newer than all pending ones, so their backwards run next.
            Backward::Recompute { forward, .. } => {
                return self.propagate(&forward()?, pending.gradient);
            }
        };
        let gradients = timed(pending.node.name, Phase::Backward, || {
            pending.gradient.tensor = pending.gradient.tensor.contiguous()?;
            operation(&inputs, &pending.output, &pending.gradient.tensor)
        })?;
        let gradients = checked(gradients, &inputs, &pending)?;
        drop(pending);
        for (input, gradient) in inputs.iter().zip(gradients) {
            gradient.map_or(Ok(()), |gradient| self.propagate(input, gradient))?;
        }
        Ok(())
    }

    /// Adds `gradient` to the gradient of `tensor`.
    fn propagate(&mut self, tensor: &Tensor, gradient: Gradient) -> Result<()> {
        if let Some(node) = Node::from_tensor(tensor) {
            let output = tensor.detach();
            let output = if node.reads_output { output.reshape(&node.shape)? } else { output };
            let gradient = Gradient { tensor: gradient.tensor.reshape(&node.shape)?, ..gradient };
            self.add_to_node(PendingNode { node, output, gradient })
        } else if tensor.is_variable() {
            self.add_to_variable(tensor.id(), gradient)
        } else if tensor.track_op() {
            self.propagate_by_candle(tensor, gradient.tensor)
        } else {
            Ok(())
        }
    }

    fn add_to_node(&mut self, new: PendingNode) -> Result<()> {
        let number = new.node.number;
        let old = self.pending.remove(&number).map(|old| old.gradient);
        let gradient = new.gradient.added_to(old)?;
        self.pending.insert(number, PendingNode { gradient, ..new });
        Ok(())
    }

    fn add_to_variable(&mut self, variable: TensorId, new: Gradient) -> Result<()> {
        if self.finished.contains_key(&variable) {
            bail!(
                "a gradient for a variable whose gradient was final: a part of the model read other variables \
                 when it was computed again for the backward"
            )
        }
        let gradient = new.added_to(self.variables.remove(&variable))?;
        self.variables.insert(variable, gradient);
        Ok(())
    }

    /// Runs Candle's backward from `tensor` to the variables and nodes that its operations start from.
    fn propagate_by_candle(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        let (store, received) =
            timed(profile::CANDLE, Phase::Backward, || candle_backward(&seed(tensor, gradient)?))?;
        for &variable in store.get_ids() {
            if let Some(gradient) = store.get_id(variable) {
                self.add_to_variable(variable, Gradient::shared(gradient))?;
            }
        }
        received.into_iter().try_for_each(|pending| self.add_to_node(pending))
    }
}

thread_local! {
    /// The gradients that Candle's backward has passed to nodes; `None` unless [`candle_backward`] is running.
    static RECEIVED: RefCell<Option<Vec<PendingNode>>> = const { RefCell::new(None) };
}

/// Runs Candle's backward. Returns the gradients of variables, and the nodes with the gradients that they have
/// received.
fn candle_backward(seed: &Tensor) -> Result<(GradStore, Vec<PendingNode>)> {
    let _enclosing = EnclosingList(RECEIVED.replace(Some(Vec::new())));
    #[expect(clippy::disallowed_methods, reason = "`tealight_ops::backward` itself")]
    let store = seed.backward()?;
    Ok((store, RECEIVED.take().unwrap_or_default()))
}

/// Restores, when it is dropped, the list of an enclosing [`candle_backward`].
struct EnclosingList(Option<Vec<PendingNode>>);

impl Drop for EnclosingList {
    fn drop(&mut self) {
        RECEIVED.set(self.0.take());
    }
}

/// Adds a gradient to the list of the [`candle_backward`] that is running.
pub(super) fn receive(node: &Arc<Node>, output: &Tensor, gradient: &Tensor) -> Result<()> {
    let gradient = Gradient::shared(gradient);
    let new = PendingNode { node: node.clone(), output: output.clone(), gradient };
    RECEIVED.with_borrow_mut(|received| match received {
        Some(received) => {
            received.push(new);
            Ok(())
        }
        None => bail!("`{}`: gradients come from `tealight_ops::backward`", node.name),
    })
}

/// A single number whose gradient by `tensor` is `gradient`, for Candle's backward to start from.
fn seed(tensor: &Tensor, gradient: Tensor) -> Result<Tensor> {
    match tensor.device() {
        Device::Cpu | Device::Cuda(_) => tensor.apply_op1(Seed(gradient)),
        Device::Metal(_) => (tensor * gradient)?.sum_all(),
    }
}

/// Such a number as a custom operation: its value is 0, its backward returns the gradient.
struct Seed(Tensor);

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.]), Shape::from(())))
    }

    fn cuda_fwd(&self, tensor: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let number = Shape::from(());
        Ok((tensor.device().zeros_impl(&number, DType::F32)?, number))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}
