//! Products, convolutions and pooling.

use tealight_ops::patches::Window;

use super::{Attribute, Graph, Value, signed};

impl Graph {
    /// `x (batch, inputs, height, width)`, `weight (outputs, inputs, size, size)`, `bias (outputs)` →
    /// `(batch, outputs, rows, columns)`
    pub(in crate::onnx) fn convolution(
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
    pub(in crate::onnx) fn max_pool(&self, x: &Value, window: Window) -> Value {
        self.node("MaxPool", &[x], sliding(window))
    }

    pub(in crate::onnx) fn matmul(&self, a: &Value, b: &Value) -> Value {
        self.node("MatMul", &[a, b], vec![])
    }

    /// a bᵀ of the last two of four axes.
    pub(in crate::onnx) fn matmul_transposed(&self, a: &Value, b: &Value) -> Value {
        self.matmul(a, &self.transpose(b, [0, 1, 3, 2]))
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
