mod laws;

use candle_core::{DType, Result, Tensor, Var};

use super::*;
use crate::autograd::gradients::backward;
use crate::rng::{Purpose, Stream};
use crate::testing::device;
use crate::threads;

/// `(batch, len, n_heads, n_features, width)`: single, prime, and of several chunks and blocks.
const SHAPES: [[usize; 5]; 5] =
    [[1, 1, 1, 1, 1], [2, 5, 3, 11, 7], [1, 67, 2, 5, 3], [2, 35, 1, 3, 17], [1, 130, 2, 17, 5]];
const CHUNKS: [usize; 5] = [1, 7, 16, 64, 1000];

/// How the state decays.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Decay {
    None,
    OfHeads,
    OfFeatures,
}

/// What is erased.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Erased {
    Nothing,
    Key,
    Along,
    Between,
}

fn normal(index: u64, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let stream = Stream::new(17, Purpose::Data).fork(index);
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n as u64).map(|i| stream.normal(i)).collect();
    Tensor::from_vec(values, shape, device())?.to_dtype(dtype)
}

fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// x / √(Σ x² + 1e-6) over the last axis.
fn unit(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&(x.sqr()?.sum_keepdim(candle_core::D::Minus1)? + 1e-6)?.sqrt()?)
}

/// One call with tensors of its own.
struct Case {
    label: String,
    tensors: Vec<Tensor>,
    decay: Decay,
    erased: Erased,
    has_strength: bool,
    has_state: bool,
    padding: Option<Tensor>,
    segments: Option<Tensor>,
}

impl Case {
    fn new(shape: [usize; 5], decay: Decay, erased: Erased, dtype: DType) -> Result<Self> {
        let [batch, len, n_heads, n_features, width] = shape;
        let per_feature = [batch, len, n_heads, n_features];
        let mut tensors = vec![
            normal(0, &per_feature, dtype)?,
            unit(&normal(1, &per_feature, dtype)?)?,
            normal(2, &[batch, len, n_heads, width], dtype)?,
        ];
        tensors.push((normal(3, &per_feature[..3], dtype)?.tanh()? + 1.)?);
        if matches!(erased, Erased::Along | Erased::Between) {
            tensors.push(unit(&normal(4, &per_feature, dtype)?)?);
        }
        if erased == Erased::Between {
            tensors.push(unit(&normal(7, &per_feature, dtype)?)?);
        }
        match decay {
            Decay::None => {}
            Decay::OfHeads => tensors.push((normal(5, &per_feature[..3], dtype)?.abs()? * -0.3)?),
            Decay::OfFeatures => tensors.push((normal(5, &per_feature, dtype)?.abs()? * -0.3)?),
        }
        tensors.push(normal(6, &[batch, n_heads, n_features, width], dtype)?);
        let label = format!("{shape:?} {dtype:?} {decay:?} {erased:?}");
        Ok(Self {
            label,
            tensors,
            decay,
            erased,
            has_strength: true,
            has_state: true,
            padding: None,
            segments: None,
        })
    }

    /// Without strengths and an initial state.
    fn bare(mut self) -> Self {
        (self.has_strength, self.has_state) = (false, false);
        self.tensors.remove(3);
        self.tensors.pop();
        self
    }

    /// With queries and keys of the first `n` heads, each for as many heads.
    fn in_groups(mut self, n: usize) -> Result<Self> {
        for x in &mut self.tensors[..2] {
            *x = x.narrow(2, 0, n)?.contiguous()?;
        }
        self.label = format!("{} in {n} groups", self.label);
        Ok(self)
    }

    /// The operands; ln α is the one before the state.
    fn with<R>(&self, tensors: &[Tensor], f: impl FnOnce(&Operands<'_>, Tokens<'_>) -> R) -> R {
        let mut rest = tensors[3..].iter();
        let mut next = |is_there: bool| if is_there { rest.next() } else { None };
        let strength = next(self.has_strength);
        let along = next(matches!(self.erased, Erased::Along | Erased::Between));
        let key = next(self.erased == Erased::Between);
        let log_decay = next(self.decay != Decay::None);
        let state = next(self.has_state);
        let erase = match (self.erased, along, key) {
            (_, Some(along), Some(key)) => Erase::Between { along, key },
            (_, Some(e), None) => Erase::Along(e),
            (Erased::Key, ..) => Erase::Key,
            (_, None, _) => Erase::Nothing,
        };
        let operands = Operands {
            query: &tensors[0],
            key: &tensors[1],
            value: &tensors[2],
            strength,
            erase,
            log_decay,
            state,
        };
        let tokens =
            Tokens { key_padding_mask: self.padding.as_ref(), segments: self.segments.as_ref() };
        f(&operands, tokens)
    }

    /// Output, last state, and the gradients of all tensors; of the definition if there is no `chunk`.
    fn run(&self, chunk: Option<usize>) -> Result<Vec<Vec<f64>>> {
        let vars = self.tensors.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
        let copies = vars.iter().map(|var| var.as_tensor() * 1.).collect::<Result<Vec<_>>>()?;
        let [output, state] = self.with(&copies, |operands, tokens| match chunk {
            Some(chunk) => in_chunks(operands, tokens, chunk),
            None => reference::gated_delta_rule(operands, tokens),
        })?;
        let noise = |i, x: &Tensor| (x * normal(i, x.dims(), x.dtype())?)?.sum_all();
        let mut results = vec![values(&output)?, values(&state)?];
        let output = match &self.padding {
            // What a padded position gives is not specified.
            Some(mask) => {
                let (batch, len) = mask.dims2()?;
                let mask = mask.reshape((batch, len, 1, 1))?.broadcast_as(output.shape())?;
                mask.where_cond(&output.zeros_like()?, &output)?
            }
            None => output,
        };
        let loss = (noise(98, &output)? + noise(99, &state)?)?;
        let names: Vec<String> = (0..vars.len()).map(|i| format!("{i:02}")).collect();
        let named = names.iter().map(String::as_str).zip(vars.iter().map(Var::as_tensor));
        for (_, gradient) in backward(&loss, named)?.iter() {
            results.push(values(gradient.expect("a gradient"))?);
        }
        Ok(results)
    }

    fn check(&self, actual: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64) {
        for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
            let scale = expected.iter().fold(1_f64, |scale, x| scale.max(x.abs()));
            for (j, (a, e)) in actual.iter().zip(expected).enumerate() {
                assert!(
                    (a - e).abs() <= tolerance * scale,
                    "{} [{i}][{j}]: {a} is not {e}",
                    self.label
                );
            }
        }
    }
}

/// Some padding at the left, in the middle and at the right, and a row of nothing else.
fn padding(batch: usize, len: usize) -> Result<Tensor> {
    let flag = |row, t| t % 5 == 1 || t + 1 == len || (row == 0 && t < 3) || (row == 1 && len < 10);
    let flags = (0..batch).flat_map(|row| (0..len).map(move |t| u8::from(flag(row, t))));
    Tensor::from_vec(flags.collect(), (batch, len), device())
}

fn segments(batch: usize, len: usize) -> Result<Tensor> {
    let of = |row: usize, t: usize| ((t + 2 * row) / 11 + usize::from(t + 1 == len)) as u32;
    let all = (0..batch).flat_map(|row| (0..len).map(move |t| of(row, t)));
    Tensor::from_vec(all.collect(), (batch, len), device())
}

const ERASED: [Erased; 4] = [Erased::Nothing, Erased::Key, Erased::Along, Erased::Between];
const DECAYS: [Decay; 3] = [Decay::None, Decay::OfHeads, Decay::OfFeatures];
const TOLERANCES: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-12)];

#[test]
fn chunks_of_any_size_give_the_recurrence_and_its_gradients() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for (i, shape) in SHAPES.into_iter().enumerate() {
            for (j, decay) in DECAYS.into_iter().enumerate() {
                for (k, erased) in ERASED.into_iter().enumerate() {
                    let mut case = Case::new(shape, decay, erased, dtype)?;
                    match (i + j + k) % 4 {
                        0 => {}
                        1 => case.padding = Some(padding(shape[0], shape[1])?),
                        2 => case.segments = Some(segments(shape[0], shape[1])?),
                        _ => {
                            case.padding = Some(padding(shape[0], shape[1])?);
                            case.segments = Some(segments(shape[0], shape[1])?);
                        }
                    }
                    if (i + k) % 3 == 2 {
                        case = case.bare();
                    }
                    let expected = case.run(None)?;
                    for chunk in CHUNKS {
                        case.check(&case.run(Some(chunk))?, &expected, tolerance);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Groups of one team, of several, and of teams of unlike sizes.
#[test]
fn heads_that_share_queries_and_keys_have_their_sums_of_gradients() -> Result<()> {
    for (dtype, tolerance) in TOLERANCES {
        for (n_heads, n_groups) in [(6, 2), (10, 1), (18, 2), (3, 1)] {
            for decay in DECAYS {
                for erased in ERASED {
                    let shape = [2, 35, n_heads, 5, 3];
                    let mut case = Case::new(shape, decay, erased, dtype)?.in_groups(n_groups)?;
                    case.padding = Some(padding(2, 35)?);
                    case.segments = (n_groups == 2).then(|| segments(2, 35)).transpose()?;
                    let expected = case.run(None)?;
                    for chunk in [7, 64] {
                        case.check(&case.run(Some(chunk))?, &expected, tolerance);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Each has a wall among weak decays, strong decays only, decays that within a block stay just below the largest factor
/// or exceed it, or a repeated key with β = 2.
#[test]
fn no_decay_and_no_key_costs_more_than_rounding() -> Result<()> {
    let shape = [1, 130, 2, 17, 5];
    for (decay, erased) in [
        (Decay::OfHeads, Erased::Key),
        (Decay::OfFeatures, Erased::Key),
        (Decay::OfFeatures, Erased::Between),
    ] {
        let mut wide = Case::new(shape, decay, erased, DType::F64)?;
        let place = wide.tensors.len() - 2;
        let dims = wide.tensors[place].dims().to_vec();
        let n: usize = dims.iter().product();
        // The reference takes the numbers that f32 has.
        for x in &mut wide.tensors {
            *x = x.to_dtype(DType::F32)?.to_dtype(DType::F64)?;
        }
        for strong in [
            &(|i: usize| if i % 37 == 11 { -1e4 } else { -0.02 }) as &dyn Fn(usize) -> f64,
            &|_| -20.,
            &|_| -1e4,
            &|i| if i % 5 == 0 { -30. } else { -0.1 },
            &|_| -0.53,
            &|_| -0.7,
            &|i| if i % 5 == 0 { -0.9 } else { -0.01 },
            &|_| 0.,
        ] {
            let logs: Vec<f32> = (0..n).map(|i| strong(i) as f32).collect();
            let logs = Tensor::from_vec(logs, dims.clone(), device())?;
            wide.tensors[place] = logs.to_dtype(DType::F64)?;
            let expected = wide.run(None)?;
            let mut case = Case::new(shape, decay, erased, DType::F64)?;
            for (x, wide) in case.tensors.iter_mut().zip(&wide.tensors) {
                *x = wide.to_dtype(DType::F32)?;
            }
            for chunk in CHUNKS {
                case.check(&case.run(Some(chunk))?, &expected, 1e-5);
            }
        }
    }
    Ok(())
}

#[test]
fn a_repeated_key_with_a_strength_of_two_keeps_its_digits() -> Result<()> {
    let mut case = Case::new([1, 67, 1, 5, 3], Decay::None, Erased::Key, DType::F64)?;
    case.tensors[1] = case.tensors[1].narrow(1, 0, 1)?.broadcast_as((1, 67, 1, 5))?.contiguous()?;
    case.tensors[3] = case.tensors[3].ones_like()?.affine(2., 0.)?;
    for x in &mut case.tensors {
        *x = x.to_dtype(DType::F32)?.to_dtype(DType::F64)?;
    }
    let expected = case.run(None)?;
    for x in &mut case.tensors {
        *x = x.to_dtype(DType::F32)?;
    }
    for chunk in CHUNKS {
        case.check(&case.run(Some(chunk))?, &expected, 2e-5);
    }
    Ok(())
}

#[test]
fn a_long_sequence_is_finite_and_the_same_on_any_threads() -> Result<()> {
    for decay in [Decay::OfHeads, Decay::OfFeatures] {
        let alone = Case::new([1, 4_097, 3, 5, 7], decay, Erased::Key, DType::F32)?;
        let shared = Case::new([1, 300, 10, 5, 7], decay, Erased::Nothing, DType::F32)?;
        for case in [alone, shared.in_groups(2)?] {
            let all = || case.run(Some(CHUNK));
            let expected = threads::with(1, all)?;
            assert!(expected.iter().flatten().all(|x| x.is_finite()), "{}", case.label);
            assert_eq!(threads::with(2, all)?, expected, "{}", case.label);
            assert_eq!(threads::with(5, all)?, expected, "{}", case.label);
        }
    }
    Ok(())
}
