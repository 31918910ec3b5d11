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
        if erased == Erased::Along {
            tensors.push(unit(&normal(4, &per_feature, dtype)?)?);
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
        let along = next(self.erased == Erased::Along);
        let log_decay = next(self.decay != Decay::None);
        let state = next(self.has_state);
        let erase = match (self.erased, along) {
            (_, Some(e)) => Erase::Along(e),
            (Erased::Key, _) => Erase::Key,
            (_, None) => Erase::Nothing,
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

const ERASED: [Erased; 3] = [Erased::Nothing, Erased::Key, Erased::Along];
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

/// Each has a wall among weak decays, strong decays only, or a repeated key with β = 2.
#[test]
fn no_decay_and_no_key_costs_more_than_rounding() -> Result<()> {
    let shape = [1, 130, 2, 17, 5];
    for decay in [Decay::OfHeads, Decay::OfFeatures] {
        let wide = Case::new(shape, decay, Erased::Key, DType::F64)?;
        let place = 4;
        let dims = wide.tensors[place].dims().to_vec();
        let n: usize = dims.iter().product();
        for strong in [
            &(|i: usize| if i % 37 == 11 { -1e4 } else { -0.02 }) as &dyn Fn(usize) -> f64,
            &|_| -20.,
            &|_| -1e4,
            &|i| if i % 5 == 0 { -30. } else { -0.1 },
            &|_| 0.,
        ] {
            let logs = Tensor::from_vec((0..n).map(strong).collect(), dims.clone(), device())?;
            let mut case = Case::new(shape, decay, Erased::Key, DType::F64)?;
            // The reference takes the numbers that f32 has.
            case.tensors[place] = logs;
            for x in &mut case.tensors {
                *x = x.to_dtype(DType::F32)?.to_dtype(DType::F64)?;
            }
            let expected = case.run(None)?;
            for x in &mut case.tensors {
                *x = x.to_dtype(DType::F32)?;
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

#[test]
fn a_sequence_is_the_same_split_at_any_point() -> Result<()> {
    let case = Case::new([2, 35, 3, 5, 7], Decay::OfFeatures, Erased::Along, DType::F64)?;
    let call = |tensors: &[Tensor]| case.with(tensors, |x, tokens| in_chunks(x, tokens, 16));
    let [whole, last] = call(&case.tensors)?;
    for at in [1, 15, 16, 34] {
        let part = |from, len| -> Result<Vec<Tensor>> {
            case.tensors[..6].iter().map(|x| x.narrow(1, from, len)).collect()
        };
        let mut first = part(0, at)?;
        first.push(case.tensors[6].clone());
        let [head, state] = call(&first)?;
        let mut second = part(at, 35 - at)?;
        second.push(state);
        let [tail, state] = call(&second)?;
        let joined = [values(&Tensor::cat(&[head, tail], 1)?)?, values(&state)?];
        case.check(&joined, &[values(&whole)?, values(&last)?], 1e-12);
    }
    Ok(())
}

/// To the last bit: chunks hold the tokens of one document alone.
#[test]
fn padding_and_other_documents_change_no_bit() -> Result<()> {
    let case = Case::new([1, 67, 2, 5, 3], Decay::OfHeads, Erased::Key, DType::F32)?.bare();
    let call = |tensors: &[Tensor], tokens: Tokens<'_>| {
        case.with(tensors, |x, _| in_chunks(x, tokens, 16))
    };
    let part = |from, len| -> Result<Vec<Tensor>> {
        case.tensors.iter().map(|x| x.narrow(1, from, len)).collect()
    };
    let [alone, state] = call(&part(9, 40)?, Tokens::default())?;
    let flags: Vec<u8> = (0..67).map(|t| u8::from(!(9..49).contains(&t))).collect();
    let padding = Tensor::from_vec(flags, (1, 67), device())?;
    let [padded, after] =
        call(&case.tensors, Tokens { key_padding_mask: Some(&padding), segments: None })?;
    assert_eq!(values(&padded.narrow(1, 9, 40)?)?, values(&alone)?);
    assert_eq!(values(&after)?, values(&state)?);
    let numbers: Vec<u32> = (0..67).map(|t| u32::from(t >= 9) + u32::from(t >= 49)).collect();
    let segments = Tensor::from_vec(numbers, (1, 67), device())?;
    let [packed, _] =
        call(&case.tensors, Tokens { key_padding_mask: None, segments: Some(&segments) })?;
    assert_eq!(values(&packed.narrow(1, 9, 40)?)?, values(&alone)?);
    Ok(())
}

/// Features have no order, and values no scale.
#[test]
fn features_may_change_places_and_values_may_grow() -> Result<()> {
    for decay in DECAYS {
        let case = Case::new([2, 35, 3, 5, 7], decay, Erased::Along, DType::F64)?;
        let call = |tensors: &[Tensor]| case.with(tensors, |x, tokens| in_chunks(x, tokens, 16));
        let [plain, state] = call(&case.tensors)?;
        let order = Tensor::new(&[3_u32, 0, 4, 1, 2], device())?;
        let last = case.tensors.len() - 1;
        let permuted = case.tensors.iter().enumerate().map(|(i, x)| match i {
            2 | 3 => Ok(x.clone()),
            _ if i == last => x.index_select(&order, 2),
            _ if x.rank() == 4 => x.index_select(&order, 3),
            _ => Ok(x.clone()),
        });
        let [permuted, after] = call(&permuted.collect::<Result<Vec<_>>>()?)?;
        let expected = [values(&plain)?, values(&state.index_select(&order, 2)?)?];
        case.check(&[values(&permuted)?, values(&after)?], &expected, 1e-12);
        let mut scaled = case.tensors.clone();
        scaled[2] = (&scaled[2] * 3.)?;
        scaled[last] = (&scaled[last] * 3.)?;
        let [scaled, after] = call(&scaled)?;
        let expected = [values(&(plain * 3.)?)?, values(&(state * 3.)?)?];
        case.check(&[values(&scaled)?, values(&after)?], &expected, 1e-12);
    }
    Ok(())
}

/// What one kind of recurrence is at the settings of another.
#[test]
fn special_cases_are_each_other() -> Result<()> {
    let shape = [2, 35, 3, 5, 7];
    let outputs = |case: &Case, tensors: &[Tensor]| {
        let [output, state] = case.with(tensors, gated_delta_rule)?;
        Result::Ok([values(&output)?, values(&state)?])
    };
    // Equal decays of all features are the decay of a head, and decays of 1 are none.
    let of_heads = Case::new(shape, Decay::OfHeads, Erased::Key, DType::F64)?;
    let of_features = Case::new(shape, Decay::OfFeatures, Erased::Key, DType::F64)?;
    let mut equal = of_heads.tensors.clone();
    equal[4] = equal[4].unsqueeze(3)?.broadcast_as((2, 35, 3, 5))?.contiguous()?;
    let expected = outputs(&of_heads, &of_heads.tensors)?;
    of_heads.check(&outputs(&of_features, &equal)?, &expected, 1e-13);
    let none = Case::new(shape, Decay::None, Erased::Key, DType::F64)?;
    let mut ones = of_heads.tensors.clone();
    ones[4] = ones[4].zeros_like()?;
    none.check(&outputs(&of_heads, &ones)?, &outputs(&none, &none.tensors)?, 1e-13);
    // Erasing along β k is erasing the key, and along 0 erases nothing.
    let along = Case::new(shape, Decay::OfHeads, Erased::Along, DType::F64)?;
    let mut key = of_heads.tensors.clone();
    key.insert(4, key[1].broadcast_mul(&key[3].unsqueeze(3)?)?);
    along.check(&outputs(&along, &key)?, &expected, 1e-13);
    let nothing = Case::new(shape, Decay::OfHeads, Erased::Nothing, DType::F64)?;
    key[4] = key[4].zeros_like()?;
    along.check(&outputs(&along, &key)?, &outputs(&nothing, &nothing.tensors)?, 1e-13);
    Ok(())
}

#[test]
fn constant_decays_that_erase_nothing_are_retention() -> Result<()> {
    let case = Case::new([2, 35, 3, 5, 7], Decay::OfHeads, Erased::Nothing, DType::F64)?.bare();
    let decay = [1., 0.9, 0.5];
    let logs: Vec<f64> = decay.iter().map(|decay: &f64| decay.ln()).collect();
    let mut tensors = case.tensors.clone();
    let logs = Tensor::new(logs, device())?.reshape((1, 1, 3))?;
    tensors[3] = logs.broadcast_as((2, 35, 3))?.contiguous()?;
    let [output, _] = case.with(&tensors, gated_delta_rule)?;
    let heads = |x: &Tensor| x.transpose(1, 2)?.contiguous();
    let [query, key, value] = [0, 1, 2].map(|i| heads(&tensors[i]));
    let expected = crate::ops::retention::retention(&query?, &key?, &value?, &decay, None)?;
    case.check(&[values(&output)?], &[values(&heads(&expected)?)?], 1e-12);
    Ok(())
}

/// With a column of ones beside the values for the denominator.
#[test]
fn a_state_that_keeps_everything_is_linear_attention() -> Result<()> {
    let case = Case::new([2, 35, 3, 5, 7], Decay::None, Erased::Nothing, DType::F64)?.bare();
    let mut tensors = case.tensors.clone();
    let heads = |x: &Tensor| x.transpose(1, 2)?.contiguous();
    let logs = [heads(&tensors[0])?, heads(&tensors[1])?];
    let expected = crate::ops::linear_attention::linear_attention(
        &logs[0],
        &logs[1],
        &heads(&tensors[2])?,
        crate::Reach::Past,
        None,
    )?;
    (tensors[0], tensors[1]) = (tensors[0].exp()?, tensors[1].exp()?);
    let ones = Tensor::ones((2, 35, 3, 1), DType::F64, device())?;
    tensors[2] = Tensor::cat(&[&tensors[2], &ones], 3)?;
    let [sums, _] = case.with(&tensors, gated_delta_rule)?;
    let output = sums.narrow(3, 0, 7)?.broadcast_div(&sums.narrow(3, 7, 1)?)?;
    case.check(&[values(&output)?], &[values(&heads(&expected)?)?], 1e-12);
    Ok(())
}

#[test]
fn operands_in_half_precision_are_computed_in_f32() -> Result<()> {
    let case = Case::new([2, 35, 3, 5, 7], Decay::OfHeads, Erased::Key, DType::BF16)?;
    let wide = case.tensors.iter().map(|x| x.to_dtype(DType::F32)).collect::<Result<Vec<_>>>()?;
    let [output, state] = case.with(&case.tensors, gated_delta_rule)?;
    let [expected, last] = case.with(&wide, gated_delta_rule)?;
    assert_eq!((output.dtype(), state.dtype()), (DType::BF16, DType::F32));
    assert_eq!(values(&output)?, values(&expected.to_dtype(DType::BF16)?)?);
    assert_eq!(values(&state)?, values(&last)?);
    Ok(())
}

#[test]
fn shapes_that_do_not_match_are_refused_by_name() -> Result<()> {
    let case = Case::new([2, 5, 3, 11, 7], Decay::OfHeads, Erased::Along, DType::F32)?;
    let names = ["key", "value", "strength", "erase", "log_decay", "state"];
    for (i, name) in names.into_iter().enumerate() {
        let mut tensors = case.tensors.clone();
        let axis = if name == "state" { 2 } else { 1 };
        tensors[i + 1] = tensors[i + 1].narrow(axis, 0, 4)?;
        let error = case.with(&tensors, gated_delta_rule).expect_err(name).to_string();
        assert!(error.contains(&format!("`{name}` is of shape")), "{error}");
    }
    let case = Case::new([2, 5, 3, 11, 7], Decay::OfHeads, Erased::Key, DType::F32)?;
    let error = case.in_groups(2)?.run(Some(7)).expect_err("3 heads of 2 groups").to_string();
    assert!(error.contains("2 heads of queries for 3 of values"), "{error}");
    let case = Case::new([2, 5, 3, 11, 7], Decay::OfHeads, Erased::Key, DType::F32)?;
    let other = Tensor::zeros((2, 4), DType::U8, device())?;
    let wrong = Tokens { key_padding_mask: Some(&other), segments: None };
    assert!(case.with(&case.tensors, |x, _| gated_delta_rule(x, wrong)).is_err());
    let wrong = Tokens { key_padding_mask: None, segments: Some(&other) };
    assert!(case.with(&case.tensors, |x, _| gated_delta_rule(x, wrong)).is_err());
    Ok(())
}

#[test]
fn nothing_to_read_gives_nothing() -> Result<()> {
    for shape in [[2, 0, 3, 5, 7], [0, 5, 3, 5, 7]] {
        let case = Case::new(shape, Decay::OfHeads, Erased::Key, DType::F32)?;
        let [output, state] = case.with(&case.tensors, gated_delta_rule)?;
        let [batch, len, n_heads, n_features, width] = shape;
        assert_eq!(output.dims(), [batch, len, n_heads, width]);
        assert_eq!(values(&state)?, values(&case.tensors[5])?);
        assert_eq!(state.dims(), [batch, n_heads, n_features, width]);
    }
    Ok(())
}
