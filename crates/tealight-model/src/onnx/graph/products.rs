//! Products, convolutions, and operators that combine the elements of an axis.

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

    pub(in crate::onnx) fn softmax(&self, x: &Value, axis: i64) -> Value {
        self.node("Softmax", &[x], vec![("axis", Attribute::Int(axis))])
    }

    /// The sum over an axis, which stays with length 1.
    pub(in crate::onnx) fn sum(&self, x: &Value, axis: i64) -> Value {
        self.node("ReduceSum", &[x, &self.ints(&[axis])], vec![("keepdims", Attribute::Int(1))])
    }

    /// The mean over an axis, which stays with length 1.
    pub(in crate::onnx) fn mean(&self, x: &Value, axis: i64) -> Value {
        self.reduce("ReduceMean", x, vec![axis])
    }

    /// The largest along the axes, which stay with length 1.
    pub(in crate::onnx) fn largest(&self, x: &Value, axes: &[i64]) -> Value {
        self.reduce("ReduceMax", x, axes.to_vec())
    }

    fn reduce(&self, operator: &str, x: &Value, axes: Vec<i64>) -> Value {
        let settings = vec![("axes", Attribute::Ints(axes)), ("keepdims", Attribute::Int(1))];
        self.node(operator, &[x], settings)
    }

    /// The sums of the entries up to each of `axis`.
    pub(in crate::onnx) fn cumulative(&self, x: &Value, axis: i64) -> Value {
        self.node("CumSum", &[x, &self.int(axis)], vec![])
    }

    /// The `k` largest of the last axis, the largest first and of equal ones the first, and their places; `k` is
    /// an integer.
    pub(in crate::onnx) fn top(&self, x: &Value, k: &Value) -> [Value; 2] {
        let k = self.unsqueeze(k, &[0]);
        self.nodes_of("TopK", &[x, &k], vec![("axis", Attribute::Int(-1))])
    }

    /// (x − mean x) / √(var x + ε) · weight (+ bias) over the last axis.
    pub(in crate::onnx) fn layer_norm(
        &self,
        x: &Value,
        weight: &Value,
        bias: Option<&Value>,
        epsilon: f64,
    ) -> Value {
        let inputs: Vec<&Value> = [x, weight].into_iter().chain(bias).collect();
        let epsilon = ("epsilon", Attribute::Float(epsilon as f32));
        self.node("LayerNormalization", &inputs, vec![("axis", Attribute::Int(-1)), epsilon])
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
