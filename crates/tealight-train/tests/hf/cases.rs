//! Logits, hidden states, losses and gradients agree with those of `transformers`.

use candle_core::{DType, IndexOp, Tensor};
use tealight_model::ModelSpec;

use crate::model::{Model, models, named};
use crate::record::{
    CLASSIFIER_LOGITS, Case, Faults, GRADIENT, GRADIENT_OF_TOTAL, HALF_PRECISION, LOGITS, LOSS,
    difference, largest, norm, root_mean_square,
};

#[test]
fn logits_and_hidden_states_are_those_of_transformers() {
    let mut faults = Faults::default();
    for (record, model) in models() {
        for case in record.cases() {
            let outcome = model.run(&case);
            for (prefix, states) in &outcome.hidden_states {
                let expected = case.hidden_states(prefix);
                // A model of pictures has one that is not compared.
                let n = states.len();
                let fits = [0, n, n + 1].contains(&expected.len());
                assert!(fits, "{}", case.label());
                for (i, (state, expected)) in states.iter().zip(expected).enumerate() {
                    let label = format!("{}, {prefix} {i}", case.label());
                    faults.near(&label, off(&model, &case, state, expected), LOGITS);
                }
            }
            let off_by = off(&model, &case, &outcome.logits, case.tensor("logits"));
            let is_classifier = model.description.classification.is_some();
            let tolerance = if is_classifier { CLASSIFIER_LOGITS } else { LOGITS };
            faults.near(&format!("{}, logits", case.label()), off_by, tolerance);
            let loss = f64::from(outcome.loss.to_scalar::<f32>().unwrap());
            let off = (loss - case.number("loss")).abs();
            faults.near(&format!("{}, loss", case.label()), off, LOSS);
        }
    }
    faults.none();
}

/// In the precision of training with `precision = "bf16"` on a GPU.
#[test]
fn logits_in_bf16_are_near_those_of_transformers() {
    let mut faults = Faults::default();
    for (record, _) in models() {
        let model = Model::computing_in(DType::BF16, &record);
        for case in record.cases() {
            let (ours, theirs) = (model.run(&case).logits, case.tensor("logits"));
            assert_eq!(ours.dtype(), DType::BF16);
            let [ours, theirs] = [&ours, theirs].map(|logits| compared(&model, &case, logits));
            let label = format!("{}, root mean square of the errors of the logits", case.label());
            let is_classifier = model.description.classification.is_some();
            let error =
                if is_classifier { record.largest_error_in_bf16() } else { case.error_in_bf16() };
            let tolerance = HALF_PRECISION * error;
            faults.near(&label, root_mean_square(&ours, &theirs), tolerance);
        }
    }
    faults.none();
}

/// The largest difference of what is compared.
fn off(model: &Model, case: &Case<'_>, ours: &Tensor, theirs: &Tensor) -> f64 {
    let [ours, theirs] = [ours, theirs].map(|states| compared(model, case, states));
    difference(&ours, &theirs)
}

/// A padded query whose keys are all masked has other values in each version of `transformers`, so padding is not
/// compared in causal models, in the hidden states of classifiers and where the record says so. `(batch, seq_len,
/// width)` → the same shape or `(n, width)`.
fn compared(model: &Model, case: &Case<'_>, states: &Tensor) -> Tensor {
    let is_causal = matches!(model.description.spec, ModelSpec::CausalLm(_));
    let of_classifier = model.description.classification.is_some() && states.rank() == 3;
    let as_recorded = case.expected["compare_where"] == "attention_mask";
    let without_padding = is_causal || of_classifier || as_recorded;
    let Some(real) = case.input("attention_mask").filter(|_| without_padding) else {
        return states.clone();
    };
    let real = real.flatten_all().unwrap().to_vec1::<i64>().unwrap();
    let real = (0..).zip(real).filter(|&(_, real)| real == 1).map(|(i, _)| i);
    let real = Tensor::new(real.collect::<Vec<u32>>(), states.device()).unwrap();
    states.flatten_to(1).unwrap().index_select(&real, 0).unwrap()
}

#[test]
fn gradients_are_those_of_transformers() {
    let mut faults = Faults::default();
    for (record, model) in models() {
        for case in record.cases() {
            check_gradients(&model, &case, &mut faults);
        }
    }
    faults.none();
}

fn check_gradients(model: &Model, case: &Case<'_>, faults: &mut Faults) {
    let total = case.number("total_grad_norm");
    let theirs = model.theirs(&named(&model.backward(&model.run(case).loss)));
    let norms = case.expected["grad_norms"].as_object().unwrap();
    let names: Vec<&String> = norms.keys().collect();
    assert!(names.iter().all(|name| theirs.contains_key(*name)), "{}", case.label());
    assert_eq!(names.len(), theirs.len(), "{}: {:?}", case.label(), theirs.keys());
    for (name, expected) in norms {
        let expected = expected.as_f64().unwrap();
        let tolerance = GRADIENT * expected + GRADIENT_OF_TOTAL * total;
        let label = format!("{}, norm of the gradient of {name}", case.label());
        faults.near(&label, (norm(&theirs[name]) - expected).abs(), tolerance);
    }
    for (name, gradient) in &theirs {
        let Some(expected) = case.get(&format!("grad/{name}")) else { continue };
        let tolerance = GRADIENT * largest(expected) + GRADIENT_OF_TOTAL * total;
        let label = format!("{}, gradient of {name}", case.label());
        faults.near(&label, difference(gradient, expected), tolerance);
    }
    if let Some(expected) = case.get("grad_pad_row") {
        let words = theirs.iter().find(|(name, _)| name.ends_with("word_embeddings.weight"));
        let pad_id = model.description.ids.pad.unwrap() as usize;
        let row = words.unwrap().1.i(pad_id).unwrap();
        let tolerance = GRADIENT * largest(expected) + GRADIENT_OF_TOTAL * total;
        let label = format!("{}, gradient of the row of padding", case.label());
        faults.near(&label, difference(&row, expected), tolerance);
    }
}
