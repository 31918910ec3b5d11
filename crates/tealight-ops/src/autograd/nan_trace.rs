//! Finds the first operation whose result is NaN or infinite.
//!
//! Cost: outside of [`first_not_finite`], one check of a thread-local flag per operation.

use std::cell::RefCell;
use std::fmt;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Storage, Tensor, TensorId};

thread_local! {
    static TRACE: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Trace {
    n_results: usize,
    found: Option<Origin>,
}

/// The first operation whose result holds a NaN or an infinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The operation's name.
    pub name: &'static str,
    /// Its number among all operations that ran, counted from 1.
    pub number: usize,
    /// What it read, its parameters included.
    pub inputs: Vec<TensorId>,
}

impl fmt::Display for Origin {
    /// `` the result of `softmax`, operation 12 of the pass ``
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the result of `{}`, operation {} of the pass", self.name, self.number)
    }
}

/// Runs `f`. Returns its result, and the first of this crate's operations on this thread whose result was not
/// finite, if any.
pub fn first_not_finite<R>(f: impl FnOnce() -> R) -> (R, Option<Origin>) {
    TRACE.set(Some(Trace::default()));
    let result = f();
    (result, TRACE.take().and_then(|trace| trace.found))
}

/// Checks a result of an operation on `inputs`, inside [`first_not_finite`] only.
pub(crate) fn check(name: &'static str, inputs: &[impl AsRef<Tensor>], value: &Storage) {
    TRACE.with_borrow_mut(|trace| {
        let Some(trace) = trace else { return };
        trace.n_results += 1;
        if trace.found.is_none() && !is_finite(value) {
            let inputs = inputs.iter().map(|input| input.as_ref().id()).collect();
            trace.found = Some(Origin { name, number: trace.n_results, inputs });
        }
    });
}

/// Whether all elements are finite. A result on an NVIDIA GPU is copied to the CPU first; a failure to copy counts as
/// not finite. Results on Metal are not checked and count as finite.
fn is_finite(value: &Storage) -> bool {
    match value {
        Storage::Cpu(value) => all_finite(value),
        Storage::Cuda(value) => value.to_cpu_storage().is_ok_and(|value| all_finite(&value)),
        Storage::Metal(_) => true,
    }
}

fn all_finite(value: &CpuStorage) -> bool {
    match value {
        CpuStorage::F32(x) => x.iter().all(|x| x.is_finite()),
        CpuStorage::F64(x) => x.iter().all(|x| x.is_finite()),
        CpuStorage::F16(x) => x.iter().all(|x| x.is_finite()),
        CpuStorage::BF16(x) => x.iter().all(|x| x.is_finite()),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result, Var};

    use super::*;
    use crate::ops::activation::{gelu, relu};
    use crate::ops::linear::{Map, linears};

    #[test]
    fn the_first_operation_that_overflows_is_named() -> Result<()> {
        let x = Tensor::new(&[1_f32, f32::INFINITY], &Device::Cpu)?;
        let fine = Tensor::new(&[1_f32, 2.], &Device::Cpu)?;
        let (result, origin) = first_not_finite(|| {
            gelu(&fine)?;
            relu(&x)?;
            gelu(&x)
        });
        result?;
        let expected = Origin { name: "relu", number: 2, inputs: vec![x.id()] };
        assert_eq!(origin, Some(expected));
        let message = "the result of `relu`, operation 2 of the pass";
        assert_eq!(origin.unwrap().to_string(), message);
        assert_eq!(first_not_finite(|| gelu(&fine)).1, None);
        Ok(())
    }

    #[test]
    fn an_operation_with_several_results_is_named_with_what_it_reads() -> Result<()> {
        let x = Tensor::new(&[[1_f32, 2.]], &Device::Cpu)?;
        let fine = Var::new(&[[1_f32, 1.]], &Device::Cpu)?;
        let large = Var::new(&[[f32::MAX, f32::MAX]], &Device::Cpu)?;
        let maps = [&fine, &large].map(|weight| Map { weight: weight.as_tensor(), bias: None });
        let (results, origin) = first_not_finite(|| linears(&x, maps));
        results?;
        let inputs = vec![x.id(), fine.id(), large.id()];
        assert_eq!(origin, Some(Origin { name: "linear", number: 2, inputs }));
        Ok(())
    }
}
