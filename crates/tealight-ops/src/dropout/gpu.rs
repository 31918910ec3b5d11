//! The kernel, which is its own backward: a thread for each block of random words.

use candle_core::{Result, Tensor};

use super::{Draw, threshold};
use crate::gpu::{Buffer, Launch};
use crate::graph::{Operation, Value, record};

pub(super) fn dropout(x: &Tensor, draw: Draw) -> Result<Tensor> {
    let x = x.contiguous()?;
    record(Dropout(draw), &[&x], of(None, &x, draw)?)
}

/// base + Dropout(x), of contiguous tensors of one shape.
pub(crate) fn of(base: Option<&Tensor>, x: &Tensor, draw: Draw) -> Result<Value> {
    let n = x.elem_count();
    let [key0, key1] = draw.stream.key();
    let mut y = Buffer::like(x)?;
    Launch::new("elementwise", "dropout", x)?
        .over(n.div_ceil(4))
        .read_if(base)?
        .read(x)?
        .write(&mut y)?
        .size(n)
        .word(key0)
        .word(key1)
        .word(threshold(draw.rate))
        .number(1. / (1. - draw.rate))
        .run()?;
    Ok(y.value(x.shape()))
}

struct Dropout(Draw);

impl Operation for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn reads_input(&self, _: usize) -> bool {
        false
    }

    fn reads_output(&self) -> bool {
        false
    }

    fn backward(
        self: Box<Self>,
        _: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = gradient.contiguous()?;
        Ok(vec![Some(crate::graph::constant(of(None, &gradient, self.0)?)?)])
    }
}
