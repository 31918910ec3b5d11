//! Products, linear maps, convolutions and pooling.

use candle_core::Result;
use tealight_ops::patches::Window;

use super::parameters::Scope;
use super::{Attribute, Graph, Value, signed};

impl Graph {
    /// `x (batch, inputs, height, width)`, `weight (outputs, inputs, size, size)`, `bias (outputs)` →
    /// `(batch, outputs, rows, columns)`
    pub(crate) fn convolution(
        &self,
        x: &Value,
        weight: &Value,
        bias: Option<&Value>,
        window: Window,
    ) -> Value {
        let inputs: Vec<&Value> = [x, weight].into_iter().chain(bias).collect();
        self.node("Conv", &inputs, sliding(window))
    }

    /// The largest of each window of `x (batch, channels, height, width)`.
    pub(crate) fn max_pool(&self, x: &Value, window: Window) -> Value {
        self.node("MaxPool", &[x], sliding(window))
    }

    pub(crate) fn matmul(&self, a: &Value, b: &Value) -> Value {
        self.node("MatMul", &[a, b], vec![])
    }

    /// a bᵀ of the last two of four axes.
    pub(crate) fn matmul_transposed(&self, a: &Value, b: &Value) -> Value {
        self.matmul(a, &self.transpose(b, [0, 1, 3, 2]))
    }

    /// x Wᵀ (+ b) with `weight (out, in)` and `bias (out)` of `at`, if there is one: `(.., in)` → `(.., out)`
    pub(crate) fn linear(&self, at: &Scope<'_>, x: &Value) -> Result<Value> {
        self.biased(at, &self.product(at, x)?)
    }

    /// x + b, if there is a bias.
    pub(crate) fn biased(&self, at: &Scope<'_>, x: &Value) -> Result<Value> {
        if at.has("bias") { Ok(self.add(x, &at.constant(self, "bias")?)) } else { Ok(x.clone()) }
    }
}

/// The attributes of an operator with a sliding window.
fn sliding(Window { size, stride, padding }: Window) -> Vec<(&'static str, Attribute)> {
    let repeated = |value: usize, n: usize| Attribute::Ints(vec![signed(value); n]);
    vec![
        ("kernel_shape", repeated(size, 2)),
        ("strides", repeated(stride, 2)),
        ("pads", repeated(padding, 4)),
    ]
}
