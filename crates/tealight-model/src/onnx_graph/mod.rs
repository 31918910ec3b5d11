//! What a part of a model needs to write itself as ONNX: a graph under construction, its parameters ([`Scope`]), and
//! the sequence that a call reads ([`Sequence`]).
//!
//! ```text
//! graph.add(&graph.matmul(&x, &weight), &bias)          Add(MatMul(x, weight), bias)
//! ```
//!
//! Each method of a graph adds a node and returns its output. Operators are those of [`OPSET`]
//! (<https://onnx.ai/onnx/operators/>). Shapes are checked by whoever runs the graph. Nodes are in the order of their
//! computation; names are unique. The module `onnx` writes whole models.

mod elementwise;
mod error;
mod int8;
mod parameters;
mod products;
pub mod proto;
mod reductions;
mod scan;
mod sequence;
mod shapes;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use candle_core::{DType, Result, Tensor};
use prost::Message as _;

pub use error::{OnnxError, OnnxResult};
pub use int8::Weights;
pub(crate) use parameters::{Parameters, Scope};
pub(crate) use sequence::{FORBIDDEN, Lengths, Mask, Sequence};

use proto::{
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
pub struct Value(Rc<str>);

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
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
pub(crate) enum Axis {
    Fixed(usize),
    /// Chosen by each call.
    Named(&'static str),
}

/// A setting of an operator.
#[derive(Debug)]
pub(crate) enum Attribute {
    Float(f32),
    Int(i64),
    Ints(Vec<i64>),
    Graph(GraphProto),
}

/// The graph.
#[derive(Debug, Default)]
pub struct Graph {
    weights: Weights,
    nodes: RefCell<Vec<NodeProto>>,
    constants: RefCell<BTreeMap<String, TensorProto>>,
    inputs: RefCell<Vec<ValueInfoProto>>,
    outputs: RefCell<Vec<ValueInfoProto>>,
    n_values: Cell<usize>,
    /// Bytes, scale and zero point of values that have been rounded, by the names of the values.
    quantized: RefCell<BTreeMap<Rc<str>, [Value; 3]>>,
}

/// Inputs, outputs, constants, and the file.
impl Graph {
    pub(crate) fn new(weights: Weights) -> Self {
        Self { weights, ..Self::default() }
    }

    pub(crate) fn input(&self, name: &str, of: Type, shape: &[Axis]) -> Value {
        self.inputs.borrow_mut().push(information(name, of, shape));
        Value(name.into())
    }

    /// Declares `value` as the output `name`.
    pub(crate) fn output(&self, name: &str, value: &Value, shape: &[Axis]) {
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
    pub(crate) fn tensor(&self, name: &str, x: &Tensor) -> Result<Value> {
        if !self.constants.borrow().contains_key(name) {
            let values = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            let dims = x.dims().iter().map(|&dim| signed(dim)).collect();
            let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.constant(name.to_owned(), Type::Float, dims, raw_data);
        }
        Ok(Value(name.into()))
    }

    /// A number.
    pub(crate) fn number(&self, value: f64) -> Value {
        let value = value as f32;
        self.constant(format!("{value:?}"), Type::Float, Vec::new(), value.to_le_bytes().to_vec())
    }

    /// A list of integers.
    pub(crate) fn ints(&self, values: &[i64]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(format!("{values:?}"), Type::Int, vec![signed(values.len())], bytes)
    }

    /// An integer.
    pub(crate) fn int(&self, value: i64) -> Value {
        self.constant(value.to_string(), Type::Int, Vec::new(), value.to_le_bytes().to_vec())
    }

    fn constant(&self, name: String, of: Type, dims: Vec<i64>, raw_data: Vec<u8>) -> Value {
        self.constant_of(name, of.code(), dims, raw_data)
    }

    /// A constant of this [element type](data_type).
    fn constant_of(
        &self,
        name: String,
        data_type: i32,
        dims: Vec<i64>,
        raw_data: Vec<u8>,
    ) -> Value {
        let value = Value(name.as_str().into());
        let tensor = TensorProto { dims, data_type, name: name.clone(), raw_data };
        self.constants.borrow_mut().entry(name).or_insert(tensor);
        value
    }

    /// The file.
    ///
    /// # Errors
    /// If the constants are too large for a file.
    pub(crate) fn into_bytes(self) -> OnnxResult<Vec<u8>> {
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
    pub(crate) fn node(
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
        self.push(operator, inputs, &outputs, attributes);
        outputs.map(|output| Value(output.into()))
    }

    /// Adds a node with these outputs.
    fn push(
        &self,
        operator: &str,
        inputs: &[&Value],
        outputs: &[String],
        attributes: Vec<(&str, Attribute)>,
    ) {
        let attribute = attributes.into_iter().map(|(name, value)| attribute(name, value));
        self.nodes.borrow_mut().push(NodeProto {
            input: inputs.iter().map(|input| input.0.to_string()).collect(),
            output: outputs.to_vec(),
            name: outputs[0].clone(),
            op_type: operator.to_owned(),
            attribute: attribute.collect(),
        });
    }
}

/// A length as ONNX writes it.
pub(crate) fn signed(len: usize) -> i64 {
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
