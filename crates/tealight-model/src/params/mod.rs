//! The named parameters of a model, in order of creation; a function of the seed.
//!
//! A model is built twice from one store: from [`ParamStore::trainable`] for training, where forward
//! passes record a graph, and from [`ParamStore::without_gradients`] for evaluation, where they do not.
//! Both share the storage of the parameters, so an optimizer step changes both.
//!
//! Both may compute in half precision ([`ParamStore::computing_in`]). Then they are built from rounded
//! copies, which [`ParamStore::refresh`] updates after the parameters have changed.

pub mod init;
pub mod pattern;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Result, Shape, Tensor, Var, bail};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use tealight_ops::half_precision;
use tealight_ops::rng::{Purpose, Stream};

/// Named variables, created on first use. Initial values depend only on the seed and the name.
#[derive(Debug)]
pub struct ParamStore {
    stream: Stream,
    dtype: DType,
    /// The dtype that models compute in.
    compute: DType,
    device: Device,
    /// Parameters whose names match one of these patterns are not trained.
    frozen_patterns: Vec<String>,
    variables: Mutex<Variables>,
}

#[derive(Debug, Default)]
struct Variables {
    in_order: Vec<Parameter>,
    index: BTreeMap<String, usize>,
}

#[derive(Clone, Debug)]
struct Parameter {
    name: String,
    variable: Var,
    /// The variable rounded to the compute dtype, if that differs from the dtype of the variable.
    copy: Option<Var>,
}

impl Parameter {
    /// The variable that models are built from.
    fn compute_copy(&self) -> &Var {
        self.copy.as_ref().unwrap_or(&self.variable)
    }
}

impl ParamStore {
    /// An empty store. `dtype` is F32 for training and F64 for checking gradients.
    pub fn new(seed: u64, dtype: DType, device: &Device) -> Self {
        Self {
            stream: Stream::new(seed, Purpose::Initialisation),
            dtype,
            compute: dtype,
            device: device.clone(),
            frozen_patterns: Vec::new(),
            variables: Mutex::default(),
        }
    }

    /// Sets the dtype that models compute in. The parameters keep their own dtype.
    #[must_use]
    pub fn computing_in(self, dtype: DType) -> Self {
        Self { compute: dtype, ..self }
    }

    /// Freezes the parameters whose names match one of `patterns`: they are not part of any graph, and
    /// [`Self::trained`] omits them.
    #[must_use]
    pub fn with_frozen(mut self, patterns: &[String]) -> Self {
        self.frozen_patterns = patterns.to_vec();
        self
    }

    /// A builder that creates parameters and returns variables: forward passes record a graph.
    pub fn trainable(&self) -> VarBuilder<'_> {
        let get = |name: &str, shape: &Shape, init| self.get_or_create(shape, name, init);
        builder(get, |name| self.contains(name), self.compute, &self.device)
    }

    /// A builder over the same storage whose models record no graph. It creates no parameters: build
    /// the trainable model first.
    pub fn without_gradients(&self) -> VarBuilder<'_> {
        let get = |name: &str, shape: &Shape, _| self.detached(shape, name);
        builder(get, |name| self.contains(name), self.compute, &self.device)
    }

    /// Name and variable of each parameter, in order of creation.
    pub fn iter(&self) -> impl Iterator<Item = (String, Var)> {
        let parameters = self.lock().in_order.clone();
        parameters.into_iter().map(|Parameter { name, variable, .. }| (name, variable))
    }

    /// As [`Self::iter`], without frozen parameters.
    pub fn trained(&self) -> impl Iterator<Item = (String, Var)> {
        self.iter().filter(|(name, _)| !self.is_frozen(name))
    }

    /// The leaves of the graph: name and tensor of each of [`Self::trained`], in the compute dtype.
    pub fn leaves(&self) -> Vec<(String, Tensor)> {
        let leaf = |p: &Parameter| (p.name.clone(), p.compute_copy().as_tensor().clone());
        let is_trained = |p: &&Parameter| !self.is_frozen(&p.name);
        self.lock().in_order.iter().filter(is_trained).map(leaf).collect()
    }

    /// Updates the half-precision copies from the parameters. Without copies it does nothing.
    pub fn refresh(&self) -> Result<()> {
        let variables = self.lock();
        let pairs = variables.in_order.iter().filter_map(|p| Some((&p.variable, p.copy.as_ref()?)));
        half_precision::round_all(&pairs.collect::<Vec<_>>())
    }

    fn is_frozen(&self, name: &str) -> bool {
        pattern::matches_any(&self.frozen_patterns, name)
    }

    /// The number of scalars in all parameters.
    pub fn n_parameters(&self) -> usize {
        self.lock().in_order.iter().map(|p| p.variable.elem_count()).sum()
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Detached values by name, which share storage with the variables.
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        self.iter().map(|(name, variable)| (name, variable.as_detached_tensor())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Variables> {
        self.variables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contains(&self, name: &str) -> bool {
        self.lock().index.contains_key(name)
    }

    fn detached(&self, shape: &Shape, name: &str) -> Result<Tensor> {
        let variables = self.lock();
        let Some(&at) = variables.index.get(name) else {
            bail!("no parameter `{name}`: build the trainable model first")
        };
        let tensor = variables.in_order[at].compute_copy().as_detached_tensor();
        same_shape(name, shape, tensor.shape())?;
        Ok(tensor)
    }

    fn get_or_create(&self, shape: &Shape, name: &str, init: Init) -> Result<Tensor> {
        let mut variables = self.lock();
        let known = variables.index.get(name).copied();
        let at = if let Some(at) = known {
            at
        } else {
            let parameter = self.create(shape, name, init)?;
            let at = variables.in_order.len();
            variables.index.insert(name.to_owned(), at);
            variables.in_order.push(parameter);
            at
        };
        let variable = variables.in_order[at].compute_copy();
        same_shape(name, shape, variable.shape())?;
        Ok(if self.is_frozen(name) {
            variable.as_detached_tensor()
        } else {
            variable.as_tensor().clone()
        })
    }

    fn create(&self, shape: &Shape, name: &str, init: Init) -> Result<Parameter> {
        let variable = Var::from_tensor(&self.draw(shape, name, init)?)?;
        let copied = self.compute != self.dtype;
        let copy =
            copied.then(|| Var::from_tensor(&variable.to_dtype(self.compute)?)).transpose()?;
        Ok(Parameter { name: name.to_owned(), variable, copy })
    }

    fn draw(&self, shape: &Shape, name: &str, init: Init) -> Result<Tensor> {
        let stream = self.stream.fork_name(name);
        let indices = 0..n_elements(shape, name)? as u64;
        let drawn: Option<Vec<f64>> = DRAWN.with_borrow(|value| {
            value.as_ref().map(|value| indices.clone().map(|i| value(&stream, i)).collect())
        });
        let values: Vec<f64> = match init {
            _ if drawn.is_some() => drawn.unwrap_or_default(),
            Init::Const(value) => indices.map(|_| value).collect(),
            Init::Randn { mean, stdev } => {
                indices.map(|i| mean + stdev * stream.normal(i)).collect()
            }
            Init::Uniform { lo, up } => {
                indices.map(|i| lo + (up - lo) * stream.uniform(i)).collect()
            }
            Init::Kaiming { .. } => {
                bail!("parameter `{name}`: Kaiming initialisation is not supported")
            }
        };
        // Rounded on the CPU, so that initial values are identical on every device.
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(self.dtype)?.to_device(&self.device)
    }
}

thread_local! {
    /// How the parameter that is being requested is drawn, if [`Init`] cannot express it.
    static DRAWN: RefCell<Option<Box<Draw>>> = const { RefCell::new(None) };
}

/// The initial value of an element by its index.
type Draw = dyn Fn(&Stream, u64) -> f64;

/// The parameter `name`, whose initial value of element i is `value(stream, i)`: for distributions that Candle's [`Init`],
/// which builders pass on, does not have.
pub(crate) fn get_drawn(
    vb: &VarBuilder<'_>,
    shape: impl Into<Shape>,
    name: &str,
    value: impl Fn(&Stream, u64) -> f64 + 'static,
) -> Result<Tensor> {
    /// Ends the request, also if it panics.
    struct Request;
    impl Drop for Request {
        fn drop(&mut self) {
            DRAWN.take();
        }
    }
    DRAWN.set(Some(Box::new(value)));
    let _request = Request;
    vb.get_with_hints(shape, name, Init::Const(0.))
}

/// A builder over existing `tensors`, for inference: models record no graph. Tensors are converted to
/// `dtype` and `device`.
pub fn without_gradients<'a>(
    tensors: &'a BTreeMap<String, Tensor>,
    dtype: DType,
    device: &Device,
) -> VarBuilder<'a> {
    let target = device.clone();
    let get = move |name: &str, shape: &Shape, _| {
        let Some(tensor) = tensors.get(name) else { bail!("there is no parameter `{name}`") };
        same_shape(name, shape, tensor.shape())?;
        tensor.detach().to_device(&target)?.to_dtype(dtype)
    };
    builder(get, |name| tensors.contains_key(name), dtype, device)
}

/// The numbers of a parameter, in memory as f64 while they are drawn.
fn n_elements(shape: &Shape, name: &str) -> Result<usize> {
    let count = shape.dims().iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim));
    match count.filter(|&count| count <= isize::MAX as usize / size_of::<f64>()) {
        Some(count) => Ok(count),
        None => bail!("parameter `{name}` of shape {:?} fits in no memory", shape.dims()),
    }
}

fn same_shape(name: &str, requested: &Shape, stored: &Shape) -> Result<()> {
    if requested != stored {
        bail!(
            "parameter `{name}` is requested with shape {requested:?}, but stored with shape {stored:?}"
        );
    }
    Ok(())
}

/// A builder whose parameters are the results of `get(name, shape, init)`. `dtype` is the one that layers
/// compute in.
pub(crate) fn builder<'a>(
    get: impl Fn(&str, &Shape, Init) -> Result<Tensor> + Send + Sync + 'a,
    contains: impl Fn(&str) -> bool + Send + Sync + 'a,
    dtype: DType,
    device: &Device,
) -> VarBuilder<'a> {
    VarBuilder::from_backend(Box::new(Functions { get, contains }), dtype, device.clone())
}

/// The two functions of [`builder`].
struct Functions<G, C> {
    get: G,
    contains: C,
}

impl<G, C> SimpleBackend for Functions<G, C>
where
    G: Fn(&str, &Shape, Init) -> Result<Tensor> + Send + Sync,
    C: Fn(&str) -> bool + Send + Sync,
{
    fn get(&self, shape: Shape, name: &str, init: Init, _: DType, _: &Device) -> Result<Tensor> {
        (self.get)(name, &shape, init)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("parameter `{name}` is requested without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        (self.contains)(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(store: &ParamStore, name: &str) -> Result<Vec<f32>> {
        let init = Init::Randn { mean: 0., stdev: 1. };
        store.trainable().get_with_hints((2, 3), name, init)?.flatten_all()?.to_vec1()
    }

    #[test]
    fn values_depend_on_the_seed_and_the_name_not_on_the_order() -> Result<()> {
        let first = ParamStore::new(1, DType::F32, &Device::Cpu);
        let (a, b) = (weight(&first, "a")?, weight(&first, "b")?);
        let second = ParamStore::new(1, DType::F32, &Device::Cpu);
        assert_eq!((weight(&second, "b")?, weight(&second, "a")?), (b, a.clone()));
        assert_ne!(weight(&ParamStore::new(2, DType::F32, &Device::Cpu), "a")?, a);
        Ok(())
    }

    #[test]
    fn frozen_parameters_record_no_graph_and_are_not_trained() -> Result<()> {
        let store =
            ParamStore::new(1, DType::F32, &Device::Cpu).with_frozen(&["layer.*".to_owned()]);
        let values = weight(&store, "layer.0")?;
        assert_eq!(values, weight(&ParamStore::new(1, DType::F32, &Device::Cpu), "layer.0")?);
        let init = Init::Const(1.);
        assert!(!store.trainable().get_with_hints((2, 3), "layer.0", init)?.track_op());
        assert!(store.trainable().get_with_hints(3, "output", init)?.track_op());
        let names = |all: Vec<(String, Var)>| all.into_iter().map(|(name, _)| name);
        assert!(names(store.iter().collect()).eq(["layer.0", "output"]));
        assert!(names(store.trained().collect()).eq(["output"]));
        Ok(())
    }

    #[test]
    fn models_in_half_precision_compute_with_copies_of_the_parameters() -> Result<()> {
        let store = ParamStore::new(1, DType::F32, &Device::Cpu).computing_in(DType::BF16);
        let trained = store.trainable().get_with_hints((2, 3), "a", Init::Const(1.))?;
        let frozen = store.without_gradients().get((2, 3), "a")?;
        assert_eq!((trained.dtype(), frozen.dtype()), (DType::BF16, DType::BF16));
        let (name, leaf) = store.leaves().remove(0);
        assert_eq!((name.as_str(), leaf.id()), ("a", trained.id()));
        let (_, variable) = store.iter().next().expect("one parameter");
        assert_eq!(variable.dtype(), DType::F32);
        // Rounds to 1 in bf16.
        variable.set(&Tensor::full(1.001_f32, (2, 3), &Device::Cpu)?)?;
        store.refresh()?;
        let sum = |x: &Tensor| x.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>();
        assert_eq!((sum(&frozen)?, sum(&trained)?), (6., 6.));
        variable.set(&Tensor::full(1.5_f32, (2, 3), &Device::Cpu)?)?;
        store.refresh()?;
        assert_eq!((sum(&frozen)?, sum(&trained)?), (9., 9.));
        assert_eq!(store.tensors()["a"].dtype(), DType::F32);
        Ok(())
    }

    #[test]
    fn frozen_model_sees_updates_and_records_no_graph() -> Result<()> {
        let store = ParamStore::new(1, DType::F32, &Device::Cpu);
        weight(&store, "a")?;
        let frozen = store.without_gradients().get((2, 3), "a")?;
        let (_, variable) = store.iter().next().expect("one parameter");
        variable.set(&variable.ones_like()?)?;
        assert_eq!(frozen.sum_all()?.to_scalar::<f32>()?, 6.);
        assert!(!frozen.track_op() && variable.track_op());
        Ok(())
    }
}
