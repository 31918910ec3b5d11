//! The walk back from a loss: gradients from node to node, added up in place where nobody else holds
//! them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::backprop::GradStore;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Device, Layout, Result, Shape, Storage, Tensor,
    TensorId, bail,
};

use super::{Node, Recorded, Way};
use crate::autograd::sum::{add_in_place, added};
use crate::backend::buffer::stored;
use crate::backend::choice::dispatch;
use crate::backend::profile::{self, Pass, timed};

/// A gradient on its way.
struct Flow {
    tensor: Tensor,
    /// Whether nobody else holds its elements, so that others may be added to them in place.
    fresh: bool,
}

impl Flow {
    fn fresh(tensor: &Tensor) -> Self {
        Self { tensor: tensor.detach(), fresh: true }
    }

    fn shared(tensor: &Tensor) -> Self {
        Self { tensor: tensor.detach(), fresh: false }
    }

    fn add(self, other: Self) -> Result<Self> {
        let (sum, term) = if self.fresh { (self, other) } else { (other, self) };
        let in_order = sum.tensor.is_contiguous() && term.tensor.is_contiguous();
        if !(sum.fresh && in_order) {
            return Ok(Self::fresh(&(sum.tensor + term.tensor)?));
        }
        dispatch!(match [&sum.tensor, &term.tensor] {
            Cpu(T) => {
                add_in_place::<T>(&sum.tensor, &term.tensor)?;
                Ok(sum)
            }
            Cuda => {
                let shape = sum.tensor.shape();
                Ok(Self::fresh(&added(&sum.tensor, &term.tensor)?.tensor(shape)?))
            }
            Reference => Ok(Self::fresh(&(sum.tensor + term.tensor)?)),
        })
    }
}

/// The gradients of `factor` times `loss`, both single numbers, with respect to the variables that it
/// depends on.
pub(crate) fn gradients(loss: &Tensor, factor: &Tensor) -> Result<HashMap<TensorId, Tensor>> {
    let mut walk = Walk::default();
    walk.send(loss, Flow::shared(factor))?;
    while let Some((_, arrival)) = walk.arrivals.pop_last() {
        let Recorded { way, inputs, _nodes } = arrival.node.take()?;
        let operation = match way {
            Way::Through(operation) => operation,
            // Its nodes are newer than all that are left, and are walked over next.
            Way::Again(f) => {
                walk.send(&f()?, arrival.gradient)?;
                continue;
            }
        };
        let gradients = timed(operation.name(), Pass::Backward, || {
            operation.backward(&inputs, &arrival.output, &arrival.gradient.tensor)
        })?;
        let flows = flows(gradients, &inputs, &arrival)?;
        drop(arrival);
        for (input, flow) in inputs.iter().zip(flows) {
            flow.map_or(Ok(()), |flow| walk.send(input, flow))?;
        }
    }
    Ok(walk.variables.into_iter().map(|(id, gradient)| (id, gradient.tensor)).collect())
}

/// `gradients`, each known to be fresh or not: one that an operation has made is, and one that it
/// has passed on, or given to two inputs, is not.
fn flows(
    gradients: Vec<Option<Tensor>>,
    inputs: &[Tensor],
    arrival: &Arrival,
) -> Result<Vec<Option<Flow>>> {
    for (gradient, input) in gradients.iter().zip(inputs) {
        let of = |x: &Tensor| (x.shape().clone(), x.dtype());
        if let Some(gradient) = gradient.as_ref().filter(|gradient| of(gradient) != of(input)) {
            let name = arrival.node.name;
            bail!("`{name}`: a gradient of {:?} for an input of {:?}", of(gradient), of(input))
        }
    }
    let given = inputs.iter().chain([&arrival.output, &arrival.gradient.tensor]);
    let all: Vec<_> = given.chain(gradients.iter().flatten()).map(address).collect();
    let is_fresh =
        |tensor: &Tensor| all.iter().filter(|&&other| other == address(tensor)).count() == 1;
    let flow = |tensor: Tensor| Flow { fresh: is_fresh(&tensor), tensor: tensor.detach() };
    Ok(gradients.into_iter().map(|gradient| gradient.map(flow)).collect())
}

/// Where the elements are: the same for all views of a tensor, and for no other that lives.
fn address(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    &raw const *storage
}

#[derive(Default)]
struct Walk {
    /// By the nodes' numbers: the highest has all of its gradient, for none above it is left.
    arrivals: BTreeMap<u64, Arrival>,
    variables: HashMap<TensorId, Flow>,
}

/// A gradient that has come to the result of a node.
struct Arrival {
    node: Arc<Node>,
    output: Tensor,
    gradient: Flow,
}

impl Walk {
    /// Adds `gradient` to what `tensor` has.
    fn send(&mut self, tensor: &Tensor, gradient: Flow) -> Result<()> {
        if let Some(node) = Node::of(tensor) {
            let output = tensor.detach();
            let output = if node.reads_output { output.reshape(&node.shape)? } else { output };
            let gradient = Flow { tensor: gradient.tensor.reshape(&node.shape)?, ..gradient };
            self.arrive(Arrival { node, output, gradient })
        } else if tensor.is_variable() {
            self.keep(tensor.id(), gradient)
        } else if tensor.track_op() {
            self.through_candle(tensor, gradient.tensor)
        } else {
            Ok(())
        }
    }

    fn arrive(&mut self, new: Arrival) -> Result<()> {
        let number = new.node.number;
        let gradient = match self.arrivals.remove(&number) {
            Some(old) => {
                timed("sum of gradients", Pass::Backward, || old.gradient.add(new.gradient))?
            }
            None => new.gradient,
        };
        self.arrivals.insert(number, Arrival { gradient, ..new });
        Ok(())
    }

    fn keep(&mut self, variable: TensorId, new: Flow) -> Result<()> {
        let gradient = match self.variables.remove(&variable) {
            Some(old) => timed("sum of gradients", Pass::Backward, || old.add(new))?,
            None => new,
        };
        self.variables.insert(variable, gradient);
        Ok(())
    }

    /// Back through operations of Candle's, to the variables and the nodes that they start from.
    fn through_candle(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        let (store, arrivals) =
            timed(profile::CANDLE, Pass::Backward, || candle_backward(&seed(tensor, gradient)?))?;
        for &variable in store.get_ids() {
            if let Some(gradient) = store.get_id(variable) {
                self.keep(variable, Flow::shared(gradient))?;
            }
        }
        arrivals.into_iter().try_for_each(|arrival| self.arrive(arrival))
    }
}

thread_local! {
    /// Where the nodes at the end of Candle's walk put their gradients, while one is under way.
    static ARRIVALS: RefCell<Option<Vec<Arrival>>> = const { RefCell::new(None) };
}

/// Candle's walk, which ends at variables and at nodes.
fn candle_backward(seed: &Tensor) -> Result<(GradStore, Vec<Arrival>)> {
    let _outer = Outer(ARRIVALS.replace(Some(Vec::new())));
    #[expect(clippy::disallowed_methods, reason = "this is the door that others are sent to")]
    let store = seed.backward()?;
    Ok((store, ARRIVALS.take().unwrap_or_default()))
}

/// The arrivals of a walk that this one is within, or none: put back however this one ends.
struct Outer(Option<Vec<Arrival>>);

impl Drop for Outer {
    fn drop(&mut self) {
        ARRIVALS.set(self.0.take());
    }
}

/// Called by Candle's walk when it comes to a node.
pub(super) fn arrive(node: &Arc<Node>, output: &Tensor, gradient: &Tensor) -> Result<()> {
    let gradient = Flow::shared(gradient);
    let new = Arrival { node: node.clone(), output: output.clone(), gradient };
    ARRIVALS.with_borrow_mut(|arrivals| match arrivals {
        Some(arrivals) => {
            arrivals.push(new);
            Ok(())
        }
        None => bail!("`{}`: gradients come from `tealight_ops::backward`", node.name),
    })
}

/// A number that `tensor` has the gradient `gradient` of: what Candle's walk can start from.
fn seed(tensor: &Tensor, gradient: Tensor) -> Result<Tensor> {
    match tensor.device() {
        Device::Cpu | Device::Cuda(_) => tensor.apply_op1(Seed(gradient)),
        Device::Metal(_) => (tensor * gradient)?.sum_all(),
    }
}

/// The same, without computing the number.
struct Seed(Tensor);

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(stored(vec![0_f32], ()))
    }

    fn cuda_fwd(&self, tensor: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let number = Shape::from(());
        Ok((tensor.device().zeros_impl(&number, DType::F32)?, number))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}
