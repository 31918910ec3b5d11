//! Elementwise operators, which broadcast.

use super::{Attribute, Graph, Type, Value};

impl Graph {
    pub(crate) fn add(&self, a: &Value, b: &Value) -> Value {
        self.node("Add", &[a, b], vec![])
    }

    pub(crate) fn sub(&self, a: &Value, b: &Value) -> Value {
        self.node("Sub", &[a, b], vec![])
    }

    pub(crate) fn mul(&self, a: &Value, b: &Value) -> Value {
        self.node("Mul", &[a, b], vec![])
    }

    /// Of integers, the quotient is rounded towards zero.
    pub(crate) fn div(&self, a: &Value, b: &Value) -> Value {
        self.node("Div", &[a, b], vec![])
    }

    pub(crate) fn max(&self, a: &Value, b: &Value) -> Value {
        self.node("Max", &[a, b], vec![])
    }

    pub(crate) fn min(&self, a: &Value, b: &Value) -> Value {
        self.node("Min", &[a, b], vec![])
    }

    pub(crate) fn equal(&self, a: &Value, b: &Value) -> Value {
        self.node("Equal", &[a, b], vec![])
    }

    /// a < b
    pub(crate) fn less(&self, a: &Value, b: &Value) -> Value {
        self.node("Less", &[a, b], vec![])
    }

    /// a > b
    pub(crate) fn greater(&self, a: &Value, b: &Value) -> Value {
        self.node("Greater", &[a, b], vec![])
    }

    pub(crate) fn and(&self, a: &Value, b: &Value) -> Value {
        self.node("And", &[a, b], vec![])
    }

    pub(crate) fn or(&self, a: &Value, b: &Value) -> Value {
        self.node("Or", &[a, b], vec![])
    }

    pub(crate) fn not(&self, x: &Value) -> Value {
        self.node("Not", &[x], vec![])
    }

    /// a where `condition`, else b.
    pub(crate) fn select(&self, condition: &Value, a: &Value, b: &Value) -> Value {
        self.node("Where", &[condition, a, b], vec![])
    }

    /// An operator of one input without settings, by its name.
    pub(crate) fn map(&self, operator: &str, x: &Value) -> Value {
        self.node(operator, &[x], vec![])
    }

    pub(crate) fn exp(&self, x: &Value) -> Value {
        self.map("Exp", x)
    }

    /// x · factor
    pub(crate) fn scale(&self, x: &Value, factor: f64) -> Value {
        if factor == 1. { x.clone() } else { self.mul(x, &self.number(factor)) }
    }

    /// x, with 1 in place of 0.
    pub(crate) fn nonzero(&self, x: &Value) -> Value {
        self.add(x, &self.cast(&self.equal(x, &self.number(0.)), Type::Float))
    }

    pub(crate) fn cast(&self, x: &Value, to: Type) -> Value {
        self.node("Cast", &[x], vec![("to", Attribute::Int(to.code().into()))])
    }
}
