//! Where a number that is not finite comes from: the first operation that gave one.
//!
//! While nobody watches, an operation pays one look at a flag.

use std::cell::RefCell;
use std::fmt;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Storage};

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Watch {
    n_results: usize,
    found: Option<Origin>,
}

/// The first operation whose result holds a NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The operation.
    pub name: &'static str,
    /// Which one, counted from 1 over all results that were computed.
    pub number: usize,
}

impl fmt::Display for Origin {
    /// `` the result of `softmax`, operation 12 of the step ``
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the result of `{}`, operation {} of the step", self.name, self.number)
    }
}

/// What `f` gives, and the first of this crate's operations on this thread that gave what is not finite.
pub fn first_not_finite<R>(f: impl FnOnce() -> R) -> (R, Option<Origin>) {
    WATCH.set(Some(Watch::default()));
    let result = f();
    (result, WATCH.take().and_then(|watch| watch.found))
}

/// Looks at the result of an operation, if somebody watches.
pub(crate) fn look(name: &'static str, value: &Storage) {
    WATCH.with_borrow_mut(|watch| {
        let Some(watch) = watch else { return };
        watch.n_results += 1;
        if watch.found.is_none() && !of_device(value) {
            watch.found = Some(Origin { name, number: watch.n_results });
        }
    });
}

/// Of a GPU's results a copy is looked at; one that cannot be copied is not.
fn of_device(value: &Storage) -> bool {
    match value {
        Storage::Cpu(value) => is_finite(value),
        Storage::Cuda(value) => value.to_cpu_storage().is_ok_and(|value| is_finite(&value)),
        Storage::Metal(_) => true,
    }
}

fn is_finite(value: &CpuStorage) -> bool {
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
    use candle_core::{Device, Result, Tensor};

    use super::*;
    use crate::ops::activation::{gelu, relu};

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
        assert_eq!(origin, Some(Origin { name: "relu", number: 2 }));
        let message = "the result of `relu`, operation 2 of the step";
        assert_eq!(origin.unwrap().to_string(), message);
        assert_eq!(first_not_finite(|| gelu(&fine)).1, None);
        Ok(())
    }
}
