//! Operators that read, change or join shapes, and that choose elements by index.

use super::{Attribute, Graph, Value};

impl Graph {
    /// The length of an axis, as an integer.
    pub(crate) fn len(&self, x: &Value, axis: i64) -> Value {
        self.gather(&self.map("Shape", x), &self.int(axis), 0)
    }

    /// `0` keeps an axis, `-1` takes what is left.
    pub(crate) fn reshape(&self, x: &Value, shape: &[i64]) -> Value {
        self.node("Reshape", &[x, &self.ints(shape)], vec![])
    }

    pub(crate) fn transpose<const N: usize>(&self, x: &Value, order: [i64; N]) -> Value {
        self.node("Transpose", &[x], vec![("perm", Attribute::Ints(order.to_vec()))])
    }

    /// Adds axes of length 1, at their places in the result.
    pub(crate) fn unsqueeze(&self, x: &Value, axes: &[i64]) -> Value {
        self.node("Unsqueeze", &[x, &self.ints(axes)], vec![])
    }

    /// Removes axes of length 1.
    pub(crate) fn squeeze(&self, x: &Value, axes: &[i64]) -> Value {
        self.node("Squeeze", &[x, &self.ints(axes)], vec![])
    }

    /// Repeats axes of length 1 to `shape`, a list of integers.
    pub(crate) fn expand(&self, x: &Value, shape: &Value) -> Value {
        self.node("Expand", &[x, shape], vec![])
    }

    pub(crate) fn concat(&self, parts: &[&Value], axis: i64) -> Value {
        self.node("Concat", parts, vec![("axis", Attribute::Int(axis))])
    }

    /// start, start + step, … before end, of `axis`.
    pub(crate) fn slice(&self, x: &Value, axis: i64, [start, end, step]: [i64; 3]) -> Value {
        let list = |value| self.ints(&[value]);
        self.node("Slice", &[x, &list(start), &list(end), &list(axis), &list(step)], vec![])
    }

    /// The entries `indices` of `axis`.
    pub(crate) fn gather(&self, x: &Value, indices: &Value, axis: i64) -> Value {
        self.node("Gather", &[x, indices], vec![("axis", Attribute::Int(axis))])
    }

    /// Along the last axis, the entry that `indices` names at each place.
    pub(crate) fn gather_last(&self, x: &Value, indices: &Value) -> Value {
        self.node("GatherElements", &[x, indices], vec![("axis", Attribute::Int(-1))])
    }

    /// `x`, with `updates` at `indices` of the last axis.
    pub(crate) fn scatter_last(&self, x: &Value, indices: &Value, updates: &Value) -> Value {
        let inputs = [x, indices, updates];
        self.node("ScatterElements", &inputs, vec![("axis", Attribute::Int(-1))])
    }

    /// start, start + 1, … before end.
    pub(crate) fn range(&self, start: &Value, end: &Value) -> Value {
        self.node("Range", &[start, end, &self.int(1)], vec![])
    }
}
