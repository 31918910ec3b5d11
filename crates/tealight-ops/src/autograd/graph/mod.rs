//! The graph that gradients flow back through: operations of this crate, joined by stretches of
//! Candle's.
//!
//! Candle's own walk adds every gradient to a tensor of zeros and puts the sum into a new tensor,
//! which for fused operations costs as much as they do; and it keeps all activations until the loss
//! is dropped. Its nodes are private, so it cannot be replaced. It can be cut short:
//!
//! ```text
//! Candle:   x ── reshape ── [carrier] ── add ── [carrier] ── loss      each stretch ends at a carrier
//! here:     x, reshape(x) ── linear ── add(..) ── cross_entropy        a node knows its inputs
//! ```
//!
//! The result of an operation here is, for Candle, a custom operation on a variable that nobody
//! else has: its *carrier*. Candle's walk ends there and hands the gradient over to the [`Node`]. The
//! walk from node to node is [`walk`]'s: a gradient is moved on or added in place, and what a node has
//! kept is freed as soon as its backward has run. Where an input comes from operations of Candle's,
//! their backward is Candle's.

#![expect(
    clippy::disallowed_types,
    reason = "Candle's ids have no order; what is kept by them is looked up, never walked over"
)]

mod fused;
mod several;
pub(crate) mod walk;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, Weak};

use candle_core::op::BackpropOp;
use candle_core::shape::ShapeWithOneHole;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, DeviceLocation, Layout, Result, Shape,
    Storage, Tensor, TensorId, Var, bail,
};

pub(crate) use self::fused::fused;
pub(crate) use self::several::record_all;
use crate::autograd::nan_trace;

/// What becomes of the gradient of a result.
pub(crate) trait Operation: Send + Sync {
    /// For messages.
    fn name(&self) -> &'static str;

    /// Whether the backward reads the elements of input `i`. Where it does not, they need not be kept
    /// until then: it is given a tensor of the same shape and dtype that holds no memory.
    fn reads_input(&self, _i: usize) -> bool {
        true
    }

    /// The same of the output, whose shape may be another, too.
    fn reads_output(&self) -> bool {
        true
    }

    /// The gradient of each of `inputs`, in their order; `None` for one that needs none.
    ///
    /// Each is new, or one of the tensors given here: to one that is found in neither place else,
    /// others are added in place, so it must not be kept.
    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>>;
}

/// What an operation has computed.
pub(crate) struct Value {
    pub(crate) storage: Storage,
    pub(crate) shape: Shape,
}

impl From<(CpuStorage, Shape)> for Value {
    fn from((storage, shape): (CpuStorage, Shape)) -> Self {
        Self { storage: Storage::Cpu(storage), shape }
    }
}

impl From<(Storage, Shape)> for Value {
    fn from((storage, shape): (Storage, Shape)) -> Self {
        Self { storage, shape }
    }
}

/// A tensor of `value`, whose gradient `operation` passes on to `inputs`.
///
/// Of inputs that need no gradients the operation is forgotten at once.
pub(crate) fn record(
    operation: impl Operation + 'static,
    inputs: &[&Tensor],
    value: impl Into<Value>,
) -> Result<Tensor> {
    let value = value.into();
    let (name, reads_output) = (operation.name(), operation.reads_output());
    nan_trace::look(name, &value.storage);
    if !inputs.iter().any(|input| input.track_op()) {
        let Value { storage, shape } = value;
        return Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false));
    }
    let recorded = Recorded::of(operation, inputs)?;
    carried(&Node::new(name, reads_output, recorded, &value), value)
}

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

/// As [`record`], with the backward as a function of the inputs, the output and its gradient. Tensors that
/// are not `saved` have a shape and a dtype there, but no elements and no history.
pub(crate) fn record_saving(
    name: &'static str,
    inputs: &[&Tensor],
    value: impl Into<Value>,
    saved: Saved,
    backward: impl FnOnce(&[Tensor], &Tensor, &Tensor) -> Result<Vec<Option<Tensor>>>
    + Send
    + Sync
    + 'static,
) -> Result<Tensor> {
    record(Saving { name, saved, backward }, inputs, value)
}

/// As [`record_saving`] of a linear operation, whose backward needs nothing but the gradient.
pub(crate) fn record_linear(
    name: &'static str,
    inputs: &[&Tensor],
    value: impl Into<Value>,
    backward: impl FnOnce(&Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_saving(name, inputs, value, Saved::Nothing, |_, _, gradient| backward(gradient))
}

struct Saving<F> {
    name: &'static str,
    saved: Saved,
    backward: F,
}

impl<F> Operation for Saving<F>
where
    F: FnOnce(&[Tensor], &Tensor, &Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn reads_input(&self, _: usize) -> bool {
        self.saved.inputs()
    }

    fn reads_output(&self) -> bool {
        self.saved.output()
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        (self.backward)(inputs, output, gradient)
    }
}

/// A tensor of `value`, which is what `f` gives. When its gradient comes, `f` is called again, and the
/// gradient goes back through what it gives then.
pub(crate) fn record_again(
    f: impl Fn() -> Result<Tensor> + Send + Sync + 'static,
    value: impl Into<Value>,
) -> Result<Tensor> {
    let value = value.into();
    let recorded =
        Recorded { way: Way::Again(Box::new(f)), inputs: Vec::new(), _nodes: Vec::new() };
    nan_trace::look("checkpoint", &value.storage);
    carried(&Node::new("checkpoint", false, recorded, &value), value)
}

/// The result of `node`.
fn carried(node: &Arc<Node>, value: Value) -> Result<Tensor> {
    let carrier = carrier(&value.storage)?;
    let value = Mutex::new(Some(value));
    let output = carrier.apply_op1(Carried { node: node.clone(), value })?;
    node.answers_for(&output);
    Ok(output)
}

/// `x` in another shape: a view, whose gradient is one, too.
///
/// # Errors
/// If the number of elements is another.
pub fn reshape(x: &Tensor, shape: impl ShapeWithOneHole) -> Result<Tensor> {
    let y = x.reshape(shape)?;
    if let Some(node) = Node::of(x).filter(|_| x.is_contiguous()) {
        node.answers_for(&y);
    }
    Ok(y)
}

/// The variable that every result of a device hangs on in Candle's eyes.
fn carrier(of: &Storage) -> Result<Var> {
    static ON_CPU: OnceLock<Var> = OnceLock::new();
    match (of, ON_CPU.get()) {
        (Storage::Cpu(_), Some(carrier)) => Ok(carrier.clone()),
        (Storage::Cpu(_), None) => {
            let carrier = Var::zeros((), DType::F32, &Device::Cpu)?;
            Ok(ON_CPU.get_or_init(|| carrier).clone())
        }
        (of, _) => carrier_on(&of.device()),
    }
}

fn carrier_on(device: &Device) -> Result<Var> {
    static CARRIERS: Mutex<Vec<(DeviceLocation, Var)>> = Mutex::new(Vec::new());
    let location = device.location();
    let mut carriers = CARRIERS.lock().expect("invariant: nothing panics while it holds them");
    if let Some((_, carrier)) = carriers.iter().find(|(of, _)| *of == location) {
        return Ok(carrier.clone());
    }
    let carrier = Var::zeros((), DType::F32, device)?;
    carriers.push((location, carrier.clone()));
    Ok(carrier)
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The living nodes, by the tensors that are their results.
fn nodes() -> MutexGuard<'static, HashMap<TensorId, Weak<Node>>> {
    static NODES: LazyLock<Mutex<HashMap<TensorId, Weak<Node>>>> = LazyLock::new(Mutex::default);
    NODES.lock().expect("invariant: nothing panics while it holds the nodes")
}

/// An operation that has been done, and what its backward needs.
struct Node {
    name: &'static str,
    /// Inputs have lower numbers than what is made of them.
    number: u64,
    shape: Shape,
    reads_output: bool,
    /// Until the backward has run.
    recorded: Mutex<Option<Recorded>>,
    /// The result, and other shapes of it: Candle's views keep what they are of alive.
    results: Mutex<Vec<TensorId>>,
}

struct Recorded {
    way: Way,
    inputs: Vec<Tensor>,
    /// What inputs without elements are results of.
    _nodes: Vec<Arc<Node>>,
}

/// How a gradient goes on.
enum Way {
    /// As the operation says.
    Through(Box<dyn Operation>),
    /// Through what this gives.
    Again(Box<dyn Fn() -> Result<Tensor> + Send + Sync>),
}

impl Recorded {
    fn of(operation: impl Operation + 'static, inputs: &[&Tensor]) -> Result<Self> {
        let mut nodes = Vec::new();
        let keep = |(i, &input): (usize, &&Tensor)| match Node::of(input) {
            Some(node) if !operation.reads_input(i) && !node.reads_output => {
                let without_elements = without_elements(input)?;
                node.answers_for(&without_elements);
                nodes.push(node);
                Ok(without_elements)
            }
            _ => Ok(input.clone()),
        };
        let inputs = inputs.iter().enumerate().map(keep).collect::<Result<_>>()?;
        Ok(Self { way: Way::Through(Box::new(operation)), inputs, _nodes: nodes })
    }
}

/// A tensor like `x` in shape and dtype: one number, seen everywhere. Where assertions are on it is
/// NaN, so that it shows if an operation reads it after all.
fn without_elements(x: &Tensor) -> Result<Tensor> {
    let number = if cfg!(debug_assertions) { f64::NAN } else { 0. };
    Tensor::new(number, &Device::Cpu)?.to_dtype(x.dtype())?.broadcast_as(x.shape())
}

impl Node {
    fn new(
        name: &'static str,
        reads_output: bool,
        recorded: Recorded,
        Value { shape, .. }: &Value,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            shape: shape.clone(),
            reads_output,
            recorded: Mutex::new(Some(recorded)),
            results: Mutex::default(),
        })
    }

    /// The node that `tensor` is the result of, if it is one's.
    fn of(tensor: &Tensor) -> Option<Arc<Self>> {
        nodes().get(&tensor.id())?.upgrade()
    }

    /// Makes `tensor`, all of the result's elements in their order, known as this node's.
    fn answers_for(self: &Arc<Self>, tensor: &Tensor) {
        nodes().insert(tensor.id(), Arc::downgrade(self));
        self.results
            .lock()
            .expect("invariant: nothing panics while it holds this")
            .push(tensor.id());
    }

    /// Takes out what the backward needs, which is then freed with it.
    fn take(&self) -> Result<Recorded> {
        let mut recorded =
            self.recorded.lock().expect("invariant: nothing panics while it holds this");
        match recorded.take() {
            Some(recorded) => Ok(recorded),
            None => bail!("`{}`: its backward has run already, and freed what it needs", self.name),
        }
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

/// How a value gets into Candle, and how its gradient gets out.
struct Carried {
    node: Arc<Node>,
    /// Until Candle takes it.
    value: Mutex<Option<Value>>,
}

impl Carried {
    fn take(&self) -> Value {
        let value =
            self.value.lock().expect("invariant: nothing panics while it holds this").take();
        value.expect("invariant: Candle runs an operation once")
    }
}

impl CustomOp1 for Carried {
    fn name(&self) -> &'static str {
        self.node.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match self.take() {
            Value { storage: Storage::Cpu(storage), shape } => Ok((storage, shape)),
            _ => bail!("`{}`: its carrier is on the CPU, and it is not", self.node.name),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.take() {
            Value { storage: Storage::Cuda(storage), shape } => Ok((storage, shape)),
            _ => bail!("`{}`: its carrier is on a CUDA device, and it is not", self.node.name),
        }
    }

    fn bwd(&self, _: &Tensor, output: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        walk::arrive(&self.node, output, gradient)?;
        Ok(None)
    }
}
