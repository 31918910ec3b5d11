//! Operators that combine the elements of an axis.

use super::{Attribute, Graph, Value};

impl Graph {
    pub(crate) fn softmax(&self, x: &Value, axis: i64) -> Value {
        self.node("Softmax", &[x], vec![("axis", Attribute::Int(axis))])
    }

    /// The sum over an axis, which stays with length 1.
    pub(crate) fn sum(&self, x: &Value, axis: i64) -> Value {
        self.node("ReduceSum", &[x, &self.ints(&[axis])], vec![("keepdims", Attribute::Int(1))])
    }

    /// The mean over an axis, which stays with length 1.
    pub(crate) fn mean(&self, x: &Value, axis: i64) -> Value {
        self.reduce("ReduceMean", x, vec![axis])
    }

    /// The largest along the axes, which stay with length 1.
    pub(crate) fn largest(&self, x: &Value, axes: &[i64]) -> Value {
        self.reduce("ReduceMax", x, axes.to_vec())
    }

    fn reduce(&self, operator: &str, x: &Value, axes: Vec<i64>) -> Value {
        let settings = vec![("axes", Attribute::Ints(axes)), ("keepdims", Attribute::Int(1))];
        self.node(operator, &[x], settings)
    }

    /// The sums of the entries up to each of `axis`.
    pub(crate) fn cumulative(&self, x: &Value, axis: i64) -> Value {
        self.node("CumSum", &[x, &self.int(axis)], vec![])
    }

    /// The `k` largest of the last axis, the largest first and of equal ones the first, and their places; `k` is
    /// an integer.
    pub(crate) fn top(&self, x: &Value, k: &Value) -> [Value; 2] {
        let k = self.unsqueeze(k, &[0]);
        self.nodes_of("TopK", &[x, &k], vec![("axis", Attribute::Int(-1))])
    }

    /// (x − mean x) / √(var x + ε) · weight (+ bias) over the last axis.
    pub(crate) fn layer_norm(
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

    /// x / √(mean x² + ε) · weight over the last axis.
    pub(crate) fn rms_norm(&self, x: &Value, weight: &Value, epsilon: f64) -> Value {
        let mean_square = self.mean(&self.mul(x, x), -1);
        let root = self.map("Sqrt", &self.add(&mean_square, &self.number(epsilon)));
        self.mul(&self.div(x, &root), weight)
    }
}
