//! A backward pass that hands over each gradient as soon as it is final, so that it can be sent to other processes
//! while the rest of the pass runs.
//!
//! A gradient is final when nothing that has yet to run can add to it; [`reads`](crate::autograd::graph::reads) says
//! how that is known. Should a gradient arrive for a parameter that was handed over, the pass ends with an error.

use candle_core::{Result, Tensor, TensorId};

use super::{Gradients, check};
use crate::autograd::graph::reads::first_uses;
use crate::autograd::graph::walk::{Walk, observed_gradients};

/// [`backward_scaled`](super::backward_scaled) that calls `on_final` once for each parameter, with its place among the
/// parameters, as soon as its gradient is final.
///
/// Parameters come in the order in which the pass finishes them, roughly from the loss to the input. If one operation
/// finishes several of them, they come in the order of the parameters. Parameters without a gradient come last, with
/// `None`. Processes that run the same operations see the same order.
///
/// The [`Gradients`] that the pass returns hold the same tensors. Gradients that the pass has yet to read may share
/// their elements, so they must not be changed in place before the pass ends.
///
/// # Errors
/// As [`backward`](super::backward); the first error of `on_final`, which ends the pass; or if a part of
/// [`checkpoint`](crate::recompute::checkpoint) reads other parameters when it is computed again.
pub fn backward_observed<'a>(
    loss: &Tensor,
    factor: f64,
    parameters: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    on_final: impl FnMut(usize, Option<&Tensor>) -> Result<()>,
) -> Result<Gradients> {
    let factor = (loss.ones_like()? * factor)?;
    check(loss, &factor)?;
    let parameters: Vec<_> = parameters.into_iter().collect();
    let mut report = Report::new(loss, &parameters, on_final);
    let gradients = observed_gradients(loss, &factor, |walk| report.advance(walk))?;
    report.finish(|variable| gradients.get(&variable))?;
    Ok(Gradients::collect(parameters, |variable| gradients.get(&variable).cloned()))
}

/// A parameter that has not been reported.
#[derive(Clone, Copy)]
struct UnreportedParameter {
    /// The lowest number of the nodes that read it; 0 if none does.
    first_use: u64,
    place: usize,
    variable: TensorId,
}

/// The parameters that a pass has yet to report.
struct Report<F> {
    /// In reverse order: the parameter that is reported next is the last.
    waiting: Vec<UnreportedParameter>,
    /// Parameters without a gradient, although every node that reads them has run.
    without_gradient: Vec<UnreportedParameter>,
    on_final: F,
}

impl<F: FnMut(usize, Option<&Tensor>) -> Result<()>> Report<F> {
    fn new(loss: &Tensor, parameters: &[(&str, &Tensor)], on_final: F) -> Self {
        let first_uses = first_uses(loss);
        let unreported = |(place, (_, parameter)): (usize, &(&str, &Tensor))| {
            let variable = parameter.id();
            let first_use = first_uses.get(&variable).copied().unwrap_or(0);
            UnreportedParameter { first_use, place, variable }
        };
        let mut waiting: Vec<_> = parameters.iter().enumerate().map(unreported).rev().collect();
        waiting.sort_by_key(|parameter| parameter.first_use);
        Self { waiting, without_gradient: Vec::new(), on_final }
    }

    /// Reports the parameters that only nodes above the next one read.
    fn advance(&mut self, walk: &mut Walk) -> Result<()> {
        let next = walk.next_number();
        let is_final = |parameter: &mut UnreportedParameter| {
            next.is_none_or(|next| next < parameter.first_use)
        };
        while let Some(parameter) = self.waiting.pop_if(is_final) {
            match walk.finish(parameter.variable) {
                Some(gradient) => (self.on_final)(parameter.place, Some(gradient))?,
                None => self.without_gradient.push(parameter),
            }
        }
        Ok(())
    }

    /// Reports all remaining parameters at the end of the pass.
    fn finish<'a>(mut self, gradient: impl Fn(TensorId) -> Option<&'a Tensor>) -> Result<()> {
        for UnreportedParameter { place, variable, .. } in self.without_gradient {
            (self.on_final)(place, gradient(variable))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::autograd::graph::record_linear;
    use crate::backend::buffer::stored;

    type Log = Arc<Mutex<Vec<String>>>;

    fn write(log: &Log, line: String) {
        log.lock().unwrap().push(line);
    }

    /// The sum of single numbers, whose backward writes a line.
    fn logged_sum(log: &Log, place: usize, x: &Tensor, parameter: &Var) -> Result<Tensor> {
        let log = log.clone();
        let sum = stored(vec![x.to_scalar::<f64>()? + parameter.to_scalar::<f64>()?], ());
        record_linear("sum", &[x, parameter], sum, move |gradient| {
            write(&log, format!("backward {place}"));
            Ok(vec![Some(gradient.clone()), Some(gradient.clone())])
        })
    }

    /// A chain of sums; the first and the third sum read the same parameter.
    #[test]
    fn a_report_follows_the_backward_that_completes_the_gradient() -> Result<()> {
        let number = || Var::ones((), DType::F64, &Device::Cpu);
        let (twice, once, last) = (number()?, number()?, number()?);
        let (log, start) = (Log::default(), Tensor::zeros((), DType::F64, &Device::Cpu)?);
        let chain = [&twice, &once, &twice, &last].into_iter().enumerate();
        let sum = |x: Tensor, (place, parameter)| logged_sum(&log, place, &x, parameter);
        let loss = chain.into_iter().try_fold(start, sum)?;
        let named = [("twice", &twice), ("once", &once), ("last", &last)];
        let parameters = named.map(|(name, parameter)| (name, parameter.as_tensor()));
        backward_observed(&loss, 1., parameters, |place, gradient| {
            let gradient = gradient.map(Tensor::to_scalar::<f64>).transpose()?;
            write(&log, format!("{} = {gradient:?}", named[place].0));
            Ok(())
        })?;
        assert_eq!(
            *log.lock().unwrap(),
            [
                "backward 3",
                "last = Some(1.0)",
                "backward 2",
                "backward 1",
                "once = Some(1.0)",
                "backward 0",
                "twice = Some(2.0)",
            ]
        );
        Ok(())
    }
}
