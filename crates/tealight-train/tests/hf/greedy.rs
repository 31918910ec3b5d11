//! Greedy continuations agree with those of `transformers`.

use std::ops::ControlFlow;

use serde_json::Value;
use tealight_model::generation::{StopRules, Strategy, generate};
use tealight_model::models::causal_lm::CachedPredictor;
use tealight_ops::testing::device;
use tealight_train::inference::continuation::{EndedBy, Settings};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::text_generation::TextGeneration;
use tealight_train::text::tokenizer::Specials;
use tealight_train::trained::TrainedModel;

use crate::model::models;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn the_likeliest_text_is_that_of_transformers() {
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

/// From the text of the prompt, with the special tokens of the tokenizer's template and of the continuation.
#[test]
fn a_prompt_is_continued_as_by_transformers_piece_by_piece() {
    let mut n_written = 0;
    for (record, model) in models() {
        if model.causal_lm().is_none() || !record.folder.join("tokenizer.json").exists() {
            continue;
        }
        let pretrained = TrainedModel::open(&record.folder, None).unwrap();
        let pipeline = TextGeneration::open(&pretrained, device()).unwrap();
        let (tokenizer, continuer) = (pretrained.tokenizer().unwrap(), pipeline.continuer());
        for text in record.expected["greedy"].as_array().unwrap() {
            let (prompt, whole) = (ids(&text["prompt_ids"]), ids(&text["output_ids"]));
            let max_tokens = whole.len() - prompt.len();
            let settings =
                Settings { strategy: Strategy::Greedy, max_tokens, stop: Vec::new(), n: 1 };
            let mut streamed = String::new();
            let mut on_text = |_: usize, text: &str| {
                streamed += text;
                ControlFlow::Continue(())
            };
            let prompt_text = text["prompt"].as_str().unwrap();
            let written = continuer.continue_text(prompt_text, &settings, &mut on_text).unwrap();
            let label = format!("{}, {prompt_text}", record.name);
            assert_eq!((written[0].n_tokens, written[0].ended_by), (max_tokens, EndedBy::Length));
            assert_eq!(streamed, written[0].text, "{label}");
            let decoded = |ids: &[u32]| tokenizer.decode(ids, Specials::Skip).unwrap();
            let (ours, theirs) = (decoded(&prompt) + &streamed, decoded(&whole));
            assert!(is_streamed(&ours, &theirs), "{label}: {ours:?}, not {theirs:?}");
            assert_eq!(tokenizer.decode(&whole, Specials::Keep).unwrap(), text["text"], "{label}");
            n_written += 1;
        }
    }
    assert!(n_written > 0);
}

/// Whether `streamed` is the `decoded` text. A later invalid byte turns the bytes before it into replacement
/// characters, which the stream has already written.
fn is_streamed(streamed: &str, decoded: &str) -> bool {
    let is_same = |(a, b): (char, char)| a == b || b == char::REPLACEMENT_CHARACTER;
    streamed.chars().count() == decoded.chars().count()
        && streamed.chars().zip(decoded.chars()).all(is_same)
}
