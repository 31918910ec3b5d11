//! Dropout (Srivastava et al. 2014, <https://jmlr.org/papers/v15/srivastava14a.html>).
//!
//! A mask is a function of (the micro-batch's stream, the layer's name, the element's index), so it
//! does not depend on the order in which layers run, and a resumed run drops the same elements.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::dropout::{Draw, dropout};

use crate::mode::Mode;

/// In training, zeroes each element with probability `rate` and scales the rest by 1 / (1 − rate).
#[derive(Clone, Debug)]
pub struct Dropout {
    rate: f64,
    name: String,
}

impl Dropout {
    /// A layer whose name, from which its masks are drawn, is the prefix of `vb`.
    pub fn new(rate: f64, vb: &VarBuilder<'_>) -> Self {
        Self { rate, name: vb.prefix() }
    }

    /// The mask of [`forward`](Self::forward), for fused operations that apply dropout themselves.
    pub fn draw(&self, mode: Mode) -> Option<Draw> {
        match mode {
            Mode::Train { stream, .. } if self.is_active(mode) => {
                Some(Draw { rate: self.rate, stream: stream.fork_name(&self.name) })
            }
            Mode::Train { .. } | Mode::Eval => None,
        }
    }

    /// Whether it zeroes elements in this mode.
    pub fn is_active(&self, mode: Mode) -> bool {
        matches!(mode, Mode::Train { .. }) && self.rate > 0.
    }

    /// Any shape → the same shape.
    pub fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        match self.draw(mode) {
            Some(Draw { rate, stream }) => dropout(x, rate, stream),
            None => Ok(x.clone()),
        }
    }
}
