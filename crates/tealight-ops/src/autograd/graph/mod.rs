//! The autograd graph: a node for each operation of this crate, joined by parts of Candle's own graph.
//!
//! Candle's backward allocates zeros for every gradient and a new tensor for every sum, which costs as much as
//! a fused operation does, and it keeps all activations until the loss is dropped. Its nodes are private, so
//! they cannot be replaced, but its backward can be made to stop early:
//!
//! ```text
//! Candle:   x ── reshape ── [leaf] ── add ── [leaf] ── loss          each part ends at a dummy leaf
//! here:     x, reshape(x) ── linear ── add(..) ── cross_entropy      a node holds its inputs
//! ```
//!
//! For Candle, the result of an operation of this crate is a custom operation on a dummy leaf, a variable that
//! is used for nothing else. Candle's backward ends there and passes the gradient to the [`Node`]. From there
//! [`walk`] goes from node to node: it moves gradients or adds them in place, and frees the tensors that a node
//! has saved as soon as its backward has run. Where an input is the result of Candle's operations, Candle's
//! backward runs for them.

#![expect(
    clippy::disallowed_types,
    reason = "Candle's ids have no order; these maps are only looked up, never iterated over"
)]

mod fused;
pub(crate) mod reads;
mod several;
pub(crate) mod walk;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

use candle_core::op::BackpropOp;
use candle_core::shape::ShapeWithOneHole;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, DeviceLocation, Layout, Result, Shape,
    Storage, Tensor, TensorId, Var, bail,
};

pub(crate) use self::fused::fused;
use self::reads::Reads;
pub(crate) use self::several::record_all;
use crate::autograd::nan_trace;

/// The result of an operation, before it becomes a tensor.
pub(crate) type Value = (Storage, Shape);

/// The tensors that an operation saves for its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    Inputs,
    Output,
    InputsAndOutput,
    Nothing,
}

impl Saved {
    fn inputs(self) -> bool {
        matches!(self, Self::Inputs | Self::InputsAndOutput)
    }

    fn output(self) -> bool {
        matches!(self, Self::Output | Self::InputsAndOutput)
    }
}

/// A tensor of `value` with a node in the graph, whose backward computes the gradients of `inputs` from the inputs,
/// the output and its gradient. Tensors that are not `saved` have a shape and a dtype there, but no elements and no
/// history. If no input needs a gradient, the tensor has no node, and `backward` is dropped.
///
/// `name` is for error messages, the profile and the NaN trace. If the output is not saved, the result may also be
/// used in another shape.
///
/// The backward receives a contiguous gradient. It returns the gradient of each input, in their order; `None` for an
/// input that needs none. Gradients are new tensors, or tensors (views) of the arguments. The walk adds to new ones in
/// place, so an operation must not keep them.
pub(crate) fn record_saving(
    name: &'static str,
    inputs: &[impl AsRef<Tensor>],
    value: Value,
    saved: Saved,
    backward: impl FnOnce(&[Tensor], &Tensor, &Tensor) -> Result<Vec<Option<Tensor>>>
    + Send
    + Sync
    + 'static,
) -> Result<Tensor> {
    nan_trace::check(name, inputs, &value.0);
    record_unchecked(name, inputs, value, saved, backward)
}

/// As [`record_saving`], without the NaN trace.
fn record_unchecked(
    name: &'static str,
    inputs: &[impl AsRef<Tensor>],
    value: Value,
    saved: Saved,
    backward: impl FnOnce(&[Tensor], &Tensor, &Tensor) -> Result<Vec<Option<Tensor>>>
    + Send
    + Sync
    + 'static,
) -> Result<Tensor> {
    if !inputs.iter().any(|input| input.as_ref().track_op()) {
        let (storage, shape) = value;
        return Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false));
    }
    let (inputs, nodes) = saved_inputs(inputs, saved)?;
    let recorded = RecordedBackward {
        backward: Backward::Operation(Box::new(backward)),
        inputs,
        _nodes: nodes,
    };
    result_of(name, saved.output(), recorded, value)
}

/// As [`record_saving`] of a linear operation, whose backward needs nothing but the gradient.
pub(crate) fn record_linear(
    name: &'static str,
    inputs: &[&Tensor],
    value: Value,
    backward: impl FnOnce(&Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_saving(name, inputs, value, Saved::Nothing, |_, _, gradient| backward(gradient))
}

/// A tensor of `value`, the result of `f`, that saves nothing. Its backward calls `f` again and continues from the
/// result of that call. `reads` holds the variables and nodes that a call of `f` reads.
pub(crate) fn record_recomputed(
    f: impl Fn() -> Result<Tensor> + Send + Sync + 'static,
    value: Value,
    reads: Reads,
) -> Result<Tensor> {
    let name = "checkpoint";
    let recorded = RecordedBackward {
        backward: Backward::Recompute { forward: Box::new(f), reads },
        inputs: Vec::new(),
        _nodes: Vec::new(),
    };
    nan_trace::check(name, &[] as &[Tensor], &value.0);
    result_of(name, false, recorded, value)
}

/// The tensor of `value`, registered as the result of a new node.
fn result_of(
    name: &'static str,
    reads_output: bool,
    recorded: RecordedBackward,
    value: Value,
) -> Result<Tensor> {
    let node = Arc::new(Node {
        name,
        number: COUNT.fetch_add(1, Ordering::Relaxed),
        shape: value.1.clone(),
        reads_output,
        recorded: Mutex::new(Some(recorded)),
        results: Mutex::default(),
    });
    let leaf = dummy_leaf(&value.0.device())?;
    let value = Mutex::new(Some(value));
    let output = leaf.apply_op1(Boundary { node: node.clone(), value })?;
    node.register(&output);
    Ok(output)
}

/// `x` in another shape: a view, whose gradient is reshaped as a view, too. (The backward of Candle's `reshape`
/// copies.)
///
/// # Errors
/// If `shape` has another number of elements than `x`.
pub fn reshape(x: &Tensor, shape: impl ShapeWithOneHole) -> Result<Tensor> {
    let y = x.reshape(shape)?;
    if let Some(node) = Node::from_tensor(x).filter(|_| x.is_contiguous()) {
        node.register(&y);
    }
    Ok(y)
}

/// The dummy leaf of a device, at which Candle's own backward ends. All results on the device share it.
fn dummy_leaf(device: &Device) -> Result<Var> {
    static LEAVES: Mutex<Vec<(DeviceLocation, Var)>> = Mutex::new(Vec::new());
    let location = device.location();
    let mut leaves = LEAVES.lock().expect("invariant: no panic while the lock is held");
    if let Some((_, leaf)) = leaves.iter().find(|(other, _)| *other == location) {
        return Ok(leaf.clone());
    }
    let leaf = Var::zeros((), DType::F32, device)?;
    leaves.push((location, leaf.clone()));
    Ok(leaf)
}

/// The number of the next node.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The nodes that have not been dropped, by the ids of the tensors that are their results.
fn nodes() -> MutexGuard<'static, HashMap<TensorId, Weak<Node>>> {
    static NODES: LazyLock<Mutex<HashMap<TensorId, Weak<Node>>>> = LazyLock::new(Mutex::default);
    NODES.lock().expect("invariant: no panic while the lock is held")
}

/// An operation that has run, with the tensors that its backward needs.
struct Node {
    name: &'static str,
    /// In order of creation: an operation has a higher number than the operations that made its inputs.
    number: u64,
    shape: Shape,
    reads_output: bool,
    /// `None` once the backward has run.
    recorded: Mutex<Option<RecordedBackward>>,
    /// The result and its reshaped views. (Candle's views keep the tensor that they view alive.)
    results: Mutex<Vec<TensorId>>,
}

/// A backward and the tensors that it needs.
struct RecordedBackward {
    backward: Backward,
    inputs: Vec<Tensor>,
    /// Keeps alive the nodes whose results stand in `inputs` without their elements.
    _nodes: Vec<Arc<Node>>,
}

type OperationBackward =
    dyn FnOnce(&[Tensor], &Tensor, &Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync;

enum Backward {
    /// Runs the operation's backward.
    Operation(Box<OperationBackward>),
    /// Runs the forward again and continues from its result.
    Recompute {
        forward: Box<dyn Fn() -> Result<Tensor> + Send + Sync>,
        /// The variables and nodes to which the nodes of that run pass gradients, besides each other.
        reads: Reads,
    },
}

/// The inputs that a backward receives. Where the elements of an input are not needed, an empty stand-in takes its
/// place, and its node is returned, too, so that it stays alive.
fn saved_inputs(
    inputs: &[impl AsRef<Tensor>],
    saved: Saved,
) -> Result<(Vec<Tensor>, Vec<Arc<Node>>)> {
    let mut nodes = Vec::new();
    let keep = |input: &Tensor| match Node::from_tensor(input) {
        Some(node) if !saved.inputs() && !node.reads_output => {
            let without_elements = without_elements(input)?;
            node.register(&without_elements);
            nodes.push(node);
            Ok(without_elements)
        }
        _ => Ok(input.clone()),
    };
    let inputs = inputs.iter().map(AsRef::as_ref).map(keep).collect::<Result<_>>()?;
    Ok((inputs, nodes))
}

/// A tensor with the shape and dtype of `x` that broadcasts a single number. In builds with debug assertions
/// it is NaN, so that tests notice an operation that reads it.
fn without_elements(x: &Tensor) -> Result<Tensor> {
    let number = if cfg!(debug_assertions) { f64::NAN } else { 0. };
    Tensor::new(number, &Device::Cpu)?.to_dtype(x.dtype())?.broadcast_as(x.shape())
}

impl Node {
    /// The node whose result `tensor` is, if any.
    fn from_tensor(tensor: &Tensor) -> Option<Arc<Self>> {
        nodes().get(&tensor.id())?.upgrade()
    }

    /// Registers `tensor`, the result in any shape, as a result of this node.
    fn register(self: &Arc<Self>, tensor: &Tensor) {
        nodes().insert(tensor.id(), Arc::downgrade(self));
        self.results.lock().expect("invariant: no panic while the lock is held").push(tensor.id());
    }

    /// Takes the backward and its tensors, which are freed when the backward has run.
    fn take(&self) -> Result<RecordedBackward> {
        let recorded =
            self.recorded.lock().expect("invariant: no panic while the lock is held").take();
        let Some(recorded) = recorded else {
            bail!("`{}`: its backward has run already, and freed what it needs", self.name)
        };
        Ok(recorded)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(results) = self.results.get_mut() {
            let mut nodes = nodes();
            for result in results.iter() {
                nodes.remove(result);
            }
        }
    }
}

/// The custom operation that stands for a node in Candle's graph. Its forward passes a computed value into
/// Candle, its backward passes the gradient out of it.
struct Boundary {
    node: Arc<Node>,
    /// `None` once Candle has taken it.
    value: Mutex<Option<Value>>,
}

impl Boundary {
    fn take(&self) -> Value {
        let value = self.value.lock().expect("invariant: no panic while the lock is held").take();
        value.expect("invariant: Candle runs an operation once")
    }
}

impl CustomOp1 for Boundary {
    fn name(&self) -> &'static str {
        self.node.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match self.take() {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => bail!("`{}`: its dummy leaf is on the CPU, its value is not", self.node.name),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.take() {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => {
                bail!("`{}`: its dummy leaf is on a CUDA device, its value is not", self.node.name)
            }
        }
    }

    fn bwd(&self, _: &Tensor, output: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        walk::receive(&self.node, output, gradient)?;
        Ok(None)
    }
}
