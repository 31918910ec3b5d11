//! Candle's custom operations as nodes of the graph.

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Storage, Tensor, bail,
};

use super::{Operation, record};
use crate::backend::profile::{Pass, timed};

/// `operation` on one tensor.
pub(crate) fn apply1<C>(x: &Tensor, operation: C) -> Result<Tensor>
where
    C: CustomOp1 + Send + Sync + 'static,
{
    let value =
        timed(operation.name(), Pass::Forward, || on_cpu(x, |s, l| operation.cpu_fwd(s, l)))?;
    record(Unary(operation), &[x], value)
}

/// `operation` on two tensors.
pub(crate) fn apply2<C>(x: &Tensor, y: &Tensor, operation: C) -> Result<Tensor>
where
    C: CustomOp2 + Send + Sync + 'static,
{
    let value = timed(operation.name(), Pass::Forward, || {
        on_cpu(x, |sx, lx| on_cpu(y, |sy, ly| operation.cpu_fwd(sx, lx, sy, ly)))
    })?;
    record(Binary(operation), &[x, y], value)
}

/// `operation` on three tensors.
pub(crate) fn apply3<C>(x: &Tensor, y: &Tensor, z: &Tensor, operation: C) -> Result<Tensor>
where
    C: CustomOp3 + Send + Sync + 'static,
{
    let value = timed(operation.name(), Pass::Forward, || {
        on_cpu(x, |sx, lx| {
            on_cpu(y, |sy, ly| on_cpu(z, |sz, lz| operation.cpu_fwd(sx, lx, sy, ly, sz, lz)))
        })
    })?;
    record(Ternary(operation), &[x, y, z], value)
}

fn on_cpu<R>(x: &Tensor, f: impl FnOnce(&CpuStorage, &Layout) -> Result<R>) -> Result<R> {
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(storage, layout),
        _ => bail!("expected a tensor on the CPU"),
    }
}

struct Unary<C>(C);
struct Binary<C>(C);
struct Ternary<C>(C);

impl<C: CustomOp1 + Send + Sync> Operation for Unary<C> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let dx = self.0.bwd(&inputs[0], output, gradient)?;
        Ok(vec![dx])
    }
}

impl<C: CustomOp2 + Send + Sync> Operation for Binary<C> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (dx, dy) = self.0.bwd(&inputs[0], &inputs[1], output, gradient)?;
        Ok(vec![dx, dy])
    }
}

impl<C: CustomOp3 + Send + Sync> Operation for Ternary<C> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (dx, dy, dz) = self.0.bwd(&inputs[0], &inputs[1], &inputs[2], output, gradient)?;
        Ok(vec![dx, dy, dz])
    }
}
