//! Greedy continuations agree with those of `transformers`.

use serde_json::Value;
use tealight_model::generation::{StopRules, Strategy, generate};
use tealight_model::models::causal_lm::CachedPredictor;
use tealight_ops::testing::device;

use crate::model::models;

#[test]
fn the_likeliest_text_is_that_of_transformers() {
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let mut n_written = 0;
    for (record, model) in models() {
        let Some(model) = model.causal_lm() else { continue };
        for text in record.expected["greedy"].as_array().unwrap() {
            let (prompt, whole) = (ids(&text["prompt_ids"]), ids(&text["output_ids"]));
            let ends = StopRules { stop: &[], max_len: whole.len() - prompt.len() };
            let mut predictor = CachedPredictor::new(model, &[], device()).unwrap();
            let prompts = std::slice::from_ref(&prompt);
            let written = generate(&mut predictor, prompts, &ends, &Strategy::Greedy).unwrap();
            let written = [&prompt[..], &written[0][0].ids].concat();
            assert_eq!(written, whole, "{}, {}", record.name, text["prompt"]);
            n_written += 1;
        }
    }
    assert!(n_written > 0);
}
