//! The contract: every operation has the value and the gradient of its definition.
//!
//! In debug builds output buffers start as NaN, so an element that no loop writes fails here.
//! Attention and the scans (linear attention, retention, WKV) have suites of their own beside this.

#[path = "common/agreement.rs"]
mod agreement;
mod common;

use agreement::{TOLERANCES, assert_agree, assert_close};
use candle_core::{D, DType, Result, Tensor, Var};
use common::{Op, differentiate, normal, values};
use tealight_ops::Reach;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::truncated_softmax::{self, Truncation, truncated_softmax};
use tealight_ops::{
    activation, adafactor, adamw, aft, broadcast, cross_entropy, depthwise_convolution, dropout,
    embedding, entmax, gate, lamb, linear, linear_cross_entropy, lion, matmul, mean, mlp, norm,
    nystrom, residual, rotary, sgd, softmax, softplus, stochastic_depth, swap_axes,
};

/// Rows and width: single, prime, wider than a block, and large enough for several threads.
const SHAPES: [[usize; 2]; 7] =
    [[1, 1], [1, 7], [5, 1], [13, 101], [2, 17], [3, 45_007], [1061, 127]];

/// No rows, and rows of nothing. None on a GPU: Candle's own kernels cannot be launched for nothing.
fn empty() -> &'static [[usize; 2]] {
    if device().is_cpu() { &[[0, 7], [5, 0]] } else { &[] }
}

/// Whole numbers below `n`.
fn below(index: u64, n: usize, shape: &[usize]) -> Result<Tensor> {
    let stream = Stream::new(17, Purpose::Task).fork(index);
    let values: Vec<u32> = (0..shape.iter().product::<usize>() as u64)
        .map(|i| stream.below(i, n as u64) as u32)
        .collect();
    Tensor::from_vec(values, shape, device())?.to_dtype(DType::I64)
}

#[test]
fn a_scaled_softplus_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for [rows, width] in SHAPES {
            let x = (normal(0, &[rows, width], dtype)? * 5.)?;
            let operands = [x, normal(1, &[width], dtype)?, normal(2, &[width], dtype)?];
            assert_agree(
                "softplus",
                &|x| softplus::scaled_softplus(&x[0], &x[1], &x[2]),
                &|x| softplus::reference::scaled_softplus(&x[0], &x[1], &x[2]),
                &operands,
                tolerance,
            )?;
        }
    }
    Ok(())
}

type Unary = fn(&Tensor) -> Result<Tensor>;

const UNARY: [(&str, Unary, Unary); 13] = [
    ("softmax", softmax::softmax, softmax::reference::softmax),
    ("log_softmax", softmax::log_softmax, softmax::reference::log_softmax),
    ("relu", activation::relu, activation::reference::relu),
    ("sigmoid", activation::sigmoid, activation::reference::sigmoid),
    ("silu", activation::silu, activation::reference::silu),
    ("gelu", activation::gelu, activation::reference::gelu),
    ("gelu_tanh", activation::gelu_tanh, activation::reference::gelu_tanh),
    ("sparsemax", entmax::sparsemax, entmax::reference::sparsemax),
    ("entmax15", entmax::entmax15, entmax::reference::entmax15),
    (
        "top_k",
        |x| truncated_softmax(x, Truncation::TopK(3)),
        |x| truncated_softmax::reference::truncated_softmax(x, Truncation::TopK(3)),
    ),
    (
        "cut",
        |x| truncated_softmax(x, Truncation::Cut(0.05)),
        |x| truncated_softmax::reference::truncated_softmax(x, Truncation::Cut(0.05)),
    ),
    (
        "cut_renormalized",
        |x| truncated_softmax(x, Truncation::CutRenormalized(0.05)),
        |x| truncated_softmax::reference::truncated_softmax(x, Truncation::CutRenormalized(0.05)),
    ),
    (
        "score_cut",
        |x| truncated_softmax(x, Truncation::ScoreCut(0.3)),
        |x| truncated_softmax::reference::truncated_softmax(x, Truncation::ScoreCut(0.3)),
    ),
];

#[test]
fn unary_operations_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in SHAPES.iter().chain(empty()) {
            let x = (normal(0, shape, dtype)? * 3.)?;
            for (name, op, definition) in UNARY {
                let (op, definition): (Op, Op) = (&|x| op(&x[0]), &|x| definition(&x[0]));
                assert_agree(name, op, definition, std::slice::from_ref(&x), tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn large_arguments_agree_and_have_finite_gradients() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        let x = Tensor::new(&[-1e4_f64, -100., -89., 89., 100., 1e4], device())?;
        let x = [x.to_dtype(dtype)?];
        for (name, op, definition) in UNARY {
            let (op, definition): (Op, Op) = (&|x| op(&x[0]), &|x| definition(&x[0]));
            assert_agree(name, op, definition, &x, tolerance)?;
            for f in [op, definition] {
                let (_, gradients) = differentiate(f, &x)?;
                let gradient = values(&gradients[0])?;
                assert!(gradient.iter().all(|g| g.is_finite()), "{name}: {gradient:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn strided_inputs_agree() -> Result<()> {
    let x = normal(0, &[7, 5, 3], DType::F64)?;
    for (name, op, definition) in UNARY {
        let op: Op = &|x| op(&x[0].transpose(0, 2)?.narrow(1, 1, 3)?);
        let definition: Op = &|x| definition(&x[0].transpose(0, 2)?.narrow(1, 1, 3)?);
        assert_agree(name, op, definition, std::slice::from_ref(&x), 1e-12)?;
    }
    let inputs = [x.narrow(0, 2, 3)?, normal(1, &[3, 11], DType::F64)?];
    let (op, definition): (Op, Op) = (&|x| linear::linear(&x[0], &x[1].t()?, None), &|x| {
        linear::reference::linear(&x[0], &x[1].t()?, None)
    });
    assert_agree("linear", op, definition, &inputs, 1e-12)
}

#[test]
fn half_precision_is_computed_in_f32() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let x = normal(0, &[5, 7], dtype)?;
        for (name, op, _) in UNARY {
            let (y, wide) = (op(&x)?, op(&x.to_dtype(DType::F32)?)?);
            assert_eq!(y.dtype(), dtype);
            assert_close(name, &y, &wide.to_dtype(dtype)?, 1e-3)?;
        }
        let logits = cross_entropy::cross_entropy(&x, &below(0, 7, &[5])?, 0.1)?;
        assert_eq!(logits.dtype(), DType::F32);
        let draw = Some(dropout::Draw { rate: 0.1, stream: Stream::new(3, Purpose::Dropout) });
        let wide = x.to_dtype(DType::F32)?;
        let wide = residual::residual(&wide, &wide, draw)?.to_dtype(dtype)?;
        assert_close("residual", &residual::residual(&x, &x, draw)?, &wide, 0.)?;
        let ones = Tensor::ones(7, DType::F32, device())?;
        assert_eq!(norm::layer_norm(&x, &ones, Some(&ones), 1e-5)?.dtype(), dtype);
    }
    Ok(())
}

#[test]
fn norms_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        // Of a single element, layer_norm is constant: any difference would be rounding times 1/√ε.
        for [rows, width] in SHAPES.into_iter().filter(|[_, width]| *width > 1) {
            let x = (normal(0, &[rows, width], dtype)? + 0.5)?;
            let inputs = [x, normal(1, &[width], dtype)?, normal(2, &[width], dtype)?];
            assert_agree(
                "layer_norm",
                &|x| norm::layer_norm(&x[0], &x[1], Some(&x[2]), 1e-5),
                &|x| norm::reference::layer_norm(&x[0], &x[1], Some(&x[2]), 1e-5),
                &inputs,
                tolerance,
            )?;
            assert_agree(
                "layer_norm without bias",
                &|x| norm::layer_norm(&x[0], &x[1], None, 1e-5),
                &|x| norm::reference::layer_norm(&x[0], &x[1], None, 1e-5),
                &inputs[..2],
                tolerance,
            )?;
            assert_agree(
                "rms_norm",
                &|x| norm::rms_norm(&x[0], &x[1], 1e-5),
                &|x| norm::reference::rms_norm(&x[0], &x[1], 1e-5),
                &inputs[..2],
                tolerance,
            )?;
        }
    }
    Ok(())
}

#[test]
fn several_linear_maps_agree() -> Result<()> {
    use linear::{Map, linears};
    for (dtype, tolerance) in TOLERANCES {
        for shape in [&[7][..], &[2, 3, 5], &[1061, 127]] {
            let n_inputs = shape[shape.len() - 1];
            let inputs = [
                normal(0, shape, dtype)?,
                normal(1, &[11, n_inputs], dtype)?,
                normal(2, &[11], dtype)?,
                normal(3, &[131, n_inputs], dtype)?,
                normal(4, &[1, n_inputs], dtype)?,
                normal(5, &[1], dtype)?,
            ];
            // Of the last map's result nothing is made where `n` is 2.
            for n in [2, 3] {
                let op: Op = &|x| {
                    let map = |weight, bias| Map { weight, bias };
                    let maps = [map(&x[1], Some(&x[2])), map(&x[3], None), map(&x[4], Some(&x[5]))];
                    Tensor::cat(&linears(&x[0], maps)?[..n], D::Minus1)
                };
                let definition: Op = &|x| {
                    let all = [
                        linear::reference::linear(&x[0], &x[1], Some(&x[2]))?,
                        linear::reference::linear(&x[0], &x[3], None)?,
                        linear::reference::linear(&x[0], &x[4], Some(&x[5]))?,
                    ];
                    Tensor::cat(&all[..n], D::Minus1)
                };
                let used = if n == 3 { 6 } else { 4 };
                let all = |x: &[Tensor]| [x, &inputs[used..]].concat();
                let (op, definition): (Op, Op) = (&|x| op(&all(x)), &|x| definition(&all(x)));
                assert_agree("linears", op, definition, &inputs[..used], tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn linear_cross_entropies_agree() -> Result<()> {
    use linear_cross_entropy::{Scored, linear_cross_entropy, reference};
    for (dtype, tolerance) in TOLERANCES {
        // Several chunks of rows, and blocks of rows within them.
        for [n, width, n_classes] in [[1, 1, 1], [5, 7, 3], [67, 5, 1_009], [601, 3, 9_001]] {
            let labels = below(9, n_classes, &[n])?;
            let ignored = Tensor::full(cross_entropy::IGNORE_INDEX, n, device())?;
            let every_third: Vec<u8> = (0..n).map(|i| u8::from(i % 3 == 1)).collect();
            let labels = Tensor::new(every_third, device())?.where_cond(&ignored, &labels)?;
            let inputs = [
                normal(0, &[n, width], dtype)?,
                normal(1, &[n_classes, width], dtype)?,
                normal(2, &[n_classes], dtype)?,
            ];
            for (n_inputs, smoothing) in [(3, 0.), (3, 0.1), (2, 1.)] {
                let run = |x: &[Tensor], fused: bool| -> Result<Scored> {
                    let map = linear::Map { weight: &x[1], bias: x.get(2) };
                    if fused {
                        linear_cross_entropy(&x[0], map, &labels, smoothing)
                    } else {
                        reference::linear_cross_entropy(&x[0], map, &labels, smoothing)
                    }
                };
                // The loss times 3: it is not the last.
                let (op, definition): (Op, Op) =
                    (&|x| run(x, true)?.loss * 3., &|x| run(x, false)?.loss * 3.);
                let inputs = &inputs[..n_inputs];
                assert_agree("linear cross-entropy", op, definition, inputs, tolerance)?;
                let (scored, expected) = (run(inputs, true)?, run(inputs, false)?);
                assert_eq!(count(&scored.hits)?, count(&expected.hits)?);
                assert_close("of constants", &scored.loss, &expected.loss, tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn mlps_agree() -> Result<()> {
    use activation::Function;
    use mlp::Mlp;
    let functions =
        [Function::Relu, Function::Gelu, Function::GeluTanh, Function::Silu, Function::Sigmoid];
    let stream = Stream::new(3, Purpose::Dropout);
    for (dtype, tolerance) in TOLERANCES {
        for (shape, inner, n_outputs) in
            [(&[7][..], 5, 1), (&[2, 3, 5], 33, 5), (&[1, 1], 1, 3), (&[1061, 37], 131, 29)]
        {
            let n_inputs = shape[shape.len() - 1];
            let inputs = [
                normal(0, shape, dtype)?,
                normal(1, &[inner, n_inputs], dtype)?,
                (normal(2, &[n_outputs, inner], dtype)? * 0.3)?,
                normal(3, &[inner], dtype)?,
                normal(4, &[n_outputs], dtype)?,
            ];
            for function in functions {
                for (rate, n) in [(None, 5), (Some(0.3), 5), (Some(0.), 3)] {
                    let dropout = rate.map(|rate| dropout::Draw { rate, stream });
                    let settings = |x: &[Tensor]| -> [Tensor; 5] {
                        std::array::from_fn(|i| x.get(i).unwrap_or(&inputs[i]).clone())
                    };
                    let run = |x: &[Tensor], run: fn(&Tensor, &Mlp<'_>) -> Result<Tensor>| {
                        let all = settings(x);
                        let bias = |i: usize| (n == 5).then(|| &all[i]);
                        let up = linear::Map { weight: &all[1], bias: bias(3) };
                        let down = linear::Map { weight: &all[2], bias: bias(4) };
                        run(&all[0], &Mlp { up, function, dropout, down })
                    };
                    let name = format!("mlp {function:?} {rate:?}");
                    let (op, definition): (Op, Op) =
                        (&|x| run(x, mlp::mlp), &|x| run(x, mlp::reference::mlp));
                    assert_agree(&name, op, definition, &inputs[..n], tolerance)?;
                    // Nothing to be kept: another way to the same.
                    assert_close(&name, &op(&inputs)?, &definition(&inputs)?, tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn linear_agrees_at_any_rank() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in [&[7][..], &[1, 1], &[2, 3, 5], &[2, 3, 5, 7], &[1061, 127]] {
            for n_outputs in [1, 11, 131] {
                let n_inputs = shape[shape.len() - 1];
                let inputs = [
                    normal(0, shape, dtype)?,
                    normal(1, &[n_outputs, n_inputs], dtype)?,
                    normal(2, &[n_outputs], dtype)?,
                ];
                assert_agree(
                    "linear",
                    &|x| linear::linear(&x[0], &x[1], Some(&x[2])),
                    &|x| linear::reference::linear(&x[0], &x[1], Some(&x[2])),
                    &inputs,
                    tolerance,
                )?;
                assert_agree(
                    "linear without bias",
                    &|x| linear::linear(&x[0], &x[1], None),
                    &|x| linear::reference::linear(&x[0], &x[1], None),
                    &inputs[..2],
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

/// `(batch, len)`: 1 at about a third of the positions, and at all of the first row.
fn padding(batch: usize, len: usize) -> Result<Tensor> {
    let is_padding = |i| i < len || i % 3 == 1;
    let flags: Vec<u8> = (0..batch * len).map(|i| is_padding(i).into()).collect();
    Tensor::from_vec(flags, (batch, len), device())
}

/// Batch, heads, length and width of a head: single, prime, and enough for several threads.
const PLANES: [[usize; 4]; 4] = [[1, 1, 1, 1], [2, 3, 7, 5], [3, 1, 11, 2], [1, 401, 7, 47]];

#[test]
fn depthwise_convolution_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape @ [batch, n_heads, len, _] in PLANES {
            for kernel in [1, 3, 9] {
                let weight = normal(1, &[n_heads, 1, kernel, 1], dtype)?;
                let inputs = [normal(0, &shape, dtype)?, weight];
                for mask in [None, Some(&padding(batch, len)?)] {
                    use depthwise_convolution::{depthwise_convolution, reference};
                    let op: Op = &|x| depthwise_convolution(&x[0], &x[1], mask);
                    let definition: Op = &|x| reference::depthwise_convolution(&x[0], &x[1], mask);
                    assert_agree("depthwise_convolution", op, definition, &inputs, tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn segment_means_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape @ [batch, _, len, _] in PLANES {
            for rule in SEGMENT_RULES {
                for mask in [None, Some(&padding(batch, len)?)] {
                    let segments = nystrom::Segments::new(rule, 4, len, mask)?;
                    let op: Op = &|x| nystrom::segment_means(&x[0], &segments);
                    let definition: Op =
                        &|x| nystrom::reference::segment_means(&x[0], rule, 4, mask);
                    let x = [normal(0, &shape, dtype)?];
                    assert_agree("segment_means", op, definition, &x, tolerance)?;
                }
            }
        }
    }
    Ok(())
}

const SEGMENT_RULES: [nystrom::SegmentRule; 3] = [
    nystrom::SegmentRule::ArraySplit,
    nystrom::SegmentRule::Adaptive,
    nystrom::SegmentRule::CeilLastShort,
];

#[test]
fn pseudo_inverses_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in [[1, 1, 1, 1], [2, 3, 5, 5], [1, 2, 17, 17], [1, 2, 67, 67]] {
            // The rounding error of a small singular value grows 13/4 times in every step.
            let tolerance = 100. * tolerance;
            let a = [softmax::softmax(&(normal(0, &shape, dtype)? * 3.)?)?];
            for start in [nystrom::Normalisation::EachMatrix, nystrom::Normalisation::WholeTensor] {
                for n in [0, 1, 6] {
                    let op: Op = &|a| nystrom::pseudo_inverse(&a[0], n, start);
                    let definition: Op = &|a| nystrom::reference::pseudo_inverse(&a[0], n, start);
                    assert_agree("pseudo_inverse", op, definition, &a, tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn dropout_agrees() -> Result<()> {
    let stream = Stream::new(3, Purpose::Dropout);
    for (dtype, tolerance) in TOLERANCES {
        for shape in SHAPES {
            for rate in [1e-3, 0.1, 0.5, 0.9] {
                assert_agree(
                    "dropout",
                    &|x| dropout::dropout(&x[0], rate, stream),
                    &|x| dropout::reference::dropout(&x[0], rate, stream),
                    &[normal(0, &shape, dtype)?],
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn residual_agrees() -> Result<()> {
    let stream = Stream::new(3, Purpose::Dropout);
    for (dtype, tolerance) in TOLERANCES {
        for shape in SHAPES {
            let inputs = [normal(0, &shape, dtype)?, normal(1, &shape, dtype)?];
            for draw in [None, Some(dropout::Draw { rate: 0.3, stream })] {
                assert_agree(
                    "residual",
                    &|x| residual::residual(&x[0], &x[1], draw),
                    &|x| residual::reference::residual(&x[0], &x[1], draw),
                    &inputs,
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn stochastic_depth_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in SHAPES {
            let inputs = [normal(0, &shape, dtype)?, normal(1, &shape, dtype)?];
            for rate in [0., 0.3, 0.9] {
                let draw = dropout::Draw { rate, stream: Stream::new(3, Purpose::Dropout) };
                assert_agree(
                    "stochastic depth",
                    &|x| stochastic_depth::stochastic_depth(&x[0], &x[1], draw),
                    &|x| stochastic_depth::reference::stochastic_depth(&x[0], &x[1], draw),
                    &inputs,
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn an_example_is_left_out_even_if_its_change_is_nan() -> Result<()> {
    let draw = dropout::Draw { rate: 0.5, stream: Stream::new(3, Purpose::Dropout) };
    let (x, nan) = (normal(0, &[40, 3], DType::F32)?, Tensor::full(f32::NAN, (40, 3), device())?);
    let y = stochastic_depth::stochastic_depth(&x, &nan, draw)?.to_vec2::<f32>()?;
    let kept = y.iter().zip(x.to_vec2::<f32>()?).filter(|(y, x)| *y == x).count();
    let lost = y.iter().filter(|y| y.iter().all(|y| y.is_nan())).count();
    assert_eq!(kept + lost, 40);
    assert!((10..30).contains(&kept), "{kept}");
    Ok(())
}

#[test]
fn sums_with_every_example_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for [batch, width] in SHAPES {
            let inputs = [normal(0, &[batch, width], dtype)?, normal(1, &[width], dtype)?];
            let (op, definition): (Op, Op) = (&|x| broadcast::broadcast_add(&x[0], &x[1]), &|x| {
                broadcast::reference::broadcast_add(&x[0], &x[1])
            });
            assert_agree("broadcast_add", op, definition, &inputs, tolerance)?;
            let inputs = [normal(0, &[3, batch, 5, width], dtype)?, normal(1, &[5, width], dtype)?];
            assert_agree("broadcast_add", op, definition, &inputs, tolerance)?;
        }
    }
    let (x, v) = (normal(0, &[2, 3], DType::F32)?, normal(1, &[2], DType::F32)?);
    let error = broadcast::broadcast_add(&x, &v).unwrap_err().to_string();
    assert!(error.contains("[2]") && error.contains("[2, 3]"), "{error}");
    Ok(())
}

#[test]
fn products_with_every_example_and_row_agree() -> Result<()> {
    let op: Op = &|x| broadcast::broadcast_mul(&x[0], &x[1]);
    let definition: Op = &|x| broadcast::reference::broadcast_mul(&x[0], &x[1]);
    let rows: Op = &|x| broadcast::scale_rows(&x[0], &x[1]);
    let definition_of_rows: Op = &|x| broadcast::reference::scale_rows(&x[0], &x[1]);
    for (dtype, tolerance) in TOLERANCES {
        for [batch, width] in SHAPES {
            let v = normal(1, &[width], dtype)?;
            let inputs = [normal(0, &[batch, width], dtype)?, v];
            assert_agree("broadcast_mul", op, definition, &inputs, tolerance)?;
        }
        for shape in [[1, 1, 1, 1], [3, 13, 5, 101], [2, 67, 4, 17], [7, 1, 300, 3]] {
            let x = normal(0, &shape, dtype)?;
            for of_v in [&shape[2..], &shape] {
                let inputs = [x.clone(), normal(1, of_v, dtype)?];
                assert_agree("broadcast_mul", op, definition, &inputs, tolerance)?;
            }
            for of_scale in [&shape[..3], &shape[2..3]] {
                let inputs = [x.clone(), normal(2, of_scale, dtype)?];
                assert_agree("scale_rows", rows, definition_of_rows, &inputs, tolerance)?;
            }
        }
    }
    let (x, v) = (normal(0, &[2, 4, 3], DType::F32)?, normal(1, &[2], DType::F32)?);
    for op in [op, rows] {
        let error = op(&[x.clone(), v.clone()]).unwrap_err().to_string();
        assert!(error.contains("[2]") && error.contains("[2, 4, 3]"), "{error}");
    }
    Ok(())
}

#[test]
fn products_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for [m, n, k] in [[1, 1, 1], [1, 7, 3], [13, 5, 1], [67, 37, 29], [2, 101, 131]] {
            for batch in [&[][..], &[3], &[2, 5]] {
                let shape = |rows, columns| [batch, &[rows, columns]].concat();
                let a = normal(0, &shape(m, k), dtype)?;
                let (op, definition): (Op, Op) = (&|x| matmul::matmul(&x[0], &x[1]), &|x| {
                    matmul::reference::matmul(&x[0], &x[1])
                });
                let inputs = [a.clone(), normal(1, &shape(k, n), dtype)?];
                assert_agree("matmul", op, definition, &inputs, tolerance)?;
                let (op, definition): (Op, Op) =
                    (&|x| matmul::matmul_transposed(&x[0], &x[1]), &|x| {
                        matmul::reference::matmul_transposed(&x[0], &x[1])
                    });
                let inputs = [a, normal(1, &shape(n, k), dtype)?];
                assert_agree("matmul_transposed", op, definition, &inputs, tolerance)?;
            }
        }
    }
    let x = |shape: &[usize]| normal(0, shape, DType::F32);
    for (a, b) in [(&[2, 3][..], &[2, 3][..]), (&[2, 2, 3], &[3, 3, 2]), (&[1, 2, 3], &[3, 2])] {
        let error = matmul::matmul(&x(a)?, &x(b)?).unwrap_err().to_string();
        assert!(error.contains(&format!("{a:?}")), "{error}");
    }
    Ok(())
}

#[test]
fn exchanged_axes_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in [[1, 1, 1, 1], [2, 3, 5, 7], [3, 61, 4, 53], [2, 1, 7, 3]] {
            assert_agree(
                "swap_axes",
                &|x| swap_axes::swap_axes(&x[0]),
                &|x| swap_axes::reference::swap_axes(&x[0]),
                &[normal(0, &shape, dtype)?],
                tolerance,
            )?;
        }
    }
    Ok(())
}

#[test]
fn gates_agree() -> Result<()> {
    use activation::Function;
    for (dtype, tolerance) in TOLERANCES {
        for function in
            [Function::Relu, Function::Gelu, Function::GeluTanh, Function::Silu, Function::Sigmoid]
        {
            let agree = |of_x: &[usize], of_v: &[usize]| {
                let inputs = [normal(0, of_x, dtype)?, normal(1, of_v, dtype)?];
                assert_agree(
                    "gated",
                    &|x| gate::gated(function, &x[0], &x[1]),
                    &|x| gate::reference::gated(function, &x[0], &x[1]),
                    &inputs,
                    tolerance,
                )
            };
            for [batch, len, width] in [[1, 1, 1], [3, 5, 7], [2, 67, 41], [5, 1, 3], [2, 131, 257]]
            {
                agree(&[batch, len, width], &[batch, len, width])?;
                agree(&[batch, len, width], &[batch, 1, width])?;
                agree(&[batch * len, width], &[batch * len, width])?;
            }
        }
    }
    Ok(())
}

#[test]
fn means_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for [len, width] in SHAPES {
            for batch in [1, 3, 29] {
                assert_agree(
                    "mean",
                    &|x| mean::mean(&x[0]),
                    &|x| mean::reference::mean(&x[0]),
                    &[normal(0, &[batch, len, width], dtype)?],
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

fn count(hits: &Tensor) -> Result<u32> {
    hits.to_scalar()
}

#[test]
fn hits_agree() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        for &[n, n_classes] in SHAPES.iter().chain(empty().first()) {
            // So few numbers that the largest comes several times.
            let logits = below(0, 3, &[n, n_classes])?.to_dtype(dtype)?;
            let ignored = below(1, 3, &[n])?.eq(0_i64)?;
            let ignore = Tensor::full(cross_entropy::IGNORE_INDEX, n, device())?;
            let labels = ignored.where_cond(&ignore, &below(2, n_classes.min(2), &[n])?)?;
            let hits = cross_entropy::hits(&logits, &labels)?;
            let expected = cross_entropy::reference::hits(&logits, &labels)?;
            assert_eq!(count(&hits)?, count(&expected)?, "{n} {n_classes}");
        }
    }
    let logits = Tensor::new(&[[1_f32, 3., 3.], [f32::NAN, 2., 1.], [0., 1., 2.]], device())?;
    for (labels, expected) in [([1_i64, 1, -100], 2), ([2, 2, 2], 1), ([0, 0, 0], 0)] {
        let hits = cross_entropy::hits(&logits, &Tensor::new(&labels, device())?)?;
        assert_eq!(count(&hits)?, expected);
    }
    Ok(())
}

#[test]
fn cross_entropies_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for &[n, n_classes] in SHAPES.iter().chain(empty().first()) {
            let logits = [(normal(0, &[n, n_classes], dtype)? * 3.)?];
            let ignored = below(1, 3, &[n])?.eq(0_i64)?;
            let ignore = Tensor::full(cross_entropy::IGNORE_INDEX, n, device())?;
            let labels = ignored.where_cond(&ignore, &below(0, n_classes, &[n])?)?;
            for smoothing in [0., 0.1, 1.] {
                assert_agree(
                    "cross_entropy",
                    &|x| cross_entropy::cross_entropy(&x[0], &labels, smoothing),
                    &|x| cross_entropy::reference::cross_entropy(&x[0], &labels, smoothing),
                    &logits,
                    tolerance,
                )?;
            }
            let targets = softmax::softmax(&normal(2, &[n, n_classes], dtype)?)?;
            assert_agree(
                "cross_entropy_soft",
                &|x| cross_entropy::cross_entropy_soft(&x[0], &targets),
                &|x| cross_entropy::reference::cross_entropy_soft(&x[0], &targets),
                &logits,
                tolerance,
            )?;
        }
    }
    Ok(())
}

#[test]
fn embedding_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for [vocab_size, d_model] in [[1, 1], [1, 7], [5, 1], [101, 13], [127, 37]] {
            for ids in [&[1][..], &[2, 3, 5], &[7, 523]] {
                let ids = below(0, vocab_size, ids)?;
                let op: Op = &|x| embedding::embedding(&x[0], &ids);
                let definition: Op = &|x| embedding::reference::embedding(&x[0], &ids);
                let table = [normal(0, &[vocab_size, d_model], dtype)?];
                assert_agree("embedding", op, definition, &table, tolerance)?;
                let padding = vocab_size as u32 / 2;
                let op: Op = &|x| embedding::embedding_with_padding(&x[0], &ids, padding);
                let definition: Op =
                    &|x| embedding::reference::embedding_with_padding(&x[0], &ids, padding);
                assert_agree("embedding with padding", op, definition, &table, tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn rotation_agrees() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for (batch, n_heads, seq_len, head_dim) in [(1, 1, 1, 2), (2, 3, 5, 22), (3, 5, 67, 34)] {
            let (positions, frequencies) = (3..3 + seq_len, rotary::frequencies(head_dim, 1e4)?);
            let (cos, sin) = rotary::tables(positions, &frequencies, dtype, device())?;
            for layout in [rotary::Layout::Interleaved, rotary::Layout::Half] {
                assert_agree(
                    "rotate",
                    &|x| rotary::rotate(&x[0], &cos, &sin, layout),
                    &|x| rotary::reference::rotate(&x[0], &cos, &sin, layout),
                    &[normal(0, &[batch, n_heads, seq_len, head_dim], dtype)?],
                    tolerance,
                )?;
                assert_agree(
                    "rotate, heads last",
                    &|x| rotary::rotate_heads_last(&x[0], &cos, &sin, layout),
                    &|x| rotary::reference::rotate_heads_last(&x[0], &cos, &sin, layout),
                    &[normal(1, &[batch, seq_len, n_heads, head_dim], dtype)?],
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

/// As [`TOLERANCES`]. dK = V ⊙ Σ aG − Σ aG ⊙ Y is the difference of two sums over the queries, which cancel where one
/// key dominates: its error is theirs.
const AFT_TOLERANCES: [(DType, f64); 2] = [(DType::F32, 5e-5), (DType::F64, 1e-12)];

/// Batch, length and channels: single, prime, more than a tile of keys, more than a block of channels.
const AFT_SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 1), (2, 1, 3), (1, 7, 1), (2, 13, 5), (2, 131, 7), (1, 23, 137)];

/// Sizes of keys: such that factors hold all, some and none of the rows.
const AFT_SCALES: [f64; 3] = [1., 12., 200.];

/// Normal numbers times `scale`, rounded to 1/64, so that K + w is exact in f32 and any error is the operation's own.
fn rounded(index: u64, shape: &[usize], scale: f64, dtype: DType) -> Result<Tensor> {
    ((normal(index, shape, DType::F64)? * (64. * scale))?.round()? / 64.)?.to_dtype(dtype)
}

/// No padding, and about every third key.
fn aft_masks(batch: usize, len: usize) -> Result<[Option<Tensor>; 2]> {
    let mask = below(7, 3, &[batch, len])?.eq(0_i64)?;
    Ok([None, Some(mask)])
}

#[test]
fn attention_free_means_agree() -> Result<()> {
    for (dtype, tolerance) in AFT_TOLERANCES {
        for (batch, len, d_model) in AFT_SHAPES {
            for (mask, scale) in aft_masks(batch, len)?.into_iter().cycle().zip(AFT_SCALES) {
                let mask = mask.as_ref();
                let key = rounded(0, &[batch, len, d_model], scale, dtype)?;
                let value = normal(1, &[batch, len, d_model], dtype)?;
                let w = |shape: [usize; 2]| rounded(2, &shape, scale.min(20.), dtype);
                for reach in [Reach::Everything, Reach::Past] {
                    let inputs = [key.clone(), value.clone(), w([len, len])?];
                    let op: Op = &|x| aft::aft_full(&x[0], &x[1], &x[2], mask, reach);
                    let definition: Op =
                        &|x| aft::reference::aft_full(&x[0], &x[1], &x[2], mask, reach);
                    assert_agree("aft_full", op, definition, &inputs, tolerance)?;
                    for window in [1, 3, 150] {
                        let inputs = [key.clone(), value.clone(), w([len, 2 * window - 1])?];
                        let op: Op = &|x| aft::aft_local(&x[0], &x[1], &x[2], mask, reach);
                        let definition: Op =
                            &|x| aft::reference::aft_local(&x[0], &x[1], &x[2], mask, reach);
                        assert_agree("aft_local", op, definition, &inputs, tolerance)?;
                    }
                    let op: Op = &|x| aft::aft_simple(&x[0], &x[1], mask, reach);
                    let definition: Op = &|x| aft::reference::aft_simple(&x[0], &x[1], mask, reach);
                    assert_agree("aft_simple", op, definition, &inputs[..2], tolerance)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn filters_of_attention_free_means_agree() -> Result<()> {
    for (dtype, tolerance) in AFT_TOLERANCES {
        for (batch, len, n_heads) in AFT_SHAPES {
            for (mask, scale) in aft_masks(batch, len)?.into_iter().cycle().zip(AFT_SCALES) {
                let mask = mask.as_ref();
                for (head_dim, kernel_size) in [(1, 4), (3, 1), (2, 171)] {
                    let inputs = [
                        rounded(0, &[batch, len, n_heads], scale, dtype)?,
                        normal(1, &[batch, len, n_heads, head_dim], dtype)?,
                        rounded(2, &[n_heads, kernel_size], scale.min(20.), dtype)?,
                    ];
                    for reach in [Reach::Everything, Reach::Past] {
                        for at in [aft::Alignment::Centred, aft::Alignment::Left] {
                            let op: Op = &|x| aft::aft_conv(&x[0], &x[1], &x[2], at, mask, reach);
                            let definition: Op =
                                &|x| aft::reference::aft_conv(&x[0], &x[1], &x[2], at, mask, reach);
                            assert_agree("aft_conv", op, definition, &inputs, tolerance)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn attention_free_means_read_another_sequence() -> Result<()> {
    for (dtype, tolerance) in AFT_TOLERANCES {
        for (q_len, kv_len) in [(1, 7), (7, 1), (5, 131), (131, 5)] {
            let inputs = [
                normal(0, &[2, kv_len, 3], dtype)?,
                normal(1, &[2, kv_len, 3], dtype)?,
                normal(2, &[q_len, kv_len], dtype)?,
            ];
            for mask in aft_masks(2, kv_len)? {
                let (mask, reach) = (mask.as_ref(), Reach::Everything);
                let op: Op = &|x| aft::aft_full(&x[0], &x[1], &x[2], mask, reach);
                let definition: Op =
                    &|x| aft::reference::aft_full(&x[0], &x[1], &x[2], mask, reach);
                assert_agree("aft_full", op, definition, &inputs, tolerance)?;
            }
        }
    }
    Ok(())
}

/// One update of a parameter and its state, from a gradient and a step.
type Update<'a> = &'a dyn Fn(&[Var], &Tensor, u64) -> Result<()>;

/// Three updates of equal variables, by two implementations.
fn assert_updates_agree(
    name: &str,
    tolerance: f64,
    start: &Tensor,
    update: Update,
    definition: Update,
) -> Result<()> {
    let zeros = start.zeros_like()?;
    let run = |update: Update| -> Result<Vec<Var>> {
        let state = [start, &zeros, &zeros].map(Var::from_tensor);
        let state = state.into_iter().collect::<Result<Vec<_>>>()?;
        for step in 1..=3 {
            update(&state, &normal(step, start.dims(), start.dtype())?, step)?;
        }
        Ok(state)
    };
    for (actual, expected) in run(update)?.iter().zip(&run(definition)?) {
        assert_close(name, actual, expected, tolerance)?;
    }
    Ok(())
}

fn adamw_slot<'a>(state: &'a [Var], gradient: &'a Tensor) -> adamw::Slot<'a> {
    let hyper = adamw::Hyper {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.01,
        gradient_scale: 0.3,
    };
    let [parameter, first_moment, second_moment] = [0, 1, 2].map(|i| &state[i]);
    adamw::Slot { parameter, gradient, first_moment, second_moment, hyper }
}

fn lamb_slot<'a>(state: &'a [Var], gradient: &'a Tensor, hyper: lamb::Hyper) -> lamb::Slot<'a> {
    let [parameter, first_moment, second_moment] = [0, 1, 2].map(|i| &state[i]);
    lamb::Slot { parameter, gradient, first_moment, second_moment, hyper }
}

fn sgd_slot<'a>(state: &'a [Var], gradient: &'a Tensor, hyper: sgd::Hyper) -> sgd::Slot<'a> {
    let [parameter, momentum_buffer] = [0, 1].map(|i| &state[i]);
    sgd::Slot { parameter, gradient, momentum_buffer, hyper }
}

#[test]
fn updates_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in SHAPES {
            let start = normal(0, &shape, dtype)?;
            assert_updates_agree(
                "adamw",
                tolerance,
                &start,
                &|s, g, t| adamw::step_all(&[adamw_slot(s, g)], t),
                &|s, g, t| adamw::reference::step(&adamw_slot(s, g), t),
            )?;
            for nesterov in [false, true] {
                let sgd = sgd::Hyper { lr: 0.1, momentum: 0.9, nesterov, weight_decay: 0.01 };
                assert_updates_agree(
                    "sgd",
                    tolerance,
                    &start,
                    &|s, g, t| sgd::step(&sgd_slot(s, g, sgd), t),
                    &|s, g, t| sgd::reference::step(&sgd_slot(s, g, sgd), t),
                )?;
            }
            let lion = lion::Hyper { lr: 0.1, beta1: 0.9, beta2: 0.99, weight_decay: 0.01 };
            assert_updates_agree(
                "lion",
                tolerance,
                &start,
                &|s, g, _| lion::step(&s[0], g, &s[1], &lion),
                &|s, g, _| lion::reference::step(&s[0], g, &s[1], &lion),
            )?;
            for with in [false, true] {
                let lamb = lamb::Hyper {
                    lr: 0.1,
                    beta1: 0.9,
                    beta2: 0.99,
                    epsilon: 1e-6,
                    weight_decay: 0.01,
                    bias_correction: with,
                    trust_ratio: !with,
                };
                assert_updates_agree(
                    "lamb",
                    tolerance,
                    &start,
                    &|s, g, t| lamb::step(&lamb_slot(s, g, lamb), t),
                    &|s, g, t| lamb::reference::step(&lamb_slot(s, g, lamb), t),
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn factored_updates_agree() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for shape in [&[7][..], &[1, 1], &[3, 5], &[2, 3, 5, 7], &[301, 113], &[3, 1, 20_011]] {
            for relative_step in [false, true] {
                let hyper = adafactor::Hyper {
                    lr: 0.1,
                    decay: -0.8,
                    epsilon1: 1e-30,
                    epsilon2: 1e-3,
                    clip: 0.7,
                    relative_step,
                    weight_decay: 0.01,
                };
                let run = |update: fn(&adafactor::Slot<'_>, u64) -> Result<()>| -> Result<Tensor> {
                    let parameter = &Var::from_tensor(&normal(0, shape, dtype)?)?;
                    let second_moment = &adafactor::SecondMoment::zeros(parameter)?;
                    for step in 1..=3 {
                        let gradient = &normal(step, shape, dtype)?;
                        let slot = adafactor::Slot { parameter, gradient, second_moment, hyper };
                        update(&slot, step)?;
                    }
                    Ok(parameter.as_detached_tensor())
                };
                let expected = run(adafactor::reference::step)?;
                let name = format!("adafactor {shape:?}");
                assert_close(&name, &run(adafactor::step)?, &expected, tolerance)?;
            }
        }
    }
    Ok(())
}

#[test]
fn constants_record_no_graph() -> Result<()> {
    let x = normal(0, &[5, 7], DType::F32)?;
    for (name, op, _) in UNARY {
        assert!(!op(&x)?.track_op(), "{name}");
    }
    let weight = normal(1, &[3, 7], DType::F32)?;
    assert!(!linear::linear(&x, &weight, None)?.track_op());
    let total = softmax::softmax(&x)?.sum(D::Minus1)?;
    assert_close("rows of a softmax", &total, &total.ones_like()?, 1e-6)
}
