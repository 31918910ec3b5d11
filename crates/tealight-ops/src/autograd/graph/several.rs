//! Operations with several results.
//!
//! ```text
//! inputs ── [hub] ── result 0            each result stores its gradient; the hub, whose turn comes after
//!                 ── result 1            all of them, passes them on to the inputs together
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{Result, Tensor};

use super::{Saved, Value, record_unchecked};
use crate::autograd::nan_trace;
use crate::backend::buffer::stored;

/// Tensors of `values`, which save `inputs`. `backward` returns the gradients of `inputs` from the gradients of the
/// results, which are `None` for a result that has received none.
pub(crate) fn record_all(
    name: &'static str,
    inputs: &[impl AsRef<Tensor>],
    values: Vec<Value>,
    backward: impl FnOnce(&[Tensor], Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>>
    + Send
    + Sync
    + 'static,
) -> Result<Vec<Tensor>> {
    let gradients = Gradients::new(Mutex::new(vec![None; values.len()]));
    let received = gradients.clone();
    let number = stored(vec![0_f32], ());
    let hub = record_unchecked(name, inputs, number, Saved::Inputs, move |inputs, _, _| {
        backward(inputs, std::mem::take(&mut *locked(&received)))
    })?;
    let result = |(place, value): (usize, Value)| {
        nan_trace::check(name, inputs, &value.0);
        let gradients = gradients.clone();
        let store = move |inputs: &[Tensor], _: &Tensor, gradient: &Tensor| {
            let mut gradients = locked(&gradients);
            let is_first = gradients.iter().all(Option::is_none);
            gradients[place] = Some(gradient.clone());
            // The hub's backward runs only if the hub receives a gradient, whose value it does not read. The first
            // result whose backward runs therefore passes an arbitrary tensor to the hub, and the other results pass
            // none.
            Ok(vec![is_first.then(|| inputs[0].clone())])
        };
        record_unchecked("one of several", &[&hub], value, Saved::Inputs, store)
    };
    values.into_iter().enumerate().map(result).collect()
}

/// The gradients that have arrived so far, by result.
type Gradients = Arc<Mutex<Vec<Option<Tensor>>>>;

fn locked(gradients: &Gradients) -> MutexGuard<'_, Vec<Option<Tensor>>> {
    gradients.lock().unwrap_or_else(PoisonError::into_inner)
}
