//! A graph under construction: each method adds a node and returns its output.
//!
//! ```text
//! graph.add(&graph.matmul(&x, &weight), &bias)          Add(MatMul(x, weight), bias)
//! ```
//!
//! Operators are those of [`OPSET`] (<https://onnx.ai/onnx/operators/>). Shapes are checked by whoever runs the
//! graph. Nodes are in the order of their computation; names are unique.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use candle_core::{DType, Result, Tensor};
use prost::Message as _;
use tealight_ops::patches::Window;

use super::error::{OnnxError, OnnxResult};
use super::proto::{
    AttributeProto, Dimension, DimensionProto, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
    attribute_type, data_type,
};

/// The version of the operators: the first with `LayerNormalization`.
const OPSET: i64 = 17;
/// The version of the file format that came with it.
const IR_VERSION: i64 = 8;
/// Room in a file for everything that is not a constant.
const MAX_BYTES: usize = (1 << 31) - (1 << 24);

/// A tensor of the graph, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value(Rc<str>);

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Float,
    Int,
}

impl Type {
    fn code(self) -> i32 {
        match self {
            Self::Float => data_type::FLOAT,
            Self::Int => data_type::INT64,
        }
    }
}

/// One axis of an input or output.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    Fixed(usize),
    /// Chosen by each call.
    Named(&'static str),
}

/// A setting of an operator.
#[derive(Debug)]
pub(super) enum Attribute {
    Float(f32),
    Int(i64),
    Ints(Vec<i64>),
    Graph(GraphProto),
}

/// The graph.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: RefCell<Vec<NodeProto>>,
    constants: RefCell<BTreeMap<String, TensorProto>>,
    inputs: RefCell<Vec<ValueInfoProto>>,
    outputs: RefCell<Vec<ValueInfoProto>>,
    n_values: Cell<usize>,
}

/// Inputs, outputs, constants, and the file.
impl Graph {
    pub(super) fn input(&self, name: &str, of: Type, shape: &[Axis]) -> Value {
        self.inputs.borrow_mut().push(information(name, of, shape));
        Value(name.into())
    }

    /// Declares `value` as the output `name`.
    pub(super) fn output(&self, name: &str, value: &Value, shape: &[Axis]) {
        self.outputs.borrow_mut().push(information(name, Type::Float, shape));
        let node = NodeProto {
            input: vec![value.0.to_string()],
            output: vec![name.to_owned()],
            name: format!("output.{name}"),
            op_type: "Identity".to_owned(),
            attribute: Vec::new(),
        };
        self.nodes.borrow_mut().push(node);
    }

    /// The tensor `x` in f32 under a `name` of its own; the same name always holds the same tensor.
    pub(super) fn tensor(&self, name: &str, x: &Tensor) -> Result<Value> {
        if !self.constants.borrow().contains_key(name) {
            let values = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            let dims = x.dims().iter().map(|&dim| signed(dim)).collect();
            let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.constant(name.to_owned(), Type::Float, dims, raw_data);
        }
        Ok(Value(name.into()))
    }

    /// A number.
    pub(super) fn number(&self, value: f64) -> Value {
        let value = value as f32;
        self.constant(format!("{value:?}"), Type::Float, Vec::new(), value.to_le_bytes().to_vec())
    }

    /// A list of integers.
    pub(super) fn ints(&self, values: &[i64]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(format!("{values:?}"), Type::Int, vec![signed(values.len())], bytes)
    }

    /// An integer.
    pub(super) fn int(&self, value: i64) -> Value {
        self.constant(value.to_string(), Type::Int, Vec::new(), value.to_le_bytes().to_vec())
    }

    fn constant(&self, name: String, of: Type, dims: Vec<i64>, raw_data: Vec<u8>) -> Value {
        let value = Value(name.as_str().into());
        let tensor = TensorProto { dims, data_type: of.code(), name: name.clone(), raw_data };
        self.constants.borrow_mut().entry(name).or_insert(tensor);
        value
    }

    /// The file.
    ///
    /// # Errors
    /// If the constants are too large for a file.
    pub(super) fn into_bytes(self) -> OnnxResult<Vec<u8>> {
        let constants = self.constants.into_inner();
        let bytes = constants.values().map(|tensor| tensor.raw_data.len()).sum();
        if bytes > MAX_BYTES {
            return Err(OnnxError::TooLarge { bytes });
        }
        let graph = GraphProto {
            node: self.nodes.into_inner(),
            name: "tealight".to_owned(),
            initializer: constants.into_values().collect(),
            input: self.inputs.into_inner(),
            output: self.outputs.into_inner(),
        };
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "tealight".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        };
        Ok(model.encode_to_vec())
    }

    fn fresh(&self, operator: &str) -> String {
        let n = self.n_values.get();
        self.n_values.set(n + 1);
        format!("{operator}.{n}")
    }

    /// Adds a node with one output.
    pub(super) fn node(
        &self,
        operator: &str,
        inputs: &[&Value],
        attributes: Vec<(&str, Attribute)>,
    ) -> Value {
        let [output] = self.nodes_of(operator, inputs, attributes);
        output
    }

    /// Adds a node with `N` outputs.
    fn nodes_of<const N: usize>(
        &self,
        operator: &str,
        inputs: &[&Value],
        attributes: Vec<(&str, Attribute)>,
    ) -> [Value; N] {
        let outputs = [(); N].map(|()| self.fresh(operator));
        let attribute = attributes.into_iter().map(|(name, value)| attribute(name, value));
        let node = NodeProto {
            input: inputs.iter().map(|input| input.0.to_string()).collect(),
            output: outputs.to_vec(),
            name: outputs[0].clone(),
            op_type: operator.to_owned(),
            attribute: attribute.collect(),
        };
        self.nodes.borrow_mut().push(node);
        outputs.map(|output| Value(output.into()))
    }
}

/// Elementwise operators, which broadcast.
impl Graph {
    pub(super) fn add(&self, a: &Value, b: &Value) -> Value {
        self.node("Add", &[a, b], vec![])
    }

    pub(super) fn sub(&self, a: &Value, b: &Value) -> Value {
        self.node("Sub", &[a, b], vec![])
    }

    pub(super) fn mul(&self, a: &Value, b: &Value) -> Value {
        self.node("Mul", &[a, b], vec![])
    }

    /// Of integers, the quotient is rounded towards zero.
    pub(super) fn div(&self, a: &Value, b: &Value) -> Value {
        self.node("Div", &[a, b], vec![])
    }

    pub(super) fn max(&self, a: &Value, b: &Value) -> Value {
        self.node("Max", &[a, b], vec![])
    }

    pub(super) fn min(&self, a: &Value, b: &Value) -> Value {
        self.node("Min", &[a, b], vec![])
    }

    pub(super) fn equal(&self, a: &Value, b: &Value) -> Value {
        self.node("Equal", &[a, b], vec![])
    }

    /// a < b
    pub(super) fn less(&self, a: &Value, b: &Value) -> Value {
        self.node("Less", &[a, b], vec![])
    }

    /// a > b
    pub(super) fn greater(&self, a: &Value, b: &Value) -> Value {
        self.node("Greater", &[a, b], vec![])
    }

    pub(super) fn and(&self, a: &Value, b: &Value) -> Value {
        self.node("And", &[a, b], vec![])
    }

    pub(super) fn or(&self, a: &Value, b: &Value) -> Value {
        self.node("Or", &[a, b], vec![])
    }

    pub(super) fn not(&self, x: &Value) -> Value {
        self.node("Not", &[x], vec![])
    }

    /// a where `condition`, else b.
    pub(super) fn select(&self, condition: &Value, a: &Value, b: &Value) -> Value {
        self.node("Where", &[condition, a, b], vec![])
    }

    /// An operator of one input without settings, by its name.
    pub(super) fn map(&self, operator: &str, x: &Value) -> Value {
        self.node(operator, &[x], vec![])
    }

    pub(super) fn exp(&self, x: &Value) -> Value {
        self.map("Exp", x)
    }

    /// x · factor
    pub(super) fn scale(&self, x: &Value, factor: f64) -> Value {
        if factor == 1. { x.clone() } else { self.mul(x, &self.number(factor)) }
    }

    pub(super) fn cast(&self, x: &Value, to: Type) -> Value {
        self.node("Cast", &[x], vec![("to", Attribute::Int(to.code().into()))])
    }
}

/// Shapes.
impl Graph {
    /// The length of an axis, as an integer.
    pub(super) fn len(&self, x: &Value, axis: i64) -> Value {
        self.gather(&self.map("Shape", x), &self.int(axis), 0)
    }

    /// `0` keeps an axis, `-1` takes what is left.
    pub(super) fn reshape(&self, x: &Value, shape: &[i64]) -> Value {
        self.node("Reshape", &[x, &self.ints(shape)], vec![])
    }

    pub(super) fn transpose<const N: usize>(&self, x: &Value, order: [i64; N]) -> Value {
        self.node("Transpose", &[x], vec![("perm", Attribute::Ints(order.to_vec()))])
    }

    /// Adds axes of length 1, at their places in the result.
    pub(super) fn unsqueeze(&self, x: &Value, axes: &[i64]) -> Value {
        self.node("Unsqueeze", &[x, &self.ints(axes)], vec![])
    }

    /// Removes axes of length 1.
    pub(super) fn squeeze(&self, x: &Value, axes: &[i64]) -> Value {
        self.node("Squeeze", &[x, &self.ints(axes)], vec![])
    }

    /// Repeats axes of length 1 to `shape`, a list of integers.
    pub(super) fn expand(&self, x: &Value, shape: &Value) -> Value {
        self.node("Expand", &[x, shape], vec![])
    }

    pub(super) fn concat(&self, parts: &[&Value], axis: i64) -> Value {
        self.node("Concat", parts, vec![("axis", Attribute::Int(axis))])
    }

    /// start, start + step, … before end, of `axis`.
    pub(super) fn slice(&self, x: &Value, axis: i64, [start, end, step]: [i64; 3]) -> Value {
        let list = |value| self.ints(&[value]);
        self.node("Slice", &[x, &list(start), &list(end), &list(axis), &list(step)], vec![])
    }

    /// The entries `indices` of `axis`.
    pub(super) fn gather(&self, x: &Value, indices: &Value, axis: i64) -> Value {
        self.node("Gather", &[x, indices], vec![("axis", Attribute::Int(axis))])
    }

    /// Along the last axis, the entry that `indices` names at each place.
    pub(super) fn gather_last(&self, x: &Value, indices: &Value) -> Value {
        self.node("GatherElements", &[x, indices], vec![("axis", Attribute::Int(-1))])
    }

    /// `x`, with `updates` at `indices` of the last axis.
    pub(super) fn scatter_last(&self, x: &Value, indices: &Value, updates: &Value) -> Value {
        let inputs = [x, indices, updates];
        self.node("ScatterElements", &inputs, vec![("axis", Attribute::Int(-1))])
    }

    /// start, start + 1, … before end.
    pub(super) fn range(&self, start: &Value, end: &Value) -> Value {
        self.node("Range", &[start, end, &self.int(1)], vec![])
    }
}

/// Sums, products and normalisations.
impl Graph {
    /// `x (batch, inputs, height, width)`, `weight (outputs, inputs, size, size)`, `bias (outputs)` →
    /// `(batch, outputs, rows, columns)`
    pub(super) fn convolution(
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
    pub(super) fn max_pool(&self, x: &Value, window: Window) -> Value {
        self.node("MaxPool", &[x], sliding(window))
    }

    pub(super) fn matmul(&self, a: &Value, b: &Value) -> Value {
        self.node("MatMul", &[a, b], vec![])
    }

    /// a bᵀ of the last two of four axes.
    pub(super) fn matmul_transposed(&self, a: &Value, b: &Value) -> Value {
        self.matmul(a, &self.transpose(b, [0, 1, 3, 2]))
    }

    pub(super) fn softmax(&self, x: &Value, axis: i64) -> Value {
        self.node("Softmax", &[x], vec![("axis", Attribute::Int(axis))])
    }

    /// The sum over an axis, which stays with length 1.
    pub(super) fn sum(&self, x: &Value, axis: i64) -> Value {
        self.node("ReduceSum", &[x, &self.ints(&[axis])], vec![("keepdims", Attribute::Int(1))])
    }

    /// The mean over an axis, which stays with length 1.
    pub(super) fn mean(&self, x: &Value, axis: i64) -> Value {
        self.reduce("ReduceMean", x, vec![axis])
    }

    /// The largest along the axes, which stay with length 1.
    pub(super) fn largest(&self, x: &Value, axes: &[i64]) -> Value {
        self.reduce("ReduceMax", x, axes.to_vec())
    }

    fn reduce(&self, operator: &str, x: &Value, axes: Vec<i64>) -> Value {
        let settings = vec![("axes", Attribute::Ints(axes)), ("keepdims", Attribute::Int(1))];
        self.node(operator, &[x], settings)
    }

    /// The sums of the entries up to each of `axis`.
    pub(super) fn cumulative(&self, x: &Value, axis: i64) -> Value {
        self.node("CumSum", &[x, &self.int(axis)], vec![])
    }

    /// The `k` largest of the last axis, the largest first and of equal ones the first, and their places; `k` is
    /// an integer.
    pub(super) fn top(&self, x: &Value, k: &Value) -> [Value; 2] {
        let k = self.unsqueeze(k, &[0]);
        self.nodes_of("TopK", &[x, &k], vec![("axis", Attribute::Int(-1))])
    }

    /// (x − mean x) / √(var x + ε) · weight (+ bias) over the last axis.
    pub(super) fn layer_norm(
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

/// Recurrences.
impl Graph {
    /// Runs `step` along axis 1 of `inputs`, from the `states` at the start: (states, slices of the inputs without
    /// that axis) → (states, output). The outputs of all steps form axis 1 of the result.
    pub(super) fn scan<const S: usize, const N: usize>(
        &self,
        states: [&Value; S],
        inputs: [&Value; N],
        step: impl FnOnce([Value; S], [Value; N]) -> ([Value; S], Value),
    ) -> Value {
        let outer = self.nodes.take();
        let states_in = [(); S].map(|()| Value(self.fresh("state").into()));
        let slices = [(); N].map(|()| Value(self.fresh("slice").into()));
        let (states_out, output) = step(states_in.clone(), slices.clone());
        let body = GraphProto {
            node: self.nodes.replace(outer),
            name: self.fresh("step"),
            initializer: Vec::new(),
            input: states_in.iter().chain(&slices).map(untyped).collect(),
            output: states_out.iter().chain([&output]).map(untyped).collect(),
        };
        let settings = vec![
            ("body", Attribute::Graph(body)),
            ("num_scan_inputs", Attribute::Int(signed(N))),
            ("scan_input_axes", Attribute::Ints(vec![1; N])),
            ("scan_output_axes", Attribute::Ints(vec![1])),
        ];
        let all: Vec<&Value> = states.into_iter().chain(inputs).collect();
        self.last_output("Scan", &all, settings, S)
    }

    /// Adds a node with `n_unused` outputs before the one that is returned.
    fn last_output(
        &self,
        operator: &str,
        inputs: &[&Value],
        attributes: Vec<(&str, Attribute)>,
        n_unused: usize,
    ) -> Value {
        let outputs: Vec<String> = (0..=n_unused).map(|_| self.fresh(operator)).collect();
        let last = Value(outputs[n_unused].as_str().into());
        let attribute = attributes.into_iter().map(|(name, value)| attribute(name, value));
        self.nodes.borrow_mut().push(NodeProto {
            input: inputs.iter().map(|input| input.0.to_string()).collect(),
            output: outputs.clone(),
            name: outputs[0].clone(),
            op_type: operator.to_owned(),
            attribute: attribute.collect(),
        });
        last
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

/// A length as ONNX writes it.
pub(super) fn signed(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn attribute(name: &str, value: Attribute) -> AttributeProto {
    let named = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Attribute::Float(f) => {
            AttributeProto { f: Some(f), r#type: attribute_type::FLOAT, ..named }
        }
        Attribute::Int(i) => AttributeProto { i: Some(i), r#type: attribute_type::INT, ..named },
        Attribute::Ints(ints) => AttributeProto { ints, r#type: attribute_type::INTS, ..named },
        Attribute::Graph(g) => {
            AttributeProto { g: Some(g), r#type: attribute_type::GRAPH, ..named }
        }
    }
}

fn information(name: &str, of: Type, shape: &[Axis]) -> ValueInfoProto {
    let dim = shape.iter().map(|axis| DimensionProto {
        value: Some(match *axis {
            Axis::Fixed(len) => Dimension::DimValue(signed(len)),
            Axis::Named(name) => Dimension::DimParam(name.to_owned()),
        }),
    });
    let shape = Some(TensorShapeProto { dim: dim.collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: of.code(), shape });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

/// A tensor inside a graph, whose type follows from the nodes.
fn untyped(value: &Value) -> ValueInfoProto {
    ValueInfoProto { name: value.0.to_string(), r#type: None }
}
