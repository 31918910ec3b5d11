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
            bail!("{optimizer} of a parameter {parameter:?} with {operand:?}")
        }
    }
    Ok(())
}

/// Runs `f` on the elements of `state`, in place, and those of `gradient`. All are on the CPU. (Variables are always
/// contiguous.)
pub(super) fn update_in_place<T: Element, const N: usize>(
    state: [&Var; N],
    gradient: &Tensor,
    f: impl FnOnce([&mut [T]; N], &[T]),
) -> Result<()> {
    let gradient = gradient.contiguous()?;
    let gradient = View::of(&gradient)?;
    let mut f = Some(f);
    with_slices_mut(&state, Vec::with_capacity(N), &mut |slices| {
        let (Some(f), Ok(slices)) = (f.take(), slices.try_into()) else {
            unreachable!("invariant: called once, with one slice per tensor")
        };
        f(slices, &gradient);
    })
}

/// Runs `f` on `slices` and, after them, the elements of `tensors`.
fn with_slices_mut<T: Element>(
    tensors: &[&Var],
    mut slices: Vec<&mut [T]>,
    f: &mut dyn FnMut(Vec<&mut [T]>),
) -> Result<()> {
    let Some((tensor, others)) = tensors.split_first() else {
        f(slices);
        return Ok(());
    };
    with_slice_mut(tensor, |slice| {
        let mut slices: Vec<&mut [T]> = slices.iter_mut().map(|slice| &mut **slice).collect();
        slices.push(slice);
        with_slices_mut(others, slices, f)
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
