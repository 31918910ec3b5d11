//! Operations whose forward and backward are loops over slices.

use candle_core::{Result, Shape, Tensor};

use super::{Saved, record_saving};
use crate::backend::buffer::{View, contiguous, gradients, stored};
use crate::backend::element::Element;
use crate::backend::profile::{Phase, timed};

/// `operation` on the elements of `inputs`, which are on the CPU: it returns the elements of the output and
/// its own backward.
///
/// ```text
/// |inputs| (output, |inputs, output, gradient| gradients of the inputs)
/// ```
///
/// The backward owns everything that it needs besides the `saved` tensors. It gets empty slices for tensors that are
/// not saved.
pub(crate) fn fused<T: Element, B, const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    shape: impl Into<Shape>,
    saved: Saved,
    operation: impl FnOnce([&[T]; N]) -> (Vec<T>, B),
) -> Result<Tensor>
where
    B: FnOnce([&[T]; N], &[T], &[T]) -> [Vec<T>; N] + Send + Sync + 'static,
{
    let inputs = contiguous(&inputs)?;
    let (output, backward) = timed(name, Phase::Forward, || {
        let views = views(&inputs, true)?;
        Result::Ok(operation(slices(&views)))
    })?;
    let value = stored(output, shape);
    record_saving(name, &inputs, value, saved, move |inputs, output, gradient| {
        let inputs_views = views(inputs, saved.inputs())?;
        let output_view = views(std::slice::from_ref(output), saved.output())?;
        let [output] = slices(&output_view);
        let all = backward(slices(&inputs_views), output, &View::from_tensor(gradient)?);
        gradients(all.map(Some), inputs)
    })
}

/// Views of all tensors, or none.
fn views<T: Element>(tensors: &[Tensor], are_saved: bool) -> Result<Vec<View<'_, T>>> {
    tensors.iter().filter(|_| are_saved).map(View::from_tensor).collect()
}

/// The elements of each view; empty slices where there are fewer views.
fn slices<'a, T: Element, const N: usize>(views: &'a [View<'_, T>]) -> [&'a [T]; N] {
    std::array::from_fn(|i| views.get(i).map_or(&[][..], |view| &view[..]))
}
