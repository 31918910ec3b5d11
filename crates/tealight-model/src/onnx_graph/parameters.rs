//! The parameters of a model by name, for a graph that uses each of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::VarBuilder;

use super::error::{OnnxError, OnnxResult};
use super::{Graph, Value};
use crate::error::BuildResult;
use crate::params::{builder, without_gradients};

/// The parameters that a model asks for when it is built, and those that the graph has taken.
#[derive(Debug)]
pub(crate) struct Parameters {
    tensors: BTreeMap<String, Tensor>,
    taken: RefCell<BTreeSet<String>>,
}

impl Parameters {
    /// Those that `build` asks for, out of `all`. Building checks the settings and all shapes.
    pub(crate) fn from_requests<M>(
        all: &BTreeMap<String, Tensor>,
        build: impl FnOnce(&VarBuilder<'_>) -> BuildResult<M>,
    ) -> BuildResult<Self> {
        let tensors = Mutex::default();
        let source = without_gradients(all, DType::F32, &Device::Cpu);
        let get = |name: &str, shape: &candle_core::Shape, _| -> Result<Tensor> {
            let tensor = source.get(shape.clone(), name)?;
            let mut tensors = tensors.lock().unwrap_or_else(PoisonError::into_inner);
            BTreeMap::insert(&mut tensors, name.to_owned(), tensor.clone());
            Ok(tensor)
        };
        let contains = |name: &str| source.contains_tensor(name);
        build(&builder(get, contains, DType::F32, &Device::Cpu))?;
        let tensors = tensors.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Self { tensors, taken: RefCell::default() })
    }

    /// A builder over them, for parts of a model that are built to read their constants.
    pub(crate) fn builder(&self) -> VarBuilder<'_> {
        without_gradients(&self.tensors, DType::F32, &Device::Cpu)
    }

    /// Those whose names begin with `prefix`, without it.
    pub(crate) fn at(&self, prefix: impl Display) -> Scope<'_> {
        Scope { parameters: self, prefix: prefix.to_string() }
    }

    /// Checks that the graph has taken every parameter: one that it has not is a part of the model that this
    /// export leaves out.
    pub(crate) fn check_all_taken(&self) -> OnnxResult<()> {
        let taken = self.taken.borrow();
        match self.tensors.keys().find(|name| !taken.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(OnnxError::unsupported(
                format!("the parameter `{name}`"),
                "no part of the graph that this export writes uses it",
            )),
        }
    }
}

/// Parameters under a common prefix.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    parameters: &'a Parameters,
    prefix: String,
}

impl<'a> Scope<'a> {
    pub(crate) fn at(&self, name: impl Display) -> Self {
        Self { parameters: self.parameters, prefix: self.name(name) }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn name(&self, name: impl Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    /// Whether the model has this parameter.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.parameters.tensors.contains_key(&self.name(name))
    }

    /// The tensor of a parameter, which counts as taken.
    pub(crate) fn tensor(&self, name: &str) -> Result<&'a Tensor> {
        let name = self.name(name);
        let Some(tensor) = self.parameters.tensors.get(&name) else {
            bail!("the graph needs a parameter `{name}`, which the model does not have")
        };
        self.parameters.taken.borrow_mut().insert(name);
        Ok(tensor)
    }

    /// Counts all of them as taken, for a constant that is computed from them.
    pub(crate) fn take_all(&self) {
        let prefix = self.name("");
        let own = self.parameters.tensors.keys().filter(|name| name.starts_with(&prefix));
        self.parameters.taken.borrow_mut().extend(own.cloned());
    }

    /// A parameter as a constant of the graph.
    pub(crate) fn constant(&self, graph: &Graph, name: &str) -> Result<Value> {
        graph.tensor(&self.name(name), self.tensor(name)?)
    }

    /// A constant that is computed from parameters, under a name of its own.
    pub(crate) fn derived(&self, graph: &Graph, name: &str, x: &Tensor) -> Result<Value> {
        graph.tensor(&self.name(name), x)
    }
}
