//! Operations with several results.
//!
//! ```text
//! inputs ── [hub] ── result 0            each hands its gradient to the hub, whose turn comes when
//!                 ── result 1            all of them have had theirs
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Result, Tensor};

use super::{Operation, Value, record};
use crate::backend::buffer::stored;

/// What becomes of the gradients of several results.
pub(crate) trait Several: Send + Sync {
    /// For messages.
    fn name(&self) -> &'static str;

    /// The gradient of each of `inputs`, as of an [`Operation`], from those of the results: `None` of
    /// one that no gradient has come to.
    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>>;
}

/// Tensors of `values`, whose gradients `several` passes on to `inputs` together.
pub(crate) fn record_all(
    several: impl Several + 'static,
    inputs: &[&Tensor],
    values: Vec<impl Into<Value>>,
) -> Result<Vec<Tensor>> {
    let gradients = Gradients::default();
    gradients.lock().resize(values.len(), None);
    let hub = Hub { several: Box::new(several), gradients: gradients.clone() };
    let hub = record(hub, inputs, stored(vec![0_f32], ()))?;
    let of = |(place, value)| record(Part { place, gradients: gradients.clone() }, &[&hub], value);
    values.into_iter().enumerate().map(of).collect()
}

/// Those that have come so far.
#[derive(Clone, Default)]
struct Gradients(Arc<Mutex<Vec<Option<Tensor>>>>);

impl Gradients {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<Tensor>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Hub {
    several: Box<dyn Several>,
    gradients: Gradients,
}

impl Operation for Hub {
    fn name(&self) -> &'static str {
        self.several.name()
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        _: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let gradients = std::mem::take(&mut *self.gradients.lock());
        self.several.backward(inputs, gradients)
    }
}

struct Part {
    place: usize,
    gradients: Gradients,
}

impl Operation for Part {
    fn name(&self) -> &'static str {
        "one of several"
    }

    fn reads_output(&self) -> bool {
        false
    }

    /// The hub's own gradient is a number that says that its turn will come: once is enough.
    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let mut gradients = self.gradients.lock();
        let is_first = gradients.iter().all(Option::is_none);
        gradients[self.place] = Some(gradient.clone());
        Ok(vec![is_first.then(|| inputs[0].clone())])
    }
}
