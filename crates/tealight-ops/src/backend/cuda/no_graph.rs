//! In place of `graph.rs` in a build without CUDA: there are no graphs to capture.

use std::result;

use candle_core::{Device, Error, Result, Tensor, bail};

use crate::rng::Stream;

pub(crate) fn warm_up<R>(_: &Device, f: impl FnOnce() -> R) -> R {
    f()
}

#[derive(Debug)]
pub(crate) enum Graph {}

impl Graph {
    pub(crate) fn capture<R, E: From<Error>>(
        device: &Device,
        _: Stream,
        _: impl FnOnce() -> result::Result<R, E>,
    ) -> result::Result<(Self, R), E> {
        let error = format!("CUDA graphs are not captured on {:?}", device.location());
        Err(Error::Msg(error).into())
    }

    pub(crate) fn replay(&mut self, _: Stream) -> Result<()> {
        match *self {}
    }
}

pub(crate) fn overwrite(_: &Tensor, _: &Tensor) -> Result<()> {
    bail!("there are no CUDA graphs in this build")
}
