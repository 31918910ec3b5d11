//! Elementwise operators, which broadcast.

use super::{Attribute, Graph, Type, Value};

impl Graph {
    pub(in crate::onnx) fn add(&self, a: &Value, b: &Value) -> Value {
        self.node("Add", &[a, b], vec![])
    }

    pub(in crate::onnx) fn sub(&self, a: &Value, b: &Value) -> Value {
        self.node("Sub", &[a, b], vec![])
    }

    pub(in crate::onnx) fn mul(&self, a: &Value, b: &Value) -> Value {
        self.node("Mul", &[a, b], vec![])
    }

    /// Of integers, the quotient is rounded towards zero.
    pub(in crate::onnx) fn div(&self, a: &Value, b: &Value) -> Value {
        self.node("Div", &[a, b], vec![])
    }

    pub(in crate::onnx) fn max(&self, a: &Value, b: &Value) -> Value {
        self.node("Max", &[a, b], vec![])
    }

    pub(in crate::onnx) fn min(&self, a: &Value, b: &Value) -> Value {
        self.node("Min", &[a, b], vec![])
    }

    pub(in crate::onnx) fn equal(&self, a: &Value, b: &Value) -> Value {
        self.node("Equal", &[a, b], vec![])
    }

    /// a < b
    pub(in crate::onnx) fn less(&self, a: &Value, b: &Value) -> Value {
        self.node("Less", &[a, b], vec![])
    }

    /// a > b
    pub(in crate::onnx) fn greater(&self, a: &Value, b: &Value) -> Value {
        self.node("Greater", &[a, b], vec![])
    }

    pub(in crate::onnx) fn and(&self, a: &Value, b: &Value) -> Value {
        self.node("And", &[a, b], vec![])
    }

    pub(in crate::onnx) fn or(&self, a: &Value, b: &Value) -> Value {
        self.node("Or", &[a, b], vec![])
    }

    pub(in crate::onnx) fn not(&self, x: &Value) -> Value {
        self.node("Not", &[x], vec![])
    }

    /// a where `condition`, else b.
    pub(in crate::onnx) fn select(&self, condition: &Value, a: &Value, b: &Value) -> Value {
        self.node("Where", &[condition, a, b], vec![])
    }

    /// An operator of one input without settings, by its name.
    pub(in crate::onnx) fn map(&self, operator: &str, x: &Value) -> Value {
        self.node(operator, &[x], vec![])
    }

    pub(in crate::onnx) fn exp(&self, x: &Value) -> Value {
        self.map("Exp", x)
    }

    /// x · factor
    pub(in crate::onnx) fn scale(&self, x: &Value, factor: f64) -> Value {
        if factor == 1. { x.clone() } else { self.mul(x, &self.number(factor)) }
    }

    pub(in crate::onnx) fn cast(&self, x: &Value, to: Type) -> Value {
        self.node("Cast", &[x], vec![("to", Attribute::Int(to.code().into()))])
    }
}
