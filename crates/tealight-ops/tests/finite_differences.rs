//! Every operation's gradient, in f64, against central differences of its value.

mod common;

use candle_core::{DType, Result, Tensor};
use common::{Op, differentiate, normal, values};
use tealight_ops::attention::{Options, reference::attention};
use tealight_ops::dropout::Draw;
use tealight_ops::gated_delta_rule::{Erase, Operands, gated_delta_rule};
use tealight_ops::linear_attention::linear_attention;
use tealight_ops::retention::retention;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;
use tealight_ops::truncated_softmax::{Truncation, truncated_softmax};
use tealight_ops::wkv::wkv;
use tealight_ops::{Reach, Tokens};
use tealight_ops::{
    activation, aft, broadcast, cross_entropy, depthwise_convolution, dropout, embedding, entmax,
    gate, linear, matmul, mean, mlp, norm, nystrom, rotary, short_convolution, softmax, softplus,
    stochastic_depth, swap_axes,
};

const STEP: f64 = 1e-5;
/// The differences err by STEP² for the third derivative, and by 10⁻¹⁶/STEP for rounding.
const TOLERANCE: f64 = 1e-7;

fn check(name: &str, op: Op, inputs: &[Tensor]) -> Result<()> {
    let (_, gradients) = differentiate(op, inputs)?;
    for (input, gradient) in gradients.iter().enumerate() {
        for (i, analytic) in values(gradient)?.into_iter().enumerate() {
            let loss = |delta| loss(op, &nudged(inputs, input, i, delta)?);
            let numeric = (loss(STEP)? - loss(-STEP)?) / (2. * STEP);
            let error = (analytic - numeric).abs();
            let allowed = TOLERANCE * numeric.abs().max(1.);
            assert!(error < allowed, "{name}: input {input}[{i}]: {analytic} is not {numeric}");
        }
    }
    Ok(())
}

/// The loss that `differentiate` differentiates.
fn loss(op: Op, inputs: &[Tensor]) -> Result<f64> {
    let value = op(inputs)?;
    (&value * normal(99, value.dims(), value.dtype())?)?.sum_all()?.to_scalar()
}

fn nudged(inputs: &[Tensor], input: usize, i: usize, delta: f64) -> Result<Vec<Tensor>> {
    let mut elements = values(&inputs[input])?;
    elements[i] += delta;
    let mut inputs = inputs.to_vec();
    inputs[input] = Tensor::from_vec(elements, inputs[input].shape(), device())?;
    Ok(inputs)
}

fn random(index: u64, shape: &[usize]) -> Result<Tensor> {
    normal(index, shape, DType::F64)
}

#[test]
fn sums_and_means_have_their_gradients() -> Result<()> {
    let inputs = [random(0, &[2, 3, 5])?, random(1, &[3, 5])?];
    check("broadcast_add", &|x| broadcast::broadcast_add(&x[0], &x[1]), &inputs)?;
    check("broadcast_mul", &|x| broadcast::broadcast_mul(&x[0], &x[1]), &inputs)?;
    check("mean", &|x| mean::mean(&x[0]), &inputs[..1])?;
    let scales = [random(2, &[2, 3])?, random(3, &[3])?];
    for scale in scales {
        let inputs = [inputs[0].clone(), scale];
        check("scale_rows", &|x| broadcast::scale_rows(&x[0], &x[1]), &inputs)?;
    }
    let inputs = [random(0, &[2, 3, 5])?, random(1, &[2, 5, 2])?];
    check("matmul", &|x| matmul::matmul(&x[0], &x[1]), &inputs)?;
    let inputs = [random(0, &[2, 3, 5])?, random(1, &[2, 4, 5])?];
    check("matmul_transposed", &|x| matmul::matmul_transposed(&x[0], &x[1]), &inputs)?;
    let inputs = [random(0, &[2, 3, 5])?, random(1, &[2, 1, 5])?];
    let silu = activation::Function::Silu;
    check("gated", &|x| gate::gated(silu, &x[0], &x[1]), &inputs)?;
    check("swap_axes", &|x| swap_axes::swap_axes(&x[0]), &[random(0, &[2, 3, 2, 3])?])
}

/// One output after the other and the last state, so that all of them count.
#[test]
fn the_gated_delta_rule_has_its_gradient() -> Result<()> {
    for features in [1, 3] {
        let shape = [2, 7, 2, 3];
        let key = (random(1, &shape)? * 0.4)?;
        let decay: Tensor = (random(5, &shape)?.abs()? * -0.5)?;
        let decay =
            if features == 1 { decay.narrow(3, 0, 1)?.squeeze(3)?.contiguous()? } else { decay };
        let state = random(6, &[2, 2, 3, 5])?;
        let inputs = [
            random(0, &shape)?,
            key,
            random(2, &[2, 7, 2, 5])?,
            (random(3, &shape[..3])?.tanh()? + 1.)?,
            decay,
            state,
            (random(4, &shape)? * 0.4)?,
            (random(7, &shape)? * 0.4)?,
        ];
        for n_inputs in [6, 7, 8] {
            let op: Op = &|x| {
                let operands = Operands {
                    query: &x[0],
                    key: &x[1],
                    value: &x[2],
                    strength: Some(&x[3]),
                    erase: match n_inputs {
                        6 => Erase::Key,
                        7 => Erase::Along(&x[6]),
                        _ => Erase::Between { along: &x[6], key: &x[7] },
                    },
                    log_decay: Some(&x[4]),
                    state: Some(&x[5]),
                };
                let [output, state] = gated_delta_rule(&operands, Tokens::default())?;
                Tensor::cat(&[output.flatten_all()?, state.flatten_all()?], 0)
            };
            check("gated_delta_rule", op, &inputs[..n_inputs])?;
        }
    }
    Ok(())
}

#[test]
fn what_surrounds_recurrences_has_its_gradient() -> Result<()> {
    let inputs = [random(0, &[2, 7, 3])?, random(1, &[3, 4])?];
    let tokens = Tokens::default();
    let op: Op = &|x| short_convolution::short_convolution(&x[0], &x[1], tokens);
    check("short_convolution", op, &inputs)?;
    let inputs = [(random(0, &[5, 7])? * 3.)?, random(1, &[7])?, random(2, &[7])?];
    check("softplus", &|x| softplus::scaled_softplus(&x[0], &x[1], &x[2]), &inputs)
}

#[test]
fn softmax_has_its_gradient() -> Result<()> {
    let x = [(random(0, &[2, 3, 19])? * 3.)?];
    check("softmax", &|x| softmax::softmax(&x[0]), &x)?;
    check("log_softmax", &|x| softmax::log_softmax(&x[0]), &x)
}

/// Away from the kinks, which no difference of these numbers straddles.
#[test]
fn sparse_softmaxes_have_their_gradients() -> Result<()> {
    let x = [random(0, &[2, 3, 19])?];
    check("sparsemax", &|x| entmax::sparsemax(&x[0]), &x)?;
    check("entmax15", &|x| entmax::entmax15(&x[0]), &x)?;
    for truncation in [
        Truncation::TopK(5),
        Truncation::Cut(0.05),
        Truncation::CutRenormalized(0.05),
        Truncation::ScoreCut(0.3),
    ] {
        check("truncated", &|x| truncated_softmax(&x[0], truncation), &x)?;
    }
    Ok(())
}

#[test]
fn activations_have_their_gradients() -> Result<()> {
    let x = [(random(0, &[5, 7])? * 2.)?];
    check("relu", &|x| activation::relu(&x[0]), &x)?;
    check("sigmoid", &|x| activation::sigmoid(&x[0]), &x)?;
    check("silu", &|x| activation::silu(&x[0]), &x)?;
    check("gelu", &|x| activation::gelu(&x[0]), &x)?;
    check("gelu_tanh", &|x| activation::gelu_tanh(&x[0]), &x)
}

#[test]
fn norms_have_their_gradients() -> Result<()> {
    let inputs = [random(0, &[2, 3, 19])?, random(1, &[19])?, random(2, &[19])?];
    check("layer_norm", &|x| norm::layer_norm(&x[0], &x[1], Some(&x[2]), 1e-5), &inputs)?;
    check("without bias", &|x| norm::layer_norm(&x[0], &x[1], None, 1e-5), &inputs[..2])?;
    check("rms_norm", &|x| norm::rms_norm(&x[0], &x[1], 1e-5), &inputs[..2])
}

#[test]
fn linear_has_its_gradient() -> Result<()> {
    let inputs = [random(0, &[2, 3, 5])?, random(1, &[7, 5])?, random(2, &[7])?];
    check("linear", &|x| linear::linear(&x[0], &x[1], Some(&x[2])), &inputs)?;
    check("without bias", &|x| linear::linear(&x[0], &x[1], None), &inputs[..2])
}

#[test]
fn mlp_has_its_gradient() -> Result<()> {
    let inputs = [
        random(0, &[2, 3, 5])?,
        random(1, &[7, 5])?,
        random(2, &[7])?,
        random(3, &[4, 7])?,
        random(4, &[4])?,
    ];
    let stream = Stream::new(3, Purpose::Dropout);
    for dropout in [None, Some(Draw { rate: 0.4, stream })] {
        let op: Op = &|x| {
            let up = linear::Map { weight: &x[1], bias: Some(&x[2]) };
            let down = linear::Map { weight: &x[3], bias: Some(&x[4]) };
            mlp::mlp(&x[0], &mlp::Mlp { up, function: activation::Function::Gelu, dropout, down })
        };
        check("mlp", op, &inputs)?;
    }
    Ok(())
}

/// 1 = padding: one row of two real positions, one of nothing, one whole.
fn padding() -> Result<Tensor> {
    let rows = [[1_u8, 0, 1, 1, 0, 1, 1], [1; 7], [0; 7]];
    Tensor::new(&rows, device())
}

#[test]
fn depthwise_convolution_has_its_gradient() -> Result<()> {
    let inputs = [random(0, &[3, 2, 7, 3])?, random(1, &[2, 1, 5, 1])?];
    for mask in [None, Some(&padding()?)] {
        let op: Op = &|x| depthwise_convolution::depthwise_convolution(&x[0], &x[1], mask);
        check("depthwise_convolution", op, &inputs)?;
    }
    Ok(())
}

#[test]
fn pseudo_inverse_has_its_gradient() -> Result<()> {
    // Not far from the identity, or the third derivative is of the size of the inverse's cube.
    let scores = (random(0, &[2, 2, 3, 3])?
        + (Tensor::eye(3, DType::F64, device())? * 3.)?.broadcast_as((2, 2, 3, 3))?)?;
    let a = [softmax::softmax(&scores)?];
    for start in [nystrom::Normalisation::EachMatrix, nystrom::Normalisation::WholeTensor] {
        for n in [0, 1, 6] {
            check("pseudo_inverse", &|a| nystrom::pseudo_inverse(&a[0], n, start), &a)?;
        }
    }
    Ok(())
}

#[test]
fn nystrom_attention_has_its_gradient() -> Result<()> {
    let shape = [3, 1, 7, 2];
    let inputs = [random(0, &shape)?, random(1, &shape)?, random(2, &shape)?];
    // Of three landmarks: segments of two and three positions, and a row that is exact.
    let own = nystrom::Settings { n_landmarks: 3, ..Default::default() };
    let zeroed = nystrom::Settings { padding: nystrom::Padding::Zeroed, ..own };
    for settings in [own, own.transformers(), zeroed] {
        for mask in [None, Some(&padding()?)] {
            let op: Op = &|x| nystrom::attention(&x[0], &x[1], &x[2], &settings, mask);
            check("nystrom", op, &inputs)?;
        }
    }
    Ok(())
}

#[test]
fn dropout_has_its_gradient() -> Result<()> {
    let stream = Stream::new(5, Purpose::Dropout);
    check("dropout", &|x| dropout::dropout(&x[0], 0.3, stream), &[random(0, &[3, 17])?])?;
    let draw = Draw { rate: 0.3, stream };
    let inputs = [random(0, &[5, 3])?, random(1, &[5, 3])?];
    let op: Op = &|x| stochastic_depth::stochastic_depth(&x[0], &x[1], draw);
    check("stochastic_depth", op, &inputs)
}

#[test]
fn cross_entropy_has_its_gradient() -> Result<()> {
    let logits = [(random(0, &[5, 7])? * 3.)?];
    let labels = Tensor::new(&[0_i64, 6, cross_entropy::IGNORE_INDEX, 3, 3], device())?;
    for smoothing in [0., 0.2] {
        let op: Op = &|x| cross_entropy::cross_entropy(&x[0], &labels, smoothing);
        check("cross_entropy", op, &logits)?;
    }
    // Not of sum 1, so that the sum must appear in the gradient.
    let targets = random(1, &[5, 7])?.abs()?;
    check("soft", &|x| cross_entropy::cross_entropy_soft(&x[0], &targets), &logits)
}

#[test]
fn embedding_has_its_gradient() -> Result<()> {
    let ids = Tensor::new(&[[0_u32, 3, 1, 3], [3, 4, 0, 1]], device())?;
    check("embedding", &|x| embedding::embedding(&x[0], &ids), &[random(0, &[5, 3])?])
}

#[test]
fn scans_have_their_gradients() -> Result<()> {
    let mask = Tensor::new(&[[0_u8, 0, 0, 0, 0], [1, 0, 1, 0, 0]], device())?;
    let operands =
        [random(0, &[2, 3, 5, 2])?, random(1, &[2, 3, 5, 2])?, random(2, &[2, 3, 5, 7])?];
    for reach in [Reach::Everything, Reach::Past] {
        let op: Op = &|x| linear_attention(&x[0], &x[1], &x[2], reach, Some(&mask));
        check("linear_attention", op, &operands)?;
    }
    let decay = [1., 0.9, 0.5];
    check("retention", &|x| retention(&x[0], &x[1], &x[2], &decay, Some(&mask)), &operands)?;
    let operands =
        [random(0, &[2, 5, 3])?, random(1, &[2, 5, 3])?, random(2, &[3])?, random(3, &[3])?];
    let segments = Tensor::new(&[[0_u32, 0, 0, 1, 1], [0, 1, 1, 0, 0]], device())?;
    for segments in [None, Some(&segments)] {
        let op: Op = &|x| wkv(&x[0], &x[1], &x[2], &x[3], Some(&mask), segments);
        check("wkv", op, &operands)?;
    }
    Ok(())
}

#[test]
fn attention_has_its_gradient() -> Result<()> {
    let inputs = [
        random(0, &[2, 4, 3, 5])?,
        random(1, &[2, 2, 7, 5])?,
        random(2, &[2, 2, 7, 3])?,
        random(3, &[4, 3, 7])?,
    ];
    let dropout = Draw { rate: 0.3, stream: Stream::new(5, Purpose::Dropout) };
    let plain = Options { window: Some(6), dropout: Some(dropout), ..Options::default() };
    check("attention", &|x| attention(&x[0], &x[1], &x[2], &plain), &inputs[..3])?;
    let op: Op = &|x| {
        let options = Options { causal: true, attn_mask: Some(&x[3]), ..plain };
        attention(&x[0], &x[1], &x[2], &options)
    };
    check("causal, with a bias", op, &inputs)?;
    let [query, key, value, _bias] = inputs;
    let inputs = [query, key, value, random(4, &[4])?, random(5, &[2, 4, 7])?];
    let op: Op = &|x| {
        let (sink, log_forget) = (Some(&x[3]), Some(&x[4]));
        attention(&x[0], &x[1], &x[2], &Options { causal: true, sink, log_forget, ..plain })
    };
    check("with sinks and gates", op, &inputs)
}

#[test]
fn rotation_has_its_gradient() -> Result<()> {
    let x = [random(0, &[2, 3, 5, 6])?];
    let (cos, sin) = rotary::tables(2..7, &rotary::frequencies(6, 100.)?, DType::F64, device())?;
    for layout in [rotary::Layout::Interleaved, rotary::Layout::Half] {
        check("rotate", &|x| rotary::rotate(&x[0], &cos, &sin, layout), &x)?;
        let op: Op = &|x| rotary::rotate_heads_last(&x[0], &cos, &sin, layout);
        check("rotate, heads last", op, &[random(1, &[2, 5, 3, 6])?])?;
    }
    Ok(())
}

#[test]
fn attention_free_means_have_their_gradients() -> Result<()> {
    let mask = Tensor::new(&[[0_u8, 0, 1, 0, 0], [1, 0, 0, 0, 1]], device())?;
    let (key, value) = (random(0, &[2, 5, 3])?, random(1, &[2, 5, 3])?);
    let wide = random(2, &[2, 5, 3, 2])?;
    for reach in [Reach::Everything, Reach::Past] {
        let with = |w: Tensor| [key.clone(), value.clone(), w];
        let mask = Some(&mask);
        let full: Op = &|x| aft::aft_full(&x[0], &x[1], &x[2], mask, reach);
        check("aft_full", full, &with(random(3, &[5, 5])?))?;
        let local: Op = &|x| aft::aft_local(&x[0], &x[1], &x[2], mask, reach);
        check("aft_local", local, &with(random(4, &[5, 3])?))?;
        check(
            "aft_simple",
            &|x| aft::aft_simple(&x[0], &x[1], mask, reach),
            &with(key.clone())[..2],
        )?;
        let inputs = [key.clone(), wide.clone(), random(5, &[3, 4])?];
        for at in [aft::Alignment::Centred, aft::Alignment::Left] {
            let conv: Op = &|x| aft::aft_conv(&x[0], &x[1], &x[2], at, mask, reach);
            check("aft_conv", conv, &inputs)?;
        }
    }
    Ok(())
}
