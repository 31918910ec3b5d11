//! Argument checks, conversions and access to elements that the optimizers share.

use candle_core::{Result, Tensor, Var, bail};

use crate::backend::buffer::{View, with_slice_mut};
use crate::backend::choice::at_least_f32;
use crate::backend::element::Element;

/// # Errors
/// If `step` is 0.
pub(super) fn check_step(optimizer: &str, step: u64) -> Result<()> {
    if step == 0 {
        bail!("{optimizer} step 0: steps count from 1")
    }
    Ok(())
}

/// # Errors
/// If an operand has another shape than the parameter.
pub(super) fn check_shapes(optimizer: &str, parameter: &Var, operands: &[&Tensor]) -> Result<()> {
    for operand in operands {
        if operand.dims() != parameter.dims() {
            let (parameter, operand) = (parameter.shape(), operand.shape());
            bail!(
                "{optimizer} of a parameter {parameter:?} with {operand:?}: expected the same shape"
            )
        }
    }
    Ok(())
}

/// Runs `f` on the elements of `state`, in place, and on the elements of `gradient`. All are on the CPU. (Variables are
/// always contiguous.)
pub(super) fn update_in_place<T: Element, const N: usize>(
    state: [&Var; N],
    gradient: &Tensor,
    f: impl FnOnce([&mut [T]; N], &[T]),
) -> Result<()> {
    let gradient = gradient.contiguous()?;
    let gradient = View::from_tensor(&gradient)?;
    let slices = std::array::from_fn(|_| -> &mut [T] { &mut [] });
    with_slices_mut(state, 0, slices, |slices| f(slices, &gradient))
}

/// Runs `f` on `slices`, with the elements of the variables from number `first` on in their places.
fn with_slices_mut<T: Element, const N: usize>(
    variables: [&Var; N],
    first: usize,
    slices: [&mut [T]; N],
    f: impl FnOnce([&mut [T]; N]),
) -> Result<()> {
    let Some(variable) = variables.get(first) else {
        f(slices);
        return Ok(());
    };
    with_slice_mut(variable, |slice| {
        let mut slices = slices;
        slices[first] = slice;
        with_slices_mut(variables, first + 1, slices, f)
    })
}

/// `x` without its history, half precision in f32.
pub(super) fn wide(x: &Tensor) -> Result<Tensor> {
    at_least_f32(&x.detach())
}

/// Writes `x` into `target`, rounded to its dtype.
pub(super) fn store(target: &Var, x: &Tensor) -> Result<()> {
    target.set(&x.to_dtype(target.dtype())?)
}

/// Updates a moving average, whose rate of decay is `beta`, and returns its new value.
pub(super) fn averaged(average: &Var, new: &Tensor, beta: f64) -> Result<Tensor> {
    let average_now = ((wide(average)? * beta)? + (new * (1. - beta))?)?;
    store(average, &average_now)?;
    Ok(average_now)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn elements_of_all_tensors_are_updated_in_place() -> Result<()> {
        let [a, b, c] = [2_f32, 3., 5.].map(|x| Var::new(&[x, 7. * x], &Device::Cpu));
        let (a, b, c) = (a?, b?, c?);
        let gradient = Tensor::new(&[11_f32, 13.], &Device::Cpu)?;
        update_in_place::<f32, 3>([&a, &b, &c], &gradient, |[a, b, c], gradient| {
            for i in 0..2 {
                (a[i], b[i], c[i]) = (b[i], c[i], a[i] * gradient[i]);
            }
        })?;
        assert_eq!(a.to_vec1::<f32>()?, [3., 21.]);
        assert_eq!(b.to_vec1::<f32>()?, [5., 35.]);
        assert_eq!(c.to_vec1::<f32>()?, [22., 182.]);
        Ok(())
    }
}
