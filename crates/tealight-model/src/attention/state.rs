//! What a recurrent layer keeps of the positions that it has read.

use std::collections::BTreeMap;

use candle_core::Tensor;

/// Tensors by name, whose first axis is the batch. Before the first position there are none.
#[derive(Clone, Debug, Default)]
pub struct State(BTreeMap<&'static str, Tensor>);

impl State {
    /// The tensor `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Sets the tensor `name`.
    pub fn insert(&mut self, name: &'static str, tensor: Tensor) {
        self.0.insert(name, tensor);
    }

    /// All tensors, in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        self.0.iter().map(|(&name, tensor)| (name, tensor))
    }

    /// All tensors, to be reordered.
    pub(super) fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.0.values_mut()
    }
}
