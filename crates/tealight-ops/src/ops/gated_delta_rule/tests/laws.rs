//! What holds of the operation besides agreement with its definition.

use super::*;

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
    for decay in DECAYS {
        for erased in ERASED {
            for n_groups in [1, 2] {
                let case = Case::new([1, 67, 2, 5, 3], decay, erased, DType::F32)?;
                let case = case.bare().in_groups(n_groups)?;
                let call = |tensors: &[Tensor], tokens: Tokens<'_>| {
                    case.with(tensors, |x, _| in_chunks(x, tokens, 16))
                };
                let part: Result<Vec<_>> =
                    case.tensors.iter().map(|x| x.narrow(1, 9, 40)).collect();
                let [alone, state] = call(&part?, Tokens::default())?;
                let flags: Vec<u8> = (0..67).map(|t| u8::from(!(9..49).contains(&t))).collect();
                let padding = Tensor::from_vec(flags, (1, 67), device())?;
                let tokens = Tokens { key_padding_mask: Some(&padding), segments: None };
                let [padded, after] = call(&case.tensors, tokens)?;
                assert_eq!(values(&padded.narrow(1, 9, 40)?)?, values(&alone)?, "{}", case.label);
                assert_eq!(values(&after)?, values(&state)?, "{}", case.label);
                let number = |t| u32::from(t >= 9) + u32::from(t >= 49);
                let segments = Tensor::from_vec((0..67).map(number).collect(), (1, 67), device())?;
                let tokens = Tokens { key_padding_mask: None, segments: Some(&segments) };
                let [packed, _] = call(&case.tensors, tokens)?;
                assert_eq!(values(&packed.narrow(1, 9, 40)?)?, values(&alone)?, "{}", case.label);
            }
        }
    }
    Ok(())
}

/// Not even where later tokens fade so fast that their block is computed in another way.
#[test]
fn later_tokens_change_no_bit() -> Result<()> {
    for decay in DECAYS {
        for erased in ERASED {
            let case = Case::new([1, 67, 2, 5, 3], decay, erased, DType::F32)?;
            let call =
                |tensors: &[Tensor]| case.with(tensors, |x, tokens| in_chunks(x, tokens, 64));
            let [expected, _] = call(&case.tensors)?;
            let state = case.tensors.len() - 1;
            let log_decay = (decay != Decay::None).then(|| state - 1);
            for now in [1, 5, 16, 40, 66] {
                let mut tensors = case.tensors.clone();
                for (i, x) in tensors[..state].iter_mut().enumerate() {
                    // What erases must not grow, because the state would overflow, and 0 times infinity is no number.
                    let factor = if i == 0 || i == 2 || Some(i) == log_decay { 30. } else { 1. };
                    let later = (x.narrow(1, now, 67 - now)? * factor)?;
                    *x = Tensor::cat(&[&x.narrow(1, 0, now)?, &later], 1)?;
                }
                let [output, _] = call(&tensors)?;
                let [output, expected] = [&output, &expected].map(|x| x.narrow(1, 0, now));
                assert_eq!(values(&output?)?, values(&expected?)?, "{} {now}", case.label);
            }
        }
    }
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
    // What is erased from k itself is erased along e alone.
    let between = Case::new(shape, Decay::OfHeads, Erased::Between, DType::F64)?;
    let mut both = key.clone();
    both.insert(5, both[1].clone());
    between.check(&outputs(&between, &both)?, &expected, 1e-13);
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
    let case = Case::new([2, 5, 3, 11, 7], Decay::OfHeads, Erased::Between, DType::F32)?;
    let names = ["key", "value", "strength", "erase", "erase_key", "log_decay", "state"];
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
