//! Runs a graph: the definitions of the operators (<https://onnx.ai/onnx/operators/>), written out for tests.
//! What is missing here is no part of a graph that Tealight writes.

use std::collections::BTreeMap;

use tealight_model::onnx::proto::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto,
    data_type,
};

use crate::array::{Array, broadcast};

/// Tensors by name.
pub(crate) type Values = BTreeMap<String, Array>;

/// The outputs of the model for these inputs.
pub(crate) fn run(model: &ModelProto, inputs: &Values) -> Values {
    let graph = model.graph.as_ref().expect("a graph");
    let mut lengths = BTreeMap::new();
    for input in &graph.input {
        check_shape(input, &inputs[&input.name], &mut lengths);
    }
    let outputs = run_graph(graph, inputs.clone());
    for output in &graph.output {
        check_shape(output, &outputs[&output.name], &mut lengths);
    }
    outputs
}

/// Checks a tensor against the declared shape; equal names are equal lengths.
fn check_shape(declared: &ValueInfoProto, x: &Array, lengths: &mut BTreeMap<String, usize>) {
    let of_type = declared.r#type.as_ref().and_then(|of| of.tensor_type.as_ref()).expect("a type");
    let dims = &of_type.shape.as_ref().expect("a shape").dim;
    assert_eq!(dims.len(), x.shape.len(), "{}", declared.name);
    for (dim, &len) in dims.iter().zip(&x.shape) {
        let expected = match dim.value.as_ref().expect("a length") {
            Dimension::DimValue(expected) => *expected as usize,
            Dimension::DimParam(name) => *lengths.entry(name.clone()).or_insert(len),
        };
        assert_eq!(len, expected, "{}: {:?}", declared.name, x.shape);
    }
}

fn run_graph(graph: &GraphProto, mut values: Values) -> Values {
    values.extend(graph.initializer.iter().map(|x| (x.name.clone(), constant(x))));
    for node in &graph.node {
        let inputs: Vec<&Array> = node
            .input
            .iter()
            .map(|name| values.get(name).unwrap_or_else(|| panic!("{name} of {}", node.name)))
            .collect();
        let outputs = match node.op_type.as_str() {
            "Scan" => scan(node, &inputs, &values),
            "TopK" => top_k(&inputs),
            "DynamicQuantizeLinear" => quantized(inputs[0]),
            _ => vec![operator(node, &inputs)],
        };
        assert_eq!(node.output.len(), outputs.len(), "{}", node.name);
        for (name, output) in node.output.iter().zip(outputs) {
            assert!(values.insert(name.clone(), output).is_none(), "{name} is computed twice");
        }
    }
    let output = |info: &ValueInfoProto| (info.name.clone(), values[&info.name].clone());
    graph.output.iter().map(output).collect()
}

fn constant(x: &TensorProto) -> Array {
    let shape: Vec<usize> = x.dims.iter().map(|&dim| dim as usize).collect();
    match x.data_type {
        data_type::FLOAT => {
            let (values, rest) = x.raw_data.as_chunks::<4>();
            assert!(rest.is_empty(), "{}", x.name);
            Array::new(&shape, values.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect())
        }
        data_type::INT64 => {
            let (values, rest) = x.raw_data.as_chunks::<8>();
            assert!(rest.is_empty(), "{}", x.name);
            Array::integers(&shape, values.iter().map(|&x| i64::from_le_bytes(x)))
        }
        data_type::INT8 => {
            Array::integers(&shape, x.raw_data.iter().map(|&x| i64::from(x.cast_signed())))
        }
        other => panic!("{} has type {other}", x.name),
    }
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> &'a AttributeProto {
    let found = node.attribute.iter().find(|attribute| attribute.name == name);
    found.unwrap_or_else(|| panic!("{} has no {name}", node.name))
}

fn int(node: &NodeProto, name: &str) -> i64 {
    attribute(node, name).i.expect("an integer")
}

fn flag(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}

fn operator(node: &NodeProto, inputs: &[&Array]) -> Array {
    match (node.op_type.as_str(), inputs) {
        (name, [x]) if function(name).is_some() => x.map(function(name).expect("a function")),
        (name, [a, b]) if of_two(name).is_some() => {
            let quotient = |a: f64, b: f64| (a / b).trunc();
            let f = of_two(name).expect("a function");
            if name == "Div" && a.is_integer { a.zip(b, quotient) } else { a.zip(b, f) }
        }
        ("Where", [condition, a, b]) => {
            let shape = broadcast(&condition.shape, &broadcast(&a.shape, &b.shape));
            let pick = |i: &[usize]| if condition.at(i) == 1. { a.at(i) } else { b.at(i) };
            Array::from_fn(&shape, pick).with_kind_of(a)
        }
        ("Cast", [x]) => {
            let is_integer = int(node, "to") == i64::from(data_type::INT64);
            Array { is_integer, ..(*x).clone() }
        }
        ("MatMul", [a, b]) => matmul(a, b),
        ("MatMulInteger", [a, b, zero]) => {
            let zero = zero.data[0];
            let sums = matmul(&a.map(|x| x - zero), b);
            Array { is_integer: true, ..sums }
        }
        ("Softmax", [x]) => x.lines(x.axis(int(node, "axis")), softmax),
        ("ReduceSum", [x, axes]) => reduce(x, &axes.ints(), |line| line.iter().sum()),
        ("ReduceMean", [x]) => {
            let mean = |line: &[f64]| line.iter().sum::<f64>() / line.len() as f64;
            reduce(x, &attribute(node, "axes").ints, mean)
        }
        ("ReduceMax", [x]) => reduce(x, &attribute(node, "axes").ints, largest),
        ("CumSum", [x, axis]) => x.lines(x.axis(axis.ints()[0]), |line| {
            line.iter()
                .scan(0., |sum, x| {
                    *sum += x;
                    Some(*sum)
                })
                .collect()
        }),
        ("LayerNormalization", [x, weight, bias @ ..]) => layer_norm(node, x, weight, bias),
        ("Conv", [x, weight]) if has(node, "group") => depthwise_convolution(node, x, weight),
        ("Conv", [x, weight, bias @ ..]) => convolution(node, x, weight, bias),
        ("MaxPool", [x]) => {
            let shape = [x.shape[0], x.shape[1]];
            slide(node, x, shape, |index, window| {
                largest(
                    &window.map(|(v, w, _)| x.at(&[index[0], index[1], v, w])).collect::<Vec<_>>(),
                )
            })
        }
        _ => moved(node, inputs),
    }
}

/// Functions of one number.
fn function(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "Identity" => |x| x,
        "Abs" => f64::abs,
        "Neg" => |x| -x,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Sqrt" => f64::sqrt,
        "Tanh" => f64::tanh,
        "Erf" => candle_core::cpu::erf::erf_f64,
        "Relu" => |x| x.max(0.),
        "Sigmoid" => |x| 1. / (1. + (-x).exp()),
        "Not" => |x| 1. - x,
        _ => return None,
    })
}

/// Functions of two numbers.
fn of_two(name: &str) -> Option<fn(f64, f64) -> f64> {
    Some(match name {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" => |a, b| a / b,
        "Max" | "Or" => f64::max,
        "Min" => f64::min,
        "Equal" => |a, b| flag(a == b),
        "Less" => |a, b| flag(a < b),
        "Greater" => |a, b| flag(a > b),
        "And" => |a, b| a * b,
        _ => return None,
    })
}

/// Operators that change shapes.
fn moved(node: &NodeProto, inputs: &[&Array]) -> Array {
    match (node.op_type.as_str(), inputs) {
        ("Shape", [x]) => Array::integers(&[x.shape.len()], x.shape.iter().map(|&dim| dim as i64)),
        ("Reshape", [x, shape]) => reshape(x, &shape.ints()),
        ("Transpose", [x]) => {
            let order: Vec<usize> =
                attribute(node, "perm").ints.iter().map(|&axis| axis as usize).collect();
            let shape: Vec<usize> = order.iter().map(|&axis| x.shape[axis]).collect();
            let mut source = vec![0; order.len()];
            let from = |index: &[usize]| {
                order.iter().zip(index).for_each(|(&axis, &i)| source[axis] = i);
                x.at(&source)
            };
            Array::from_fn(&shape, from).with_kind_of(x)
        }
        ("Unsqueeze", [x, axes]) => {
            let mut shape = x.shape.clone();
            axes.ints().iter().for_each(|&axis| shape.insert(axis as usize, 1));
            x.reshaped(&shape)
        }
        ("Squeeze", [x, axes]) => {
            let axes = axes.ints();
            let kept = (0..x.shape.len()).filter(|&axis| !axes.contains(&(axis as i64)));
            x.reshaped(&kept.map(|axis| x.shape[axis]).collect::<Vec<_>>())
        }
        ("Expand", [x, shape]) => {
            let shape: Vec<usize> = shape.ints().iter().map(|&dim| dim as usize).collect();
            Array::from_fn(&broadcast(&x.shape, &shape), |index| x.at(index)).with_kind_of(x)
        }
        _ => picked(node, inputs),
    }
}

/// Operators that join sequences or choose parts of them.
fn picked(node: &NodeProto, inputs: &[&Array]) -> Array {
    match (node.op_type.as_str(), inputs) {
        ("Concat", parts) => concat(parts, parts[0].axis(int(node, "axis"))),
        ("Slice", [x, start, end, axis, step]) => {
            slice(x, x.axis(axis.ints()[0]), [start, end, step].map(|x| x.ints()[0]))
        }
        ("Gather", [x, indices]) => gather(x, indices, x.axis(int(node, "axis"))),
        ("GatherElements", [x, indices]) => {
            let last = x.shape.len() - 1;
            assert_eq!(x.axis(int(node, "axis")), last);
            let from = |index: &[usize]| {
                let mut source = index.to_vec();
                source[last] = indices.at(index) as usize;
                x.at(&source)
            };
            Array::from_fn(&indices.shape, from).with_kind_of(x)
        }
        ("ScatterElements", [x, indices, updates]) => {
            let (mut y, last) = ((*x).clone(), x.shape.len() - 1);
            let (width, k) = (x.shape[last], indices.shape[last]);
            for (i, (&place, &update)) in indices.data.iter().zip(&updates.data).enumerate() {
                y.data[i / k * width + place as usize] = update;
            }
            y
        }
        ("Range", [start, end, step]) => {
            let [start, end, step] = [start, end, step].map(|x| x.ints()[0]);
            let values: Vec<i64> = (start..end).step_by(step as usize).collect();
            Array::integers(&[values.len()], values)
        }
        (name, _) => panic!("{name} of {} inputs", inputs.len()),
    }
}

fn reshape(x: &Array, shape: &[i64]) -> Array {
    let kept = |axis: usize, dim: i64| if dim == 0 { x.shape[axis] as i64 } else { dim };
    let shape: Vec<i64> = shape.iter().enumerate().map(|(axis, &dim)| kept(axis, dim)).collect();
    let known: i64 = shape.iter().filter(|&&dim| dim > 0).product();
    let rest = x.data.len() / known as usize;
    let dims = shape.iter().map(|&dim| if dim < 0 { rest } else { dim as usize });
    x.reshaped(&dims.collect::<Vec<_>>())
}

pub(crate) fn concat(parts: &[&Array], axis: usize) -> Array {
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
    let from = |index: &[usize]| {
        let mut index = index.to_vec();
        for part in parts {
            if index[axis] < part.shape[axis] {
                return part.at(&index);
            }
            index[axis] -= part.shape[axis];
        }
        unreachable!("the lengths add up")
    };
    Array::from_fn(&shape, from).with_kind_of(parts[0])
}

fn slice(x: &Array, axis: usize, [start, end, step]: [i64; 3]) -> Array {
    let len = x.shape[axis] as i64;
    let clamped = |i: i64| (if i < 0 { i + len } else { i }).clamp(0, len) as usize;
    let places: Vec<usize> = (clamped(start)..clamped(end)).step_by(step as usize).collect();
    x.lines(axis, |line| places.iter().map(|&place| line[place]).collect()).with_kind_of(x)
}

fn gather(x: &Array, indices: &Array, axis: usize) -> Array {
    let rank = indices.shape.len();
    let shape = [&x.shape[..axis], &indices.shape, &x.shape[axis + 1..]].concat();
    let from = |index: &[usize]| {
        let place = indices.at(&index[axis..axis + rank]);
        let place = if place < 0. { place + x.shape[axis] as f64 } else { place } as usize;
        assert!(place < x.shape[axis], "place {place} of {:?}", x.shape);
        x.at(&[&index[..axis], &[place], &index[axis + rank..]].concat())
    };
    Array::from_fn(&shape, from).with_kind_of(x)
}

/// The `k` largest of the last axis, the first of equal ones, and their places.
fn top_k(inputs: &[&Array]) -> Vec<Array> {
    let (x, k) = (inputs[0], inputs[1].ints()[0] as usize);
    let last = x.shape.len() - 1;
    assert!(k <= x.shape[last], "{k} of {:?}", x.shape);
    let places = x.lines(last, |line| {
        let mut order: Vec<usize> = (0..line.len()).collect();
        order.sort_by(|&i, &j| line[j].total_cmp(&line[i]));
        order[..k].iter().map(|&place| place as f64).collect()
    });
    let values = Array::from_fn(&places.shape, |index| {
        let mut source = index.to_vec();
        source[last] = places.at(index) as usize;
        x.at(&source)
    });
    vec![values, Array { is_integer: true, ..places }]
}

/// Bytes, scale and zero point.
fn quantized(x: &Array) -> Vec<Array> {
    let low = x.data.iter().fold(0., |a: f64, b| a.min(*b));
    let high = x.data.iter().fold(0., |a: f64, b| a.max(*b));
    let scale = if low == high { 1. } else { (high - low) / 255. };
    let zero = (-low / scale).round_ties_even().clamp(0., 255.);
    let bytes = x.map(|x| ((x / scale).round_ties_even() + zero).clamp(0., 255.));
    let [scale, zero] = [scale, zero].map(|x| Array::new(&[], vec![x]));
    vec![Array { is_integer: true, ..bytes }, scale, Array { is_integer: true, ..zero }]
}

fn matmul(a: &Array, b: &Array) -> Array {
    let (a_rank, b_rank) = (a.shape.len(), b.shape.len());
    let (n, b_rows) = (a.shape[a_rank - 1], b.shape[b_rank - 2]);
    assert_eq!(n, b_rows, "{:?} and {:?}", a.shape, b.shape);
    let mut shape = broadcast(&a.shape[..a_rank - 2], &b.shape[..b_rank - 2]);
    shape.extend([a.shape[a_rank - 2], b.shape[b_rank - 1]]);
    let rank = shape.len();
    Array::from_fn(&shape, |index| {
        let (mut of_a, mut of_b) = (index.to_vec(), index.to_vec());
        let term = |i| {
            (of_a[rank - 1], of_b[rank - 2]) = (i, i);
            a.at(&of_a) * b.at(&of_b)
        };
        (0..n).map(term).sum()
    })
}

fn softmax(line: &[f64]) -> Vec<f64> {
    let max = largest(line);
    let powers: Vec<f64> = line.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

fn largest(line: &[f64]) -> f64 {
    line.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Replaces each axis by one number of its lines.
fn reduce(x: &Array, axes: &[i64], f: impl Fn(&[f64]) -> f64) -> Array {
    axes.iter().fold(x.clone(), |x, &axis| x.lines(x.axis(axis), |line| vec![f(line)]))
}

fn layer_norm(node: &NodeProto, x: &Array, weight: &Array, bias: &[&Array]) -> Array {
    assert_eq!(int(node, "axis"), -1);
    let epsilon = f64::from(attribute(node, "epsilon").f.expect("a number"));
    let normed = x.lines(x.shape.len() - 1, |line| {
        let mean = line.iter().sum::<f64>() / line.len() as f64;
        let variance = line.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / line.len() as f64;
        line.iter().map(|x| (x - mean) / (variance + epsilon).sqrt()).collect()
    });
    let scaled = normed.zip(weight, |a, b| a * b);
    bias.iter().fold(scaled, |x, bias| x.zip(bias, |a, b| a + b))
}

fn has(node: &NodeProto, name: &str) -> bool {
    node.attribute.iter().any(|attribute| attribute.name == name)
}

/// A result of `channels (batch, channels)` for each window: `f` gets its index and, for each place within the
/// picture, the row and the column of the pixel, and the place in the window.
fn slide(
    node: &NodeProto,
    x: &Array,
    [batch, channels]: [usize; 2],
    f: impl Fn(&[usize], &mut dyn Iterator<Item = (usize, usize, [usize; 2])>) -> f64,
) -> Array {
    let both = |name| {
        let ints = &attribute(node, name).ints;
        assert!(ints.iter().all(|int| *int == ints[0]), "{}: {name}", node.name);
        ints[0] as usize
    };
    let [size, stride, padding] = ["kernel_shape", "strides", "pads"].map(both);
    let [height, width] = [x.shape[2], x.shape[3]];
    let count = |len: usize| (len + 2 * padding - size) / stride + 1;
    Array::from_fn(&[batch, channels, count(height), count(width)], |index| {
        let places = (0..size).flat_map(|i| (0..size).map(move |j| [i, j]));
        let mut inside = places.filter_map(|[i, j]| {
            let pixel = |at: usize, place: usize, len: usize| {
                (at * stride + place).checked_sub(padding).filter(|&pixel| pixel < len)
            };
            Some((pixel(index[2], i, height)?, pixel(index[3], j, width)?, [i, j]))
        });
        f(index, &mut inside)
    })
}

fn convolution(node: &NodeProto, x: &Array, weight: &Array, bias: &[&Array]) -> Array {
    let channels = weight.shape[1];
    assert_eq!(x.shape[1], channels, "{}", node.name);
    let y = slide(node, x, [x.shape[0], weight.shape[0]], |index, window| {
        let terms = window.map(|(v, w, [i, j])| {
            let of = |k| x.at(&[index[0], k, v, w]) * weight.at(&[index[1], k, i, j]);
            (0..channels).map(of).sum::<f64>()
        });
        terms.sum()
    });
    bias.iter().fold(y, |y, bias| y.zip(&bias.reshaped(&[bias.shape[0], 1, 1]), |a, b| a + b))
}

/// With one filter `(1, kernel, 1)` for each channel, and padding that keeps the shape.
fn depthwise_convolution(node: &NodeProto, x: &Array, weight: &Array) -> Array {
    let [channels, len] = [x.shape[1], x.shape[2]];
    let kernel = weight.shape[2];
    let reach = kernel as i64 / 2;
    assert_eq!(int(node, "group"), channels as i64);
    assert_eq!(attribute(node, "pads").ints, [reach, 0, reach, 0]);
    Array::from_fn(&x.shape, |index| {
        let tap = |tap: usize| {
            let place = (index[2] + tap).checked_sub(kernel / 2).filter(|&place| place < len)?;
            let source = [index[0], index[1], place, index[3]];
            Some(x.at(&source) * weight.at(&[index[1], 0, tap, 0]))
        };
        (0..kernel).filter_map(tap).sum()
    })
}

/// Runs the body along axis 1 of the inputs after the states.
fn scan(node: &NodeProto, inputs: &[&Array], outer: &Values) -> Vec<Array> {
    let body = attribute(node, "body").g.as_ref().expect("a graph");
    let n_states = inputs.len() - int(node, "num_scan_inputs") as usize;
    let (states, sequences) = inputs.split_at(n_states);
    assert!(attribute(node, "scan_input_axes").ints.iter().all(|&axis| axis == 1));
    let mut states: Vec<Array> = states.iter().map(|&state| state.clone()).collect();
    let mut steps = Vec::new();
    for t in 0..sequences[0].shape[1] {
        let slices = sequences.iter().map(|x| gather(x, &Array::integers(&[], [t as i64]), 1));
        let names = body.input.iter().map(|input| input.name.clone());
        let mut values = outer.clone();
        values.extend(names.zip(states.iter().cloned().chain(slices)));
        let mut outputs = run_graph(body, values);
        let mut named =
            body.output.iter().map(|info| outputs.remove(&info.name).expect("an output"));
        states = named.by_ref().take(n_states).collect();
        let step = named.next().expect("an output");
        let shape = [&step.shape[..1], &[1], &step.shape[1..]].concat();
        steps.push(step.reshaped(&shape));
    }
    assert_eq!(attribute(node, "scan_output_axes").ints, [1]);
    states.push(concat(&steps.iter().collect::<Vec<_>>(), 1));
    states
}
