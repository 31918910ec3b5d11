//! Models written as ONNX give what Tealight computes.
//!
//! The files are run by an interpreter that is part of this test. To run them with onnxruntime, too:
//!
//! ```sh
//! TEALIGHT_ONNX_DIR=/tmp/onnx cargo nextest run -p tealight-model --test onnx --run-ignored only
//! python scripts/reference/onnx_check.py /tmp/onnx
//! ```

#![expect(clippy::cast_possible_wrap, reason = "lengths of a few positions")]

mod array;
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod interpreter;
mod pictures;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;

use candle_core::{DType, Device, Result, Tensor};
use prost::Message as _;
use serde_json::{Value, json};
use tealight_model::models::pooling::{DenseActivation, DenseMap, Normalize, Pooling, VectorSpec};
use tealight_model::onnx::proto::{Dimension, GraphProto, ModelProto};
use tealight_model::onnx::{Cache, OnnxError, OnnxResult, Options, Weights, export};

use array::Array;
use cases::{Call, Case, MAX_SEQ_LEN, Task};
use interpreter::{Values, run};

/// Batch and length of the calls: sequences shorter and longer than windows and numbers of landmarks.
const SHAPES: [(usize, usize); 4] = [(2, 1), (2, 5), (3, 5), (3, MAX_SEQ_LEN)];
/// Lengths of the steps with a cache.
const STEPS: [usize; 4] = [4, 1, 3, 2];
/// The largest difference, in f32.
const TOLERANCE: f64 = 1e-4;

fn written(case: &Case, cache: Cache) -> OnnxResult<Vec<u8>> {
    export(&case.config, &case.spec(), Options { cache, ..Options::default() }, &case.parameters)
}

fn pooled(vectors: &VectorSpec) -> Options<'_> {
    Options { vectors: Some(vectors), ..Options::default() }
}

fn decoded(bytes: &[u8]) -> ModelProto {
    ModelProto::decode(bytes).expect("a message")
}

fn array(x: &Tensor) -> Result<Array> {
    let values = common::values(x)?;
    let array = Array::new(x.dims(), values);
    Ok(Array { is_integer: x.dtype() != DType::F32, ..array })
}

/// The inputs of a call by name.
fn inputs(call: &Call) -> Result<Values> {
    let real = array(&call.padding)?.map(|flag| 1. - flag);
    let mut inputs = Values::from([
        ("input_ids".to_owned(), array(&call.input_ids)?),
        ("attention_mask".to_owned(), real),
    ]);
    if let Some(types) = &call.token_type_ids {
        inputs.insert("token_type_ids".to_owned(), array(types)?);
    }
    Ok(inputs)
}

fn output_name(task: Task) -> &'static str {
    if task == Task::Encoder { "last_hidden_state" } else { "logits" }
}

fn difference(a: &Array, b: &Array) -> f64 {
    assert_eq!(a.shape, b.shape);
    let differences = a.data.iter().zip(&b.data).map(|(a, b)| (a - b).abs());
    // A NaN is larger than any number.
    differences.fold(0., |max, x| if max.is_nan() || x <= max { max } else { x })
}

/// `x`, with zeros at the padding of `call` if it has a row for each position: what padding gets is not specified.
fn without_padding(mut x: Array, call: &Call) -> Result<Array> {
    let (batch, len) = call.padding.dims2()?;
    if x.shape.len() == 3 && x.shape[..2] == [batch, len] {
        let padding = call.padding.flatten_all()?.to_vec1::<u8>()?;
        let width = x.shape[2];
        for (at, _) in padding.iter().enumerate().filter(|&(_, &is_padding)| is_padding == 1) {
            x.data[at * width..][..width].fill(0.);
        }
    }
    Ok(x)
}

/// The steps of a sequence with a cache: the tokens of a step with their positions, and the mask of all so far.
fn steps(model: &ModelProto, call: &Call) -> Result<Vec<Values>> {
    let graph = model.graph.as_ref().expect("a graph");
    let is_placed = graph.input.iter().any(|input| input.name == "position_ids");
    let mut start = 0;
    STEPS
        .iter()
        .map(|&len| {
            let ids = call.input_ids.narrow(1, start, len)?;
            let places = Array::from_fn(ids.dims(), |index| (start + index[1]) as f64);
            let places = Array { is_integer: true, ..places };
            start += len;
            let call = Call { padding: call.padding.narrow(1, 0, start)?, ..call.clone() };
            let ids = ("input_ids".to_owned(), array(&ids)?);
            let mut inputs = inputs(&call)?;
            inputs.extend([ids]);
            inputs.extend(is_placed.then(|| ("position_ids".to_owned(), places)));
            Ok(inputs)
        })
        .collect()
}

/// Keys and values of no position.
fn empty_past(model: &ModelProto, batch: usize) -> Values {
    let graph = model.graph.as_ref().expect("a graph");
    let past = graph.input.iter().filter(|input| input.name.starts_with("past_key_values."));
    past.map(|input| {
        let of_type = input.r#type.as_ref().and_then(|of| of.tensor_type.as_ref());
        let dims = &of_type.and_then(|of| of.shape.as_ref()).expect("a shape").dim;
        let fixed = |axis: usize| match dims[axis].value {
            Some(Dimension::DimValue(len)) => len as usize,
            ref other => panic!("{}: {other:?}", input.name),
        };
        (input.name.clone(), Array::new(&[batch, fixed(1), 0, fixed(3)], Vec::new()))
    })
    .collect()
}

/// The next step's past is this step's present.
fn past_of(outputs: &Values) -> Values {
    let present = outputs.iter().filter_map(|(name, x)| {
        Some((format!("past_key_values{}", name.strip_prefix("present")?), x.clone()))
    });
    present.collect()
}

#[test]
fn every_model_gives_what_tealight_computes() -> std::result::Result<(), Box<dyn Error>> {
    let cases = cases::cases()?;
    assert!(cases.len() > 90, "{}", cases.len());
    for case in &cases {
        let model = decoded(&written(case, Cache::Without)?);
        for (batch, seq_len) in SHAPES {
            let call = case.call(batch, seq_len)?;
            let outputs = run(&model, &inputs(&call)?);
            let output = without_padding(outputs[output_name(case.task)].clone(), &call)?;
            let expected = without_padding(array(&case.outputs(&call)?)?, &call)?;
            let difference = difference(&output, &expected);
            let label = format!("{}, {batch}, {seq_len}", case.name);
            assert!(difference < TOLERANCE, "{label}: {difference}");
        }
    }
    Ok(())
}

#[test]
fn decoding_with_a_cache_gives_the_logits_of_the_whole_sequence()
-> std::result::Result<(), Box<dyn Error>> {
    let cases = cases::cases()?;
    let mut refused = BTreeSet::new();
    for case in cases.iter().filter(|case| case.task == Task::CausalLm) {
        let model = match written(case, Cache::With) {
            Ok(bytes) => decoded(&bytes),
            Err(OnnxError::Unsupported { setting, .. }) => {
                refused.extend(cases::has_settings(case).then_some(setting));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let seq_len = STEPS.iter().sum();
        let call = case.call(3, seq_len)?;
        let mut past = empty_past(&model, 3);
        assert_eq!(past.len(), 2 * case.config.n_layers);
        let mut logits = Vec::new();
        for mut inputs in steps(&model, &call)? {
            inputs.append(&mut past);
            let outputs = run(&model, &inputs);
            past = past_of(&outputs);
            logits.push(outputs["logits"].clone());
        }
        let expected = without_padding(array(&case.outputs(&call)?)?, &call)?;
        let logits = interpreter::concat(&logits.iter().collect::<Vec<_>>(), 1);
        let difference = difference(&without_padding(logits, &call)?, &expected);
        assert!(difference < TOLERANCE, "{}: {difference}", case.name);
    }
    let kinds = ["aft_conv", "aft_full", "aft_local", "aft_simple", "rwkv"];
    let settings = kinds.map(|kind| format!("a cache of `model.attention.kind` = \"{kind}\""));
    let convolution = "a cache of `model.attention.conv_size`".to_owned();
    assert!(refused.iter().eq([convolution].iter().chain(&settings)), "{refused:?}");
    Ok(())
}

/// `position_ids` count from the first real token, as Optimum and transformers.js do.
#[test]
fn a_text_padded_on_the_left_gives_what_it_gives_alone() -> std::result::Result<(), Box<dyn Error>>
{
    let cases = cases::cases()?;
    for name in ["gpt2", "llama"] {
        let case = cases.iter().find(|case| case.name == name).ok_or(name)?;
        let model = decoded(&written(case, Cache::With)?);
        let logits = |ids: &[i64], places: &[i64], real: &[i64]| {
            let named = [("input_ids", ids), ("position_ids", places), ("attention_mask", real)];
            let named = named.map(|(name, row)| (name.to_owned(), row.to_vec()));
            let mut inputs = empty_past(&model, 1);
            inputs.extend(named.map(|(name, row)| (name, Array::integers(&[1, row.len()], row))));
            run(&model, &inputs)["logits"].data.clone()
        };
        let alone = logits(&[5, 7, 11, 3], &[0, 1, 2, 3], &[1; 4]);
        let padded = logits(&[2, 2, 5, 7, 11, 3], &[1, 1, 0, 1, 2, 3], &[0, 0, 1, 1, 1, 1]);
        let same = &padded[padded.len() - alone.len()..];
        let worst = alone.iter().zip(same).map(|(a, b)| (a - b).abs()).fold(0., f64::max);
        assert!(worst < 1e-9, "{name}: {worst}");
    }
    Ok(())
}

/// The poolings of a vector, the function of a linear map behind them, the normalisation, and the length.
type VectorCase = (Vec<Pooling>, Option<(DenseActivation, fn(f64) -> f64)>, Normalize, usize);

/// Rounding changes every model a little, and none by much.
#[test]
fn graphs_in_int8_are_near_those_in_f32() -> std::result::Result<(), Box<dyn Error>> {
    for case in cases::cases()? {
        let options = Options { weights: Weights::Int8, ..Options::default() };
        let bytes = match export(&case.config, &case.spec(), options, &case.parameters) {
            Err(OnnxError::Unsupported { .. }) => continue,
            written => written?,
        };
        let (rounded, exact) = (decoded(&bytes), decoded(&written(&case, Cache::Without)?));
        check_names(rounded.graph.as_ref().ok_or("a graph")?, &mut BTreeSet::new());
        let call = case.call(3, case.config.required_len().unwrap_or(5))?;
        let [rounded, exact] = [rounded, exact].map(|model| {
            let mut outputs = run(&model, &inputs(&call)?);
            let output = outputs.remove(output_name(case.task)).expect("the output");
            without_padding(output, &call)
        });
        let (rounded, exact) = (rounded?, exact?);
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let off = norm(&mut rounded.data.iter().zip(&exact.data).map(|(a, b)| a - b));
        let off = off / norm(&mut exact.data.iter().copied());
        assert!(off > 0. && off < 0.2, "{}: off by {off}", case.name);
    }
    Ok(())
}

/// Every step from hidden states to vectors, each compared with its formula on the graph's own hidden states.
#[test]
fn the_vectors_of_texts_are_those_of_the_formulas() -> std::result::Result<(), Box<dyn Error>> {
    let cases = cases::cases()?;
    let case = cases.iter().find(|case| case.name == "bert_encoder").ok_or("no encoder")?;
    let width = case.config.d_model;
    let weight: Vec<f32> = (0..6 * width).map(|i| (i as f32).sin()).collect();
    let bias = vec![0.5_f32, -0.25, 0., 1., -1.];
    let map = |activation| DenseMap {
        weight: Tensor::from_slice(&weight[..5 * width], (5, width), &Device::Cpu).unwrap(),
        bias: Some(Tensor::new(&bias[..], &Device::Cpu).unwrap()),
        activation,
    };
    let all = vec![Pooling::Max, Pooling::Cls, Pooling::Mean];
    let one = |pooling| vec![pooling];
    let tanh: (_, fn(f64) -> f64) = (DenseActivation::Tanh, f64::tanh);
    let relu: (_, fn(f64) -> f64) = (DenseActivation::Relu, |x| x.max(0.));
    let specs: [VectorCase; 6] = [
        (one(Pooling::Mean), None, Normalize::No, width),
        (one(Pooling::Max), None, Normalize::Pooled, 3),
        (one(Pooling::Cls), None, Normalize::Returned, 3),
        (all, None, Normalize::No, 3 * width),
        (one(Pooling::Mean), Some(tanh), Normalize::No, 5),
        (one(Pooling::Cls), Some(relu), Normalize::Pooled, 4),
    ];
    for (poolings, dense, normalize, dim) in specs {
        let maps = dense.iter().map(|(activation, _)| map(*activation)).collect();
        let spec = VectorSpec { poolings: poolings.clone(), dense: maps, normalize, dim };
        let parameters = &case.parameters;
        let bytes = export(&case.config, &case.spec(), pooled(&spec), parameters)?;
        let model = decoded(&bytes);
        check_names(model.graph.as_ref().ok_or("a graph")?, &mut BTreeSet::new());
        let call = case.call(3, 5)?;
        let outputs = run(&model, &inputs(&call)?);
        let (states, vectors) = (&outputs["token_embeddings"], &outputs["sentence_embedding"]);
        assert_eq!(states.data, outputs["last_hidden_state"].data);
        assert_eq!(vectors.shape, [3, dim]);
        let padding = call.padding.to_vec2::<u8>()?;
        for (text, padding) in padding.iter().enumerate() {
            let rows: Vec<&[f64]> = (0..5)
                .filter(|at| padding[*at] == 0)
                .map(|at| &states.data[(text * 5 + at) * width..][..width])
                .collect();
            if rows.is_empty() {
                continue;
            }
            let column = |i: usize| rows.iter().map(move |row| row[i]);
            let pool = |pooling: &Pooling| -> Vec<f64> {
                (0..width)
                    .map(|i| match pooling {
                        Pooling::Cls => states.data[text * 5 * width + i],
                        Pooling::Mean => column(i).sum::<f64>() / rows.len() as f64,
                        Pooling::Max => column(i).fold(f64::NEG_INFINITY, f64::max),
                    })
                    .collect()
            };
            let mut vector: Vec<f64> = poolings.iter().flat_map(pool).collect();
            if let Some((_, function)) = dense {
                let product = |row: &[f32]| {
                    row.iter().zip(&vector).map(|(w, x)| f64::from(*w) * x).sum::<f64>()
                };
                let rows = weight.chunks(width).zip(&bias);
                vector = rows.map(|(row, b)| function(product(row) + f64::from(*b))).collect();
            }
            let unit = |x: Vec<f64>| {
                let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                x.into_iter().map(|x| x / norm).collect::<Vec<_>>()
            };
            vector = if normalize == Normalize::Pooled { unit(vector) } else { vector };
            vector.truncate(dim);
            vector = if normalize == Normalize::Returned { unit(vector) } else { vector };
            let written = &vectors.data[text * dim..][..dim];
            let worst = written.iter().zip(&vector).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0., f64::max);
            assert!(worst < 1e-6, "{poolings:?}, {normalize:?}, text {text}: {worst}");
        }
    }
    Ok(())
}

#[test]
fn only_an_encoder_gives_vectors() -> std::result::Result<(), Box<dyn Error>> {
    let cases = cases::cases()?;
    let case = cases.iter().find(|case| case.task == Task::MaskedLm).ok_or("no language model")?;
    let spec = VectorSpec {
        poolings: vec![Pooling::Mean],
        dense: Vec::new(),
        normalize: Normalize::No,
        dim: case.config.d_model,
    };
    let (config, parameters) = (&case.config, &case.parameters);
    let error = export(config, &case.spec(), pooled(&spec), parameters).unwrap_err();
    assert!(error.to_string().contains("only the hidden states of an encoder"), "{error}");
    let case = cases.iter().find(|case| case.name == "bert_encoder").ok_or("no encoder")?;
    let width = case.config.d_model;
    let map = DenseMap {
        weight: Tensor::zeros((2, width + 1), DType::F32, &Device::Cpu)?,
        bias: None,
        activation: DenseActivation::Identity,
    };
    for (wrong, rule) in [
        (VectorSpec { dim: width + 1, ..spec.clone() }, "numbers are asked for"),
        (VectorSpec { poolings: Vec::new(), ..spec.clone() }, "and they have 0"),
        (VectorSpec { dense: vec![map], dim: 2, ..spec }, "a linear map reads vectors of"),
    ] {
        let (config, parameters) = (&case.config, &case.parameters);
        let error = export(config, &case.spec(), pooled(&wrong), parameters);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(rule), "{error}");
    }
    Ok(())
}

/// Every name is given before it is used and given once, and constants are as large as their shapes say.
#[test]
fn graphs_are_well_formed() -> std::result::Result<(), Box<dyn Error>> {
    for case in cases::cases()? {
        let model = decoded(&written(&case, Cache::Without)?);
        let graph = model.graph.expect("a graph");
        for constant in &graph.initializer {
            let n: i64 = constant.dims.iter().product();
            let size = if constant.data_type == 1 { 4 } else { 8 };
            assert_eq!(constant.raw_data.len() as i64, n * size, "{}", constant.name);
        }
        check_names(&graph, &mut BTreeSet::new());
    }
    Ok(())
}

fn check_names(graph: &GraphProto, known: &mut BTreeSet<String>) {
    let names =
        graph.initializer.iter().map(|x| &x.name).chain(graph.input.iter().map(|x| &x.name));
    for name in names {
        assert!(known.insert(name.clone()), "{name} is not unique");
    }
    for node in &graph.node {
        for name in &node.input {
            assert!(known.contains(name), "{name} of {} is not known", node.name);
        }
        for body in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            check_names(body, &mut known.clone());
        }
        for name in &node.output {
            assert!(known.insert(name.clone()), "{name} is not unique");
        }
    }
    assert!(graph.output.iter().all(|output| known.contains(&output.name)));
}

#[test]
fn the_same_model_gives_the_same_bytes() -> std::result::Result<(), Box<dyn Error>> {
    let cases = cases::cases()?;
    let case = &cases[0];
    assert_eq!(written(case, Cache::Without)?, written(case, Cache::Without)?);
    Ok(())
}

#[test]
fn a_missing_parameter_is_named() -> Result<()> {
    let mut case = cases::cases()?.remove(0);
    case.parameters.remove("layer.1.attention.key.weight");
    let error = written(&case, Cache::Without).expect_err("a missing parameter").to_string();
    assert!(error.contains("layer.1.attention.key.weight"), "{error}");
    Ok(())
}

fn to_json(x: &Array) -> Value {
    let data: Vec<Value> = x
        .data
        .iter()
        .map(|&value| if x.is_integer { json!(value as i64) } else { json!(value) })
        .collect();
    json!({ "shape": x.shape, "data": data })
}

fn inputs_to_json(inputs: &Values) -> Value {
    inputs.iter().map(|(name, x)| (name.clone(), to_json(x))).collect()
}

/// Writes every model with its calls and what Tealight computes, for `scripts/reference/onnx_check.py`.
#[test]
#[ignore = "writes files for another program"]
fn write_for_onnxruntime() -> std::result::Result<(), Box<dyn Error>> {
    let folder = std::env::var("TEALIGHT_ONNX_DIR")?;
    let write = |name: &str, bytes: &[u8], calls: &[Value]| -> std::io::Result<()> {
        let folder = Path::new(&folder).join(name);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("model.onnx"), bytes)?;
        std::fs::write(folder.join("calls.json"), json!(calls).to_string())
    };
    pictures::write_all(write)?;
    for case in cases::cases()? {
        let output = output_name(case.task);
        let mut calls = Vec::new();
        for (batch, seq_len) in SHAPES {
            let call = case.call(batch, seq_len)?;
            let expected = array(&case.outputs(&call)?)?;
            calls.push(json!({
                "steps": [inputs_to_json(&inputs(&call)?)], "output": output, "expected": to_json(&expected),
            }));
        }
        write(&case.name, &written(&case, Cache::Without)?, &calls)?;
        let Ok(bytes) = written(&case, Cache::With) else { continue };
        if case.task == Task::CausalLm {
            let call = case.call(3, STEPS.iter().sum())?;
            let expected = array(&case.outputs(&call)?)?;
            let steps: Vec<Value> =
                steps(&decoded(&bytes), &call)?.iter().map(inputs_to_json).collect();
            let call = json!({ "steps": steps, "output": output, "expected": to_json(&expected) });
            write(&format!("{}_cache", case.name), &bytes, &[call])?;
        }
    }
    Ok(())
}
